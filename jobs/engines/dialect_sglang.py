"""Owns how SGLang's own `/generate` is spoken: token ids in and out. Pure. Does not own the engine.

Each event tells the ids so far, or, with `--incremental-streaming-output`, the new ones; `completion_tokens` says which. The
last one tells how many verify steps accepted how many drafts, not in which order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from jobs.engines.base import Answer, Ask, Endpoint
from jobs.engines.dialect_events import (
    DONE,
    NO_REASON,
    NOT_DONE,
    NOTHING_AFTER,
    count_of,
    counts_of,
    error_in,
    message_of,
    object_of,
    section,
)
from jobs.engines.dialects import post


class SGLangDialect:
    """`POST /generate`, streamed."""

    def request(self, ask: Ask, endpoint: Endpoint) -> bytes:
        sampling = {
            "max_new_tokens": ask.output_limit,
            "temperature": ask.sampling.temperature,
            "top_p": ask.sampling.top_p,
            "top_k": ask.sampling.top_k or -1,
            "sampling_seed": ask.seed,
            "ignore_eos": ask.ignore_eos,
        }
        body = {"input_ids": list(ask.prompt_ids), "sampling_params": sampling, "stream": True}
        return post(endpoint, "/generate", orjson.dumps(body))

    def answer(self, events: Sequence[bytes]) -> Answer:
        told = Told()
        error = error_in(told, events)
        return Answer(
            chunk_events=told.chunk_events,
            chunk_tokens=told.chunk_tokens,
            output_ids=told.output_ids,
            step_drafted=told.step_drafted,
            step_accepted=told.step_accepted,
            first_step_is_prefill=bool(told.step_drafted),
            last_step_is_cut=told.is_cut,
            engine_al=told.meta.get("spec_accept_length"),
            finish_reason=told.finish_reason,
            error=error,
        )


@dataclass
class Told:
    """What the events said so far."""

    chunk_events: list[int] = field(default_factory=list)
    chunk_tokens: list[int] = field(default_factory=list)
    output_ids: list[int] = field(default_factory=list)
    step_drafted: list[int] = field(default_factory=list)
    step_accepted: list[int] = field(default_factory=list)
    is_cut: bool = False
    meta: Mapping[str, Any] = field(default_factory=dict)
    finish_reason: str = ""
    is_done: bool = False

    def take(self, index: int, event: bytes) -> None:
        """One event. `ValueError` with what is wrong with it."""
        if self.is_done:
            raise ValueError(NOTHING_AFTER)
        if event.strip() == DONE:
            self.is_done = True
            return
        fields = object_of(index, event)
        self.meta = section(fields, "meta_info")
        self.take_ids(index, counts_of("output_ids", fields.get("output_ids", [])))
        reason = section(self.meta, "finish_reason")
        if reason.get("type") == "abort":
            raise ValueError(f"the engine gave up: {message_of(reason)}")
        self.finish_reason = reason.get("type", "")

    def take_ids(self, index: int, ids: list[int]) -> None:
        """The new ones among the ids of an event."""
        total, seen = count_of(self.meta, "completion_tokens", len(ids)), len(self.output_ids)
        new = ids[seen:] if len(ids) == total else ids
        if seen + len(new) != total:
            raise ValueError(
                f"event {index} must tell as many ids as it counts: got {len(ids)}, {total} in all after {seen}."
            )
        if new:
            self.chunk_events.append(index)
            self.chunk_tokens.append(len(new))
            self.output_ids += new

    def check(self) -> None:
        """`ValueError` when the stream as a whole is not what was promised."""
        if not self.is_done:
            raise ValueError(NOT_DONE)
        if not self.finish_reason:
            raise ValueError(NO_REASON)
        self.take_steps()

    def take_steps(self) -> None:
        """Drafted and accepted of every step, where the engine tells steps.

        The prefill comes first, then the verify steps by rising acceptance, as their order is not told. What the engine
        calls proposed is the width that it was started with, not what was drafted.
        """
        verified = count_of(self.meta, "spec_verify_ct", 0)
        if not verified:
            return
        histogram = counts_of("spec_correct_drafts_histogram", self.meta.get("spec_correct_drafts_histogram"))
        accepted = [count for count, steps in enumerate(histogram) for _ in range(steps)]
        width = count_of(self.meta, "spec_num_proposed_drafts", 0) // verified
        self.step_drafted, self.step_accepted = [0, *[width] * len(accepted)], [0, *accepted]
        self.is_cut = 1 + sum(accepted) + len(accepted) > len(self.output_ids)
