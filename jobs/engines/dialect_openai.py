"""Owns how OpenAI-style completions are spoken, token ids in and out, as vLLM serves them. Pure. Does not own any engine.

Asked for beyond OpenAI's own fields: `return_token_ids` (each event tells its ids), usage in the last event, and there,
where the server runs with `--per-request-spec-decode-metrics detailed`, the steps in which something was drafted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from jobs.engines.base import Answer, Ask, Endpoint
from jobs.engines.dialect_events import (
    ToldSoFar,
    count_of,
    counts_of,
    error_in,
    object_of,
    section,
)
from jobs.engines.dialects import post


class OpenAIDialect:
    """`POST /v1/completions`, streamed."""

    def request(self, ask: Ask, endpoint: Endpoint) -> bytes:
        body = {
            "model": endpoint.model,
            "prompt": list(ask.prompt_ids),
            "max_tokens": ask.output_limit,
            "temperature": ask.sampling.temperature,
            "top_p": ask.sampling.top_p,
            "seed": ask.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            **({"top_k": ask.sampling.top_k} if ask.sampling.top_k else {}),
            **({"ignore_eos": True} if ask.ignore_eos else {}),
        }
        return post(endpoint, "/v1/completions", orjson.dumps(body))

    def answer(self, events: Sequence[bytes]) -> Answer:
        told = Told()
        error = error_in(told, events)
        return told.answer(error, told.metrics.get("mean_acceptance_length"))


@dataclass
class Told(ToldSoFar):
    """What the events said so far."""

    usage_tokens: int = -1  # not told
    metrics: Mapping[str, Any] = field(default_factory=dict)  # of speculative decoding

    def take(self, index: int, event: bytes) -> None:
        """One event. `ValueError` with what is wrong with it."""
        if self.is_end(event):
            return
        fields = object_of(index, event)
        for choice in fields.get("choices") or ():
            self.take_choice(index, choice)
        if usage := section(fields, "usage"):
            self.usage_tokens = count_of(usage, "completion_tokens", 0)
        self.metrics = section(section(fields, "metrics"), "speculative_decoding") or self.metrics

    def take_choice(self, index: int, choice: Mapping[str, Any]) -> None:
        """The tokens of an event, and why they were the last."""
        if choice.get("token_ids") is None and choice.get("text"):
            raise ValueError(
                f"event {index} must tell its token ids: it has text only. The server must know `return_token_ids`."
            )
        ids = counts_of("token_ids", choice.get("token_ids") or [])
        self.take_new(index, ids)
        self.finish_reason = choice.get("finish_reason") or self.finish_reason

    def check(self) -> None:
        """`ValueError` when the stream as a whole is not what was promised."""
        self.check_end()
        if self.usage_tokens not in (-1, len(self.output_ids)):
            raise ValueError(f"the usage must count what came: got {self.usage_tokens} for {len(self.output_ids)} tokens.")
        self.take_steps()

    def take_steps(self) -> None:
        """Drafted and accepted of every step, where the engine tells steps.

        It tells only those in which something was drafted, and counts what a stop cut off as accepted. Others gave one token
        each, so that their number follows from the tokens; they are put first, as their places are not told.
        """
        if "per_step_drafted" not in self.metrics:
            return
        drafted = counts_of("per_step_drafted", self.metrics["per_step_drafted"])
        accepted = counts_of("per_step_accepted", self.metrics.get("per_step_accepted"))
        plain = len(self.output_ids) - sum(accepted) - len(accepted)
        others = [0] * max(1, plain)  # the prefill step is always one of them
        self.step_drafted, self.step_accepted, self.is_cut = [*others, *drafted], [*others, *accepted], plain < 1
