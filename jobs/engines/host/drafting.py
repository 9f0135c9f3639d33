"""Owns how a draft is asked of transformers, and what is seen of each round of it. Does not own the model or requests.

Measured on transformers 5.24: draft length, schedule and confidence threshold are read from the *assistant's*
`generation_config` (with early exit: the model's own); given to `generate()` they are ignored without a word. Unset they
are 20, "constant" and 0.4. `heuristic` writes the length that it ended with back there, so the next request starts from it;
`heuristic_transient` does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Round:
    """The draft that is being verified, and how long the method wanted it to be before the limit capped it."""

    draft: Sequence[int] = ()
    wanted: int = 0


@dataclass
class Drafting:
    """One choice of draft, applied to a loaded model. `rounds` counts the drafts that were asked for since start."""

    settings: dict[str, Any]  # the fields of `jobs.spec.Draft`
    model: Any
    assistant: Any = None
    round: Round = field(default_factory=Round)
    rounds: int = 0

    @property
    def method(self) -> str:
        return str(self.settings["method"])

    def install(self) -> None:
        """Check the choice against the model, put it where transformers reads it, and see every draft from now on."""
        self._check()
        self.restore()
        if self.method != "none":
            make = self.model._get_candidate_generator
            self.model._get_candidate_generator = lambda *args, **kwargs: self._watch(make(*args, **kwargs))

    def restore(self) -> bool | None:
        """Set the draft length back to its start. None = this method has none that changes."""
        drafter = {"draft_model": self.assistant, "early_exit": self.model}.get(self.method)
        if drafter is None:
            return None
        drafter.generation_config.num_assistant_tokens = self.settings["k"]
        drafter.generation_config.num_assistant_tokens_schedule = self.settings["schedule"]
        drafter.generation_config.assistant_confidence_threshold = self.settings["confidence_threshold"]
        return True

    def options(self) -> dict[str, Any]:
        """What a request's `GenerationConfig` says of the method (the draft model goes to `generate()` itself)."""
        if self.method == "ngram":
            return {
                "prompt_lookup_num_tokens": self.settings["k"],
                "max_matching_ngram_size": self.settings["ngram_max"],
            }
        return {"assistant_early_exit": self.settings["exit_layer"]} if self.method == "early_exit" else {}

    @contextmanager
    def watched(self) -> Iterator[Drafting]:
        """One request. Raises when transformers answered it without a single draft; an early exit that failed is undone."""
        config, rounds = self._layered.config, self.rounds
        layers = config.num_hidden_layers
        try:
            yield self
        finally:
            config.num_hidden_layers = layers  # transformers lowers it while it drafts, and has no `finally`
        if self.method != "none" and self.rounds == rounds:
            raise RuntimeError(f"the engine must speculate: transformers ignored {self.settings}.")

    @property
    def _layered(self) -> Any:
        return getattr(self.model, self.model.base_model_prefix, self.model)

    def _check(self) -> None:
        layers, exit_layer = self._layered.config.num_hidden_layers, self.settings["exit_layer"]
        if self.method == "early_exit" and exit_layer >= layers:
            raise ValueError(f"`draft.exit_layer` must be below the model's {layers} layers: got {exit_layer}.")
        if self.assistant is not None and self.assistant.config.vocab_size != self.model.config.vocab_size:
            raise ValueError(
                f"the draft model must share the target's tokenizer: got vocabularies of {self.assistant.config.vocab_size} "
                f"and {self.model.config.vocab_size} tokens. Choose a draft model of the same family."
            )

    def _watch(self, generator: Any) -> Any:
        """Patch the method on the object: a proxy would fail the `isinstance` checks on which `heuristic` depends."""
        generator.get_candidates = self._seeing(generator, generator.get_candidates)
        return generator

    def _seeing(self, generator: Any, get_candidates: Callable[..., Any]) -> Callable[..., Any]:
        def get_and_see(input_ids: Any, **kwargs: Any) -> Any:
            wanted = int(getattr(generator, "num_assistant_tokens", self.settings["k"]))
            candidates = get_candidates(input_ids, **kwargs)
            self.round = Round(candidates[0][0, input_ids.shape[1] :].tolist(), wanted)
            self.rounds += 1
            return candidates

        return get_and_see


def is_cut(tokens: Sequence[int], seen: Round, room: int) -> bool:
    """Whether EOS or the limit (`room` tokens were left) made this step shorter than the draft and the target would have.

    A last token that is the draft's own was cropped behind it: after a rejection it would differ. And transformers caps the
    draft itself to `room - 1`.
    """
    last = len(tokens) - 1
    if last < len(seen.draft):
        return seen.draft[last] == tokens[last]
    return len(tokens) == room and len(seen.draft) < seen.wanted
