"""Owns how an answered turn becomes a row. Does not own sending, parsing of streams, or what a dialect's events mean."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from jobs.engines.base import Answer
from jobs.load.base import Traffic
from jobs.load.stream import Stream, stream_of
from jobs.load.wire import Reply
from storage.rows import RequestRow


class Asked(NamedTuple):
    """What a row says of the request."""

    cell_id: str  # here because it is a hash of all that a cell is: too dear to make for every row
    tokens: int
    hash: str


@dataclass(frozen=True)
class Answered:
    """A turn as a row, and what only the cell as a whole wants to know."""

    row: RequestRow
    ended_ns: int  # from the cell's start; 0 = nothing came
    merged_reads: int
    lag_ns: int
    logprobs: Sequence[float] = ()


def answered(traffic: Traffic, reply: Reply, asked: Asked, t_zero: int) -> Answered:
    """The row of a reply: parse its stream, ask the dialect what it says, and put chunk times to it."""
    stream = stream_of(reply)
    answer = traffic.dialect.answer(stream.events) if stream.events else Answer(error="the answer has no event")
    arrivals = [stream.arrivals_ns[event] for event in answer.chunk_events]
    prompt = traffic.conversations[reply.conversation].prompt
    row = RequestRow(
        cell_id=asked.cell_id,
        attempt=traffic.attempt,
        index=reply.conversation,
        turn=reply.turn,
        question_id=prompt.question_id,
        category=prompt.category,
        sub_category=prompt.sub_category,
        prompt_tokens=asked.tokens,
        prompt_hash=asked.hash,
        t_sched_ns=reply.t_due - t_zero,
        t_sent_ns=(reply.t_sent or reply.t_due) - t_zero,
        chunk_gap_ns=[now - before for before, now in zip([reply.t_sent, *arrivals], arrivals, strict=False)],
        chunk_tokens=list(answer.chunk_tokens),
        step_drafted=list(answer.step_drafted),
        step_accepted=list(answer.step_accepted),
        first_step_is_prefill=answer.first_step_is_prefill,
        last_step_is_cut=answer.last_step_is_cut,
        output_ids=list(answer.output_ids),
        output_hash=hash_of(answer.output_ids),
        engine_al=answer.engine_al,
        finish_reason=answer.finish_reason,
        error=stream.error or answer.error,
    )
    ended_ns = stream.ended_ns - t_zero if stream.ended_ns else 0
    return Answered(row, ended_ns, merged_reads(stream, answer), stream.lag_ns, answer.logprobs)


def merged_reads(stream: Stream, answer: Answer) -> int:
    """Reads that brought more than one chunk: all but the last of those are stamped too late."""
    reads = [stream.reads[event] for event in answer.chunk_events]
    return len({read for read, following in pairwise(reads) if read == following})


def hash_of(ids: Sequence[int]) -> str:
    """16 hex digits of the SHA-256 of token ids as little-endian 32-bit integers; "" for none."""
    if not ids:
        return ""
    packed = array("i", ids)
    return hashlib.sha256(packed.tobytes()).hexdigest()[:16]
