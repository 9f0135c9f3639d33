"""The script of the simulated engine: what it may say, and how its acceptance is read."""

from __future__ import annotations

import pytest

from jobs.engines.host.simulated import acceptance
from jobs.engines.script import make_script, pretended_rates
from jobs.errors import BadInput


@pytest.mark.parametrize(
    ("draft_args", "chances"),
    [
        pytest.param({}, [0.9, 0.5, 0.5, 0.5], id="the last one repeats"),
        pytest.param({"acceptance": [0.1]}, [0.1, 0.1, 0.1, 0.1], id="the draft's arguments win"),
        pytest.param(
            {"acceptance_by_category": {"math": 1.5}}, [1.0, 0.75, 0.75, 0.75], id="a factor of the category, at most 1"
        ),
        pytest.param({"acceptance_by_category": {"writing": 0.5}}, [0.9, 0.5, 0.5, 0.5], id="another category's factor"),
    ],
)
def test_acceptance_is_read_by_position_and_category(draft_args: dict[str, object], chances: list[float]) -> None:
    script = make_script({"acceptance": [0.9, 0.5]}, draft_args)
    assert acceptance(script, "math", 4) == pytest.approx(chances)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        pytest.param({"noise": -1}, r"`engine\.args\.noise` must be a number, at least 0: got -1", id="negative"),
        pytest.param({"noise": float("nan")}, "must be a number, at least 0: got nan", id="not a number"),
        pytest.param({"error_every": True}, "must be a whole number, at least 0: got True", id="true is no number"),
        pytest.param({"acceptance": []}, "a list of probabilities, at least one", id="no probability"),
        pytest.param(
            {"acceptance_by_category": {"math": "high"}}, "a mapping of categories to factors", id="factor as text"
        ),
        pytest.param({"wrong_name": 1}, "must be true or false: got 1", id="1 is not true"),
        pytest.param({"vocab": 1}, r"`engine\.args\.vocab` must be at least 2: got 1", id="nothing but the end"),
        pytest.param({"answer_tokens": 0}, "must be at least 1: got 0", id="empty answers"),
    ],
)
def test_a_script_refuses_wrong_values(args: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        make_script(args, {})


@pytest.mark.parametrize(
    ("asked", "rates"),
    [
        pytest.param({"k": 3, "acceptance_length": 4.0}, [1.0], id="everything is accepted"),
        pytest.param({"k": 3, "acceptance_length": 1.0}, [0.0], id="nothing is"),
        pytest.param({"k": 1, "acceptance_length": 1.7}, [0.7], id="one token"),
        pytest.param({"k": 2, "acceptance_length": 1.75}, [0.5], id="1 + 1/2 + 1/4"),
        pytest.param({"k": 2, "acceptance_rates": [0.9, 0.2]}, [0.9, 0.2], id="rates as given"),
    ],
)
def test_synthetic_acceptance_comes_to_the_length_that_was_asked_for(asked: dict[str, object], rates: list[float]) -> None:
    assert pretended_rates({"acceptance_length": 0.0, "acceptance_rates": [], **asked}) == pytest.approx(rates, abs=1e-8)
