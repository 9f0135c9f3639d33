"""Owns how OpenAI-style completions are spoken, token ids in and out, as vLLM serves them. Pure. Does not own any engine.

Asked for beyond OpenAI's own fields: `return_token_ids` (each event tells its ids), usage in the last event, and there,
where the server runs with `--per-request-spec-decode-metrics detailed`, the steps in which something was drafted. `top_k`
and `repetition_penalty` go with every request: else a server takes those of the model's own generation settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
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
            "top_k": ask.sampling.top_k,
            "repetition_penalty": 1.0,
            "seed": ask.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            **({"ignore_eos": True} if ask.ignore_eos else {}),
            **({"structured_outputs": {"json": ask.json_schema}} if ask.json_schema else {}),
            **({"logprobs": 0} if ask.wants_logprobs else {}),  # of the token itself, and of no other
        }
        return post(endpoint, "/v1/completions", orjson.dumps(body))

    def answer(self, events: Sequence[bytes]) -> Answer:
        told = Told()
        error = error_in(told, events)
        is_drafted = told.metrics.get("num_spec_steps") != 0  # else its mean is 1.0, of nothing
        engine_al = told.metrics.get("mean_acceptance_length") if is_drafted else None
        return replace(told.answer(error, engine_al), logprobs=told.logprobs)


@dataclass
class Told(ToldSoFar):
    """What the events said so far."""

    usage_tokens: int = -1  # not told
    logprobs: list[float] = field(default_factory=list)
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
        self.take_logprobs(index, section(choice, "logprobs"), len(ids))
        self.finish_reason = choice.get("finish_reason") or self.finish_reason

    def take_logprobs(self, index: int, told: Mapping[str, Any], count: int) -> None:
        """The log-probabilities of the tokens of an event, where it has them."""
        values = told.get("token_logprobs") or []
        if values and (len(values) != count or not all(isinstance(value, (int, float)) for value in values)):
            raise ValueError(f"event {index} must tell one log-probability a token: got {str(values)[:80]} for {count}.")
        self.logprobs += map(float, values)

    def check(self) -> None:
        """`ValueError` when the stream as a whole is not what was promised."""
        self.check_end()
        if self.usage_tokens not in (-1, len(self.output_ids)):
            raise ValueError(f"the usage must count what came: got {self.usage_tokens} for {len(self.output_ids)} tokens.")
        self.take_steps()

    def take_steps(self) -> None:
        """Drafted and accepted of every step, where the engine tells steps.

        It tells only those in which something was drafted, and counts as accepted what a stop cut off. The others gave one
        token each, so that their number follows from the tokens, or from the chunks: there are never more chunks than steps.
        """
        if "per_step_drafted" not in self.metrics and self.metrics.get("num_spec_steps") != 0:
            return
        drafted = counts_of("per_step_drafted", self.metrics.get("per_step_drafted", []))
        accepted = counts_of("per_step_accepted", self.metrics.get("per_step_accepted", []))
        whole = len(self.output_ids) - sum(accepted)  # steps, if nothing was cut off
        n_steps = max(whole, len(self.chunk_tokens), len(drafted) + 1)  # the prefill step is never a drafted one
        self.is_cut = n_steps > whole
        steps = list(zip(drafted, accepted, strict=True))
        placed = placed_by(self.chunk_tokens, steps) if n_steps == len(self.chunk_tokens) else None
        rounds = placed or [(0, 0)] * (n_steps - len(steps)) + steps
        self.step_drafted, self.step_accepted = [list(column) for column in zip(*rounds, strict=True)]


def placed_by(chunks: Sequence[int], steps: Sequence[tuple[int, int]]) -> list[tuple[int, int]] | None:
    """The (drafted, accepted) of the step behind each chunk, when every chunk is one step; None when they do not fit.

    Steps that accepted nothing look like those that drafted nothing: they are put at the first place where they fit.
    """
    rounds, left = [(0, 0)], list(steps)
    for index, tokens in enumerate(chunks[1:], 2):
        fits = bool(left) and (left[0][1] + 1 == tokens or (index == len(chunks) and left[0][1] >= tokens))
        if not fits and tokens != 1:
            return None
        rounds.append(left.pop(0) if fits else (0, 0))
    return None if left else rounds
