"""Owns how a draft is asked of transformers, and what is seen of each round of it. Does not own the model or requests.

Measured on transformers 5.24: draft length, schedule and confidence threshold are read from the *assistant's*
`generation_config` (with early exit: the model's own); given to `generate()` they are ignored without a word. Unset they
are 20, "constant" and 0.4. `heuristic` writes the length that it ended with back there, so the next request starts from it;
`heuristic_transient` does not. What drafts from the target's hidden states (`AFTER_PREFILL`) has none before the prefill,
so its first round drafts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

AFTER_PREFILL = ("none", "medusa", "mtp", "dflash")
"""Methods whose first round is the prefill alone."""


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
    drafter: Any = None  # what drafts beside the target: a model of its own, heads or layers
    round: Round = field(default_factory=Round)
    rounds: int = 0

    @property
    def method(self) -> str:
        return str(self.settings["method"])

    @property
    def assistant(self) -> Any:
        """The draft model that is given to `generate()`."""
        return self.drafter if self.method in ("draft_model", "dflash") else None

    def install(self) -> None:
        """Check the choice against the model, put it where transformers reads it, and see every draft from now on."""
        self._check()
        self.restore()
        if self.method != "none":
            make = self.model._get_candidate_generator
            self.model._get_candidate_generator = lambda *args, **kwargs: self._watch(make(*args, **kwargs))

    def restore(self) -> bool | None:
        """Set the draft length back to its start. None = this method has none that changes."""
        drafter = {"draft_model": self.drafter, "early_exit": self.model}.get(self.method)
        if drafter is None:
            return None
        drafter.generation_config.num_assistant_tokens = self.settings["k"]
        drafter.generation_config.num_assistant_tokens_schedule = self.settings["schedule"]
        drafter.generation_config.assistant_confidence_threshold = self.settings["confidence_threshold"]
        return True

    def options(self) -> dict[str, Any]:
        """What a request's `GenerationConfig` says of the method (the draft model goes to `generate()` itself).

        transformers has no word for Medusa: prompt lookup only makes it assist the generation, but `loading` puts the heads
        in its place.
        """
        settings = self.settings
        lookup = {"prompt_lookup_num_tokens": settings["k"]}
        asked: dict[str, dict[str, Any]] = {
            "ngram": {**lookup, "max_matching_ngram_size": settings["ngram_max"]},
            "early_exit": {"assistant_early_exit": settings["exit_layer"]},
            "medusa": lookup,
            "mtp": {"use_mtp": True},
            "dflash": {"speculation_type": "dflash"},
        }
        return asked.get(self.method, {})

    @contextmanager
    def watched(self) -> Iterator[Drafting]:
        """One request. Raises when transformers answered it without a single draft; an early exit that failed is undone."""
        rounds, layered = self.rounds, self._layered.config if self.method == "early_exit" else None
        layers = layered.num_hidden_layers if layered else 0
        try:
            yield self
        finally:
            if layered:
                layered.num_hidden_layers = layers  # transformers lowers it while it drafts, and has no `finally`
        if self.method != "none" and self.rounds == rounds:
            raise RuntimeError(f"the engine must speculate: transformers ignored {self.settings}.")

    @property
    def _layered(self) -> Any:
        return getattr(self.model, self.model.base_model_prefix, self.model)

    def _check(self) -> None:
        if self.method == "early_exit":
            layers, exit_layer = self._layered.config.num_hidden_layers, self.settings["exit_layer"]
            if exit_layer >= layers:
                raise ValueError(f"`draft.exit_layer` must be below the model's {layers} layers: got {exit_layer}.")
        if self.method == "draft_model":
            drafts, target = (part.config.get_text_config().vocab_size for part in (self.drafter, self.model))
            if drafts != target:
                raise ValueError(
                    f"the draft model must share the target's tokenizer: got vocabularies of {drafts} and {target} tokens. "
                    "Choose a draft model of the same family."
                )

    def _watch(self, generator: Any) -> Any:
        """Patch the method on the object: a proxy would fail the `isinstance` checks on which `heuristic` depends."""
        generator.get_candidates = self._seeing(generator, generator.get_candidates)
        return generator

    def _seeing(self, generator: Any, get_candidates: Callable[..., Any]) -> Callable[..., Any]:
        def get_and_see(input_ids: Any, **kwargs: Any) -> Any:
            wanted = int(getattr(generator, "num_assistant_tokens", self.settings["k"]))
            wanted = 0 if kwargs.get("is_first_iteration") and self.method in AFTER_PREFILL else wanted
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
