"""Send offsets: a pure function of load, count and seed."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.errors import BadInput
from jobs.load.arrivals import check_recorded, send_offsets_ns
from jobs.spec import Load


def offsets_s(load: Load, count: int, seed: int = 0) -> list[float]:
    offsets = send_offsets_ns(load, count, seed)
    assert offsets is not None
    return [offset / 1e9 for offset in offsets]


@pytest.mark.parametrize(
    ("load", "expected_s"),
    [
        pytest.param(Load(kind="constant", rate=4), [0.25, 0.5, 0.75, 1.0], id="constant"),
        pytest.param(
            Load(kind="constant", rates=[1, 2], rate_step_s=2),
            [1.0, 2.0, 2.5, 3.0, 3.5],
            id="a step up; the last rate holds",
        ),
        pytest.param(Load(kind="constant", rates=[2, 1], rate_step_s=1), [0.5, 1.0, 2.0, 3.0], id="a step down"),
        pytest.param(Load(kind="constant", rates=[0, 1], rate_step_s=5), [6.0, 7.0], id="a pause first"),
        pytest.param(
            Load(kind="constant", rates=[0, 4], rate_step_s=2, is_ramp=True),
            [math.sqrt(1), math.sqrt(2), math.sqrt(3), 2.0, 2.25],
            id="a ramp from nothing, then flat",
        ),
        pytest.param(
            Load(kind="constant", rates=[3, 3], rate_step_s=1, is_ramp=True), [1 / 3, 2 / 3, 1.0, 4 / 3], id="a flat ramp"
        ),
    ],
)
def test_constant_gaps_follow_the_rate(load: Load, expected_s: list[float]) -> None:
    assert offsets_s(load, len(expected_s)) == pytest.approx(expected_s, abs=1e-8)


def test_a_closed_loop_has_no_offsets() -> None:
    assert send_offsets_ns(Load(), 5, 0) is None


@pytest.mark.parametrize(
    ("load", "variation"),
    [
        pytest.param(Load(kind="poisson", rate=10), 1.0, id="poisson"),
        pytest.param(Load(kind="gamma", rate=10, burstiness=1.0), 1.0, id="gamma of burstiness 1 is poisson"),
        pytest.param(Load(kind="gamma", rate=10, burstiness=0.25), 2.0, id="bursts"),
        pytest.param(Load(kind="gamma", rate=10, burstiness=4.0), 0.5, id="more even"),
    ],
)
def test_random_gaps_have_the_mean_and_the_spread_that_were_asked_for(load: Load, variation: float) -> None:
    gaps = np.diff(offsets_s(load, 40_000, seed=3))
    assert gaps.mean() == pytest.approx(0.1, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(variation, rel=0.05)


def test_random_arrivals_follow_the_rates_over_time() -> None:
    load = Load(kind="poisson", rates=[100, 1000, 100], rate_step_s=10)
    counts = np.histogram(offsets_s(load, 12_000, seed=1), bins=[0, 10, 20, 30])[0]
    assert counts == pytest.approx([1000, 10_000, 1000], rel=0.1)


def test_a_seed_gives_the_same_arrivals_and_another_seed_others() -> None:
    load = Load(kind="poisson", rate=5)
    assert send_offsets_ns(load, 50, 7) == send_offsets_ns(load, 50, 7)
    assert send_offsets_ns(load, 50, 7) != send_offsets_ns(load, 50, 8)


@given(
    kind=st.sampled_from(["constant", "poisson", "gamma"]),
    rates=st.lists(st.floats(0, 1000), min_size=1, max_size=5).filter(lambda rates: rates[-1] > 0.01),
    step_s=st.floats(0.01, 100),
    is_ramp=st.booleans(),
    seed=st.integers(0, 100),
)
def test_offsets_rise_and_the_expected_count_under_the_rates_is_kept(
    kind: str, rates: list[float], step_s: float, is_ramp: bool, seed: int
) -> None:
    load = Load(kind=kind, rates=rates, rate_step_s=step_s, is_ramp=is_ramp)
    offsets = send_offsets_ns(load, 30, seed)
    assert offsets is not None
    assert offsets == sorted(offsets)
    assert offsets[0] >= 0
    if kind == "constant":
        assert expected_count(load, offsets[-1] / 1e9) == pytest.approx(30, rel=1e-4, abs=1e-4)


def expected_count(load: Load, t_s: float) -> float:
    """Arrivals until `t_s`: the area under the rates, summed piece by piece."""
    total, rates = 0.0, list(load.rates)
    for i, rate in enumerate(rates):
        start = i * load.rate_step_s
        is_last = i + 1 == len(rates)
        took = max(0.0, min(t_s - start, math.inf if is_last else load.rate_step_s))
        slope = (rates[i + 1] - rate) / load.rate_step_s if load.is_ramp and not is_last else 0.0
        total += rate * took + slope * took * took / 2
    return total


def test_recorded_arrivals_are_replayed_from_the_first(tmp_path: Path) -> None:
    path = tmp_path / "arrivals.txt"
    path.write_text("1000.5\n1000.0\n1002.25\n1009\n")
    assert offsets_s(Load(kind="replay", replay=str(path)), 3) == [0.0, 0.5, 2.25]


def test_a_file_of_arrivals_is_read_once_for_all_cells(tmp_path: Path) -> None:
    path = tmp_path / "arrivals.txt"
    path.write_text("1\n2\n")
    load = Load(kind="replay", replay=str(path))
    check_recorded(load, [None])
    path.unlink()
    check_recorded(load, [None, None])
    assert offsets_s(load, 2) == [0.0, 1.0]


@pytest.mark.parametrize(
    ("content", "count", "message"),
    [
        pytest.param("1\n2\n", 3, "an arrival for every conversation: got 2 for 3", id="too few"),
        pytest.param("1\nsoon\n", 2, "one send offset in seconds a line: got .*soon", id="not a number"),
        pytest.param("1\nnan\n", 2, "one send offset in seconds a line: got .*nan and inf are no times", id="no time"),
        pytest.param(None, 1, "one send offset in seconds a line: got .*No such file", id="no file"),
    ],
)
def test_a_replay_that_cannot_be_is_refused(tmp_path: Path, content: str | None, count: int, message: str) -> None:
    path = tmp_path / "arrivals.txt"
    if content is not None:
        path.write_text(content)
    load = Load(kind="replay", replay=str(path))
    with pytest.raises(BadInput, match=message):
        send_offsets_ns(load, count, 0)
    with pytest.raises(BadInput, match=message):
        check_recorded(load, [None] * count)  # before anything starts


@pytest.mark.parametrize(
    ("load", "message"),
    [
        pytest.param(Load(kind="opne"), r"`load.kind` must be a known kind: got 'opne'. Known: closed", id="unknown kind"),
        pytest.param(Load(concurrency=0), r"`load.concurrency` must be at least 1 in a closed loop: got 0", id="no slot"),
        pytest.param(Load(kind="poisson"), r"`load.rate` must be above 0", id="no rate"),
        pytest.param(
            Load(kind="poisson", rates=[1, 0], rate_step_s=1), r"the last of `load.rates`: got \[1, 0\]", id="it never ends"
        ),
        pytest.param(
            Load(kind="poisson", rates=[-1, 1], rate_step_s=1), r"`load.rate` must be above 0", id="a negative rate"
        ),
        pytest.param(Load(kind="poisson", rates=[1]), r"`load.rate_step_s` must be above 0", id="steps without a length"),
        pytest.param(Load(kind="gamma", rate=1, burstiness=0), r"`load.burstiness` must be above 0", id="no burstiness"),
    ],
)
def test_a_load_that_says_nothing_sensible_is_refused(load: Load, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        send_offsets_ns(load, 3, 0)
