"""Owns how the reads of an answer become events with arrival times, after the fact. Does not own what the events say."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import httptools
import numpy as np

from jobs.load.sse import events_of
from jobs.load.wire import Reply

NO_OFFSET = -1
MOST_QUOTED = 200


@dataclass(frozen=True)
class Stream:
    """One answer. `arrivals_ns[i]` is when the read came that completed event `i`, `reads[i]` which one that was."""

    events: Sequence[bytes]
    arrivals_ns: Sequence[int]
    reads: Sequence[int]
    ended_ns: int  # when its last byte came; 0 = none did
    lag_ns: int  # longest time that a read waited for the client
    error: str  # "" = a whole HTTP answer with status 200


class Body:
    """The body of one HTTP response, and how much of it every read brought."""

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.parts: list[bytes] = []
        self.length = 0
        self.ends: list[int] = []  # of the body, after each read
        self.error = ""

    def feed(self, read: bytes) -> None:
        """One read, empty at the end of the connection."""
        try:
            if read and not self.error:
                self.parser.feed_data(read)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.error = f"the answer is not HTTP: {error}"
        self.ends.append(self.length)

    def on_body(self, part: bytes) -> None:
        self.parts.append(part)
        self.length += len(part)

    @property
    def status(self) -> int:
        return int(self.parser.get_status_code())


def stream_of(reply: Reply) -> Stream:
    """The events of a reply, and when they came."""
    body = Body()
    for read in split(reply.data, reply.sizes):
        body.feed(read)
    content = b"".join(body.parts)
    stamps, lag_ns = arrival_ns(reply)
    events = events_of(content)
    reads = [bisect_left(body.ends, event.end) for event in events]
    return Stream(
        events=[event.data for event in events],
        arrivals_ns=[stamps[read] for read in reads],
        reads=reads,
        ended_ns=stamps[-1] if stamps else 0,
        lag_ns=lag_ns,
        error=reply.error or body.error or refusal(body.status, content),
    )


def split(data: bytes, sizes: bytes) -> list[bytes]:
    """The reads that `data` was joined from."""
    ends = list(accumulate(np.frombuffer(sizes, np.int64).tolist()))
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def arrival_ns(reply: Reply) -> tuple[list[int], int]:
    """When every read arrived (monotonic), and the longest time that one waited. The kernel knows best, where it tells.

    Times never run backwards: a late packet that TCP put in order came when the one before it did.
    """
    read_at = np.frombuffer(reply.read_at, np.int64)
    if reply.clock_offset == NO_OFFSET or not len(read_at):
        return read_at.tolist(), 0
    timespecs = np.frombuffer(reply.kernel_at, np.int64).reshape(-1, 2)
    kernel_at = timespecs[:, 0] * 1_000_000_000 + timespecs[:, 1] - reply.clock_offset
    arrivals = np.maximum.accumulate(np.where(timespecs[:, 0] == 0, read_at, np.minimum(kernel_at, read_at)))
    return arrivals.tolist(), int((read_at - arrivals).max())


def refusal(status: int, body: bytes) -> str:
    """Why an answer with this status is none: the status and the first line of its body; "" for 200."""
    if status == 200:
        return ""
    lines = body.decode(errors="replace").strip().splitlines()
    return f"HTTP {status}: {lines[0][:MOST_QUOTED]}" if lines else f"HTTP {status} without a body"
