"""What is seen of each round of drafting, on stand-ins for the parts of transformers that it touches. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest

from jobs.engines.host.drafting import Drafting, Round, is_cut
from jobs.spec import Draft


def model(layers: int = 4, vocabulary: int = 64) -> Any:
    config = SimpleNamespace(num_hidden_layers=layers, vocab_size=vocabulary)
    config.get_text_config = lambda: config
    base = SimpleNamespace(config=config)
    return SimpleNamespace(
        config=config,
        base_model_prefix="model",
        model=base,
        generation_config=SimpleNamespace(),
        _get_candidate_generator=lambda: SimpleNamespace(get_candidates=lambda ids: None),
    )


def drafting(draft: Draft, target: Any, assistant: Any = None) -> Drafting:
    made = Drafting(asdict(draft), target, assistant)
    made.install()
    return made


EARLY_EXIT = Draft(method="early_exit", k=3, exit_layer=2, schedule="heuristic", confidence_threshold=0.3)


@pytest.mark.parametrize(
    ("tokens", "round", "room", "cut"),
    [
        pytest.param([7], Round(), 9, False, id="no draft, in the middle"),
        pytest.param([7], Round(), 1, False, id="no draft wanted, at the limit"),
        pytest.param([1, 2, 9], Round([1, 2], 2), 9, False, id="all accepted and the bonus"),
        pytest.param([1, 9], Round([1, 2], 2), 9, False, id="the second one rejected"),
        pytest.param([1, 9], Round([1, 2], 2), 2, False, id="the second one rejected, at the limit"),
        pytest.param([1, 2], Round([1, 2, 3], 3), 9, True, id="cropped behind the end token of the draft"),
        pytest.param([1, 2], Round([1, 2], 2), 9, True, id="the end token was the draft's last: no bonus"),
        pytest.param([1, 2], Round([1, 2, 3], 3), 2, True, id="cropped by the limit"),
        pytest.param([1, 2, 9], Round([1, 2], 5), 3, True, id="the limit capped the draft"),
        pytest.param([1, 2, 9], Round([1, 2], 5), 9, False, id="a short draft of its own will"),
        pytest.param([9], Round([], 5), 1, True, id="no room for a draft"),
    ],
)
def test_a_step_is_cut_only_when_a_stop_made_it_shorter(tokens: Sequence[int], round: Round, room: int, cut: bool) -> None:
    assert is_cut(tokens, round, room) is cut


def test_settings_go_where_transformers_reads_them() -> None:
    """The assistant's generation settings, and with an early exit the model's own; never the request's."""
    target, assistant = model(), model()
    drafting(Draft(method="draft_model", k=5, model="m"), target, assistant)
    assert vars(target.generation_config) == {}
    assert vars(assistant.generation_config) == {
        "num_assistant_tokens": 5,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": 0.0,
    }
    itself = model()
    drafting(EARLY_EXIT, itself)
    assert itself.generation_config.num_assistant_tokens_schedule == "heuristic"
    assert itself.generation_config.assistant_confidence_threshold == 0.3


@pytest.mark.parametrize(
    ("draft", "told"),
    [
        pytest.param(Draft(), None, id="none has nothing that changes"),
        pytest.param(Draft(method="ngram", k=3), None, id="nor has ngram"),
        pytest.param(EARLY_EXIT, True, id="early exit has its length"),
    ],
)
def test_a_restore_says_whether_there_was_something_to_restore(draft: Draft, told: bool | None) -> None:
    target = model()
    made = drafting(draft, target)
    target.generation_config.num_assistant_tokens = 99
    assert made.restore() is told
    assert target.generation_config.num_assistant_tokens == (3 if told else 99)


def test_speculation_that_transformers_ignores_is_an_error() -> None:
    made = drafting(Draft(method="ngram", k=3), model())
    with pytest.raises(RuntimeError, match=r"the engine must speculate: transformers ignored .*'ngram'"), made.watched():
        pass


def test_a_draft_that_fails_leaves_the_model_its_layers() -> None:
    target = model(layers=4)
    made = drafting(EARLY_EXIT, target)

    def fail_while_drafting() -> None:
        with made.watched():
            target.config.num_hidden_layers = 2
            raise MemoryError("no room")

    with pytest.raises(MemoryError, match="no room"):
        fail_while_drafting()
    assert target.config.num_hidden_layers == 4


@pytest.mark.parametrize(
    ("draft", "assistant", "message"),
    [
        pytest.param(
            Draft(method="early_exit", k=3, exit_layer=4), None, "below the model's 4 layers: got 4", id="exit at the end"
        ),
        pytest.param(
            Draft(method="draft_model", k=3, model="m"),
            model(vocabulary=32),
            "vocabularies of 32 and 64 tokens",
            id="other words",
        ),
    ],
)
def test_what_does_not_fit_the_model_is_refused_at_load(draft: Draft, assistant: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        drafting(draft, model(), assistant)
