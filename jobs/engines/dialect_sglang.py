"""Owns how SGLang's own `/generate` is spoken: token ids in and out. Pure. Does not own the engine.

Each event tells the ids so far, or, with `--incremental-streaming-output`, the new ones; `completion_tokens` says which. The
last one tells how many verify steps accepted how many drafts, not in which order. No field of a request names the model: the
session's nonce is the key that the server asks for.
"""

from __future__ import annotations

from collections import Counter
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
            **({"json_schema": ask.json_schema} if ask.json_schema else {}),
        }
        body = {
            "input_ids": list(ask.prompt_ids),
            "sampling_params": sampling,
            "stream": True,
            **({"return_logprob": True} if ask.wants_logprobs else {}),
        }
        return post(endpoint, "/generate", orjson.dumps(body))

    def answer(self, events: Sequence[bytes]) -> Answer:
        told = Told()
        error = error_in(told, events)
        return replace(told.answer(error, told.meta.get("spec_accept_length")), logprobs=told.logprobs)


@dataclass
class Told(ToldSoFar):
    """What the events said so far."""

    meta: Mapping[str, Any] = field(default_factory=dict)
    logprobs: list[float] = field(default_factory=list)

    def take(self, index: int, event: bytes) -> None:
        """One event. `ValueError` with what is wrong with it."""
        if self.is_end(event):
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
        self.take_new(index, new)
        told = self.meta.get("output_token_logprobs") or []  # (log-probability, id, text), as many as the ids of the event
        if told and len(told) != len(ids):
            raise ValueError(f"event {index} must tell one log-probability a token: got {len(told)} for {len(ids)}.")
        self.logprobs += [float(value) for value, *_ in told[len(told) - len(new) :]]

    def check(self) -> None:
        """`ValueError` when the stream as a whole is not what was promised."""
        self.check_end()
        self.take_steps()

    def take_steps(self) -> None:
        """Drafted and accepted of every step, where the engine tells steps.

        The prefill comes first, then the verify steps in the order of the chunks, or by rising acceptance where chunks are
        not steps. What the engine calls proposed is the width that it was started with, not what was drafted.
        """
        verified = count_of(self.meta, "spec_verify_ct", 0)
        if not verified:
            return
        histogram = counts_of("spec_correct_drafts_histogram", self.meta.get("spec_correct_drafts_histogram"))
        by_count = [count for count, steps in enumerate(histogram) for _ in range(steps)]
        accepted = in_order_of(self.chunk_tokens[1:], by_count)
        width = count_of(self.meta, "spec_num_proposed_drafts", 0) // verified
        self.step_drafted, self.step_accepted = [0, *[width] * len(accepted)], [0, *accepted]
        self.is_cut = 1 + sum(accepted) + len(accepted) > len(self.output_ids)


def in_order_of(chunks: Sequence[int], accepted: list[int]) -> list[int]:
    """What each step accepted, when every chunk is one step, of which a stop may have cut the last; else as it was."""
    whole = [tokens - 1 for tokens in chunks[:-1]]
    last = Counter(accepted) - Counter(whole)
    is_one_each = len(accepted) == len(chunks) and last.total() == 1
    return [*whole, *last] if is_one_each and next(iter(last)) >= chunks[-1] - 1 else accepted
