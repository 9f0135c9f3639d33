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
from jobs.engines.dialects import post

DONE = b"[DONE]"


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
        try:
            for index, event in enumerate(events):
                told.take(index, event)
            told.check()
        except ValueError as wrong:
            told.error = str(wrong)
        drafted, accepted, is_cut = told.steps()
        return Answer(
            chunk_events=told.chunk_events,
            chunk_tokens=told.chunk_tokens,
            output_ids=told.output_ids,
            step_drafted=drafted,
            step_accepted=accepted,
            first_step_is_prefill=bool(drafted),
            last_step_is_cut=is_cut,
            engine_al=told.metrics.get("mean_acceptance_length"),
            finish_reason=told.finish_reason,
            error=told.error,
        )


@dataclass
class Told:
    """What the events said so far."""

    chunk_events: list[int] = field(default_factory=list)
    chunk_tokens: list[int] = field(default_factory=list)
    output_ids: list[int] = field(default_factory=list)
    finish_reason: str = ""
    usage_tokens: int | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)  # of speculative decoding
    is_done: bool = False
    error: str = ""

    def take(self, index: int, event: bytes) -> None:
        """One event. `ValueError` with what is wrong with it."""
        if self.is_done:
            raise ValueError("nothing may follow [DONE]: more events did.")
        if event.strip() == DONE:
            self.is_done = True
            return
        fields = object_of(index, event)
        if fields.get("error"):
            raise ValueError(f"the engine gave up: {message_of(fields['error'])}")
        for choice in fields.get("choices") or ():
            self.take_choice(index, choice)
        self.usage_tokens = (fields.get("usage") or {}).get("completion_tokens", self.usage_tokens)
        self.metrics = (fields.get("metrics") or {}).get("speculative_decoding") or self.metrics

    def take_choice(self, index: int, choice: Mapping[str, Any]) -> None:
        """The tokens of an event, and why they were the last."""
        ids = choice.get("token_ids")
        if ids is None and choice.get("text"):
            raise ValueError(
                f"event {index} must tell its token ids: it has text only. The server must know `return_token_ids`."
            )
        if ids:
            self.chunk_events.append(index)
            self.chunk_tokens.append(len(ids))
            self.output_ids += ids
        self.finish_reason = choice.get("finish_reason") or self.finish_reason

    def check(self) -> None:
        """`ValueError` when the stream as a whole is not what was promised."""
        if not self.is_done:
            raise ValueError("the stream must end with [DONE]: it did not.")
        if not self.finish_reason:
            raise ValueError("the last event must tell why it was the last: no finish reason before [DONE].")
        if self.usage_tokens is not None and self.usage_tokens != len(self.output_ids):
            raise ValueError(
                f"the usage must count the tokens that came: got {self.usage_tokens} for {len(self.output_ids)}."
            )

    def steps(self) -> tuple[list[int], list[int], bool]:
        """Drafted and accepted of every step, and whether the last was cut; nothing where the engine does not tell steps.

        The engine tells only the steps in which something was drafted, and counts what a stop cut off as accepted. Others
        gave one token each, so that their number follows from the tokens; they are put first, as their places are not told.
        """
        if "per_step_drafted" not in self.metrics:
            return [], [], False
        drafted, accepted = list(self.metrics["per_step_drafted"]), list(self.metrics["per_step_accepted"])
        plain = len(self.output_ids) - sum(accepted) - len(accepted)
        others = [0] * max(1, plain)  # the prefill step is always one of them
        return [*others, *drafted], [*others, *accepted], plain < 1


def object_of(index: int, event: bytes) -> dict[str, Any]:
    """The JSON object of an event; `ValueError` when it is none."""
    try:
        fields = orjson.loads(event)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise ValueError(f"event {index} must be a JSON object: got {event[:80]!r}.")
    return fields


def message_of(error: object) -> str:
    """The text of an error object, in one line."""
    text = error.get("message", error) if isinstance(error, Mapping) else error
    return " ".join(str(text).split())
