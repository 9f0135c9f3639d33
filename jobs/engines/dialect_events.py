"""Owns what the dialects of other engines share in reading events. Does not own any engine's fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson

from jobs.engines.base import Answer

DONE = b"[DONE]"
NOT_DONE = "the stream must end with [DONE]: it did not."
NO_REASON = "the last event must tell why it was the last: no finish reason came."
NOTHING_AFTER = "nothing may follow the end of the stream: more events did."


class Reader(Protocol):
    """What takes the events of one stream."""

    def take(self, index: int, event: bytes) -> None:
        """One event. `ValueError` with what is wrong with it."""

    def check(self) -> None:
        """`ValueError` when the stream as a whole is not what was promised."""


@dataclass
class ToldSoFar:
    """What the events of one stream said so far, of an engine whose chunks are the ids of its events."""

    chunk_events: list[int] = field(default_factory=list)
    chunk_tokens: list[int] = field(default_factory=list)
    output_ids: list[int] = field(default_factory=list)
    step_drafted: list[int] = field(default_factory=list)
    step_accepted: list[int] = field(default_factory=list)
    is_cut: bool = False
    finish_reason: str = ""
    is_done: bool = False

    def is_end(self, event: bytes) -> bool:
        """Whether the event only says that it was all; `ValueError` for one after that."""
        if self.is_done:
            raise ValueError(NOTHING_AFTER)
        self.is_done = event.strip() == DONE
        return self.is_done

    def take_new(self, index: int, ids: list[int]) -> None:
        """The new ids that an event brought."""
        if ids:
            self.chunk_events.append(index)
            self.chunk_tokens.append(len(ids))
            self.output_ids += ids

    def check_end(self) -> None:
        """`ValueError` when the stream did not end as promised."""
        if not self.is_done:
            raise ValueError(NOT_DONE)
        if not self.finish_reason:
            raise ValueError(NO_REASON)

    def answer(self, error: str, engine_al: float | None) -> Answer:
        return Answer(
            chunk_events=self.chunk_events,
            chunk_tokens=self.chunk_tokens,
            output_ids=self.output_ids,
            step_drafted=self.step_drafted,
            step_accepted=self.step_accepted,
            first_step_is_prefill=bool(self.step_drafted),
            last_step_is_cut=self.is_cut,
            engine_al=engine_al,
            finish_reason=self.finish_reason,
            error=error,
        )


def error_in(told: Reader, events: Sequence[bytes]) -> str:
    """Have all events taken; what was wrong with the first bad one, or "". What came before it stays taken."""
    index = 0
    try:
        for index, event in enumerate(events):
            told.take(index, event)
        told.check()
    except ValueError as wrong:
        return str(wrong)
    except (TypeError, AttributeError, KeyError):  # JSON of another shape
        return f"event {index} must have this engine's fields: got {events[index][:80]!r}."
    return ""


def object_of(index: int, event: bytes) -> dict[str, Any]:
    """The JSON object of an event; `ValueError` when it is none, or when the engine gives up in it."""
    try:
        fields = orjson.loads(event)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise ValueError(f"event {index} must be a JSON object: got {event[:80]!r}.")
    if fields.get("error"):
        raise ValueError(f"the engine gave up: {message_of(fields['error'])}")
    return fields


def message_of(error: object) -> str:
    """The text of an error object, in one line."""
    text = error.get("message", error) if isinstance(error, Mapping) else error
    return " ".join(str(text).split())


def section(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A part of an event that is itself an object, empty when absent or null; `ValueError` when it is something else."""
    part = fields.get(name) or {}
    if not isinstance(part, dict):
        raise ValueError(f"`{name}` must be an object: got {str(part)[:80]!r}.")
    return part


def counts_of(name: str, counts: object) -> list[int]:
    """A list of token ids or of numbers of tokens; `ValueError` when it is none."""
    if not isinstance(counts, list) or not all(type(count) is int and count >= 0 for count in counts):
        raise ValueError(f"`{name}` must be a list of numbers from 0: got {str(counts)[:80]!r}.")
    return counts


def count_of(fields: Mapping[str, Any], name: str, default: int) -> int:
    """A number of tokens or steps; `ValueError` when it is none."""
    (count,) = counts_of(name, [fields.get(name, default)])
    return count
