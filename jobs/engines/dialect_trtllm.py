"""Owns how `trtllm-serve` speaks OpenAI's completions, token ids in and out. Pure. Does not own the engine.

It tells ids only where it is told not to make text of them (`detokenize`), one event a step. Of acceptance it tells the mean
number of tokens a step, in each event; which step drafted or accepted how much it does not tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from jobs.engines.base import Answer, Ask, Endpoint
from jobs.engines.dialect_events import ToldSoFar, count_of, counts_of, error_in, object_of, section
from jobs.engines.dialects import post


class TrtllmDialect:
    """`POST /v1/completions`, streamed."""

    def request(self, ask: Ask, endpoint: Endpoint) -> bytes:
        body = {
            "model": endpoint.model,
            "prompt": list(ask.prompt_ids),
            "max_tokens": ask.output_limit,
            "temperature": ask.sampling.temperature,
            "top_p": ask.sampling.top_p,
            "top_k": ask.sampling.top_k,
            "seed": ask.seed,
            "ignore_eos": ask.ignore_eos,
            "detokenize": False,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"response_format": {"type": "json", "schema": orjson.Fragment(ask.json_schema)}} if ask.json_schema else {}),
            **({"logprobs": 1} if ask.wants_logprobs else {}),
        }
        return post(endpoint, "/v1/completions", orjson.dumps(body))

    def answer(self, events: Sequence[bytes]) -> Answer:
        told = Told()
        error = error_in(told, events)
        return replace(told.answer(error, told.mean_length), logprobs=told.logprobs)


@dataclass
class Told(ToldSoFar):
    """What the events said so far."""

    usage_tokens: int = -1  # not told
    mean_length: float | None = None
    logprobs: list[float] = field(default_factory=list)

    def take(self, index: int, event: bytes) -> None:
        """One event. `ValueError` with what is wrong with it."""
        if self.is_end(event):
            return
        fields = object_of(index, event)
        for choice in fields.get("choices") or ():
            self.take_choice(index, choice)
        if usage := section(fields, "usage"):
            self.usage_tokens = count_of(usage, "completion_tokens", 0)

    def take_choice(self, index: int, choice: Mapping[str, Any]) -> None:
        """The tokens of an event, and why they were the last."""
        if choice.get("token_ids") is None and choice.get("text"):
            raise ValueError(f"event {index} must tell its token ids: it has text only. The server must know `detokenize`.")
        ids = counts_of("token_ids", choice.get("token_ids") or [])
        told = section(choice, "logprobs").get("token_logprobs") or []
        if told and len(told) != len(ids):
            raise ValueError(f"event {index} must tell one log-probability a token: got {len(told)} for {len(ids)}.")
        self.take_new(index, ids)
        self.logprobs += map(float, told)
        mean_length = choice.get("avg_decoded_tokens_per_iter")
        self.mean_length = self.mean_length if mean_length is None else float(mean_length)
        self.finish_reason = choice.get("finish_reason") or self.finish_reason

    def check(self) -> None:
        """`ValueError` when the stream as a whole is not what was promised."""
        self.check_end()
        if self.usage_tokens not in (-1, len(self.output_ids)):
            raise ValueError(f"the usage must count what came: got {self.usage_tokens} for {len(self.output_ids)} tokens.")
