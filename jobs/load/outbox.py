"""Owns what the client has to tell the worker, and when. Does not own what it means.

Ended turns are kept back while the cell runs, so that the worker does not parse while others are timed: only a turn on whose
answer the next one depends goes at once, a few samples go with each tick (for the live view), and all go when they fill
`KEEP_BYTES`. While `MOST_UNHEARD` bytes wait for a worker that does not listen, the client is to send no new request.
"""

from __future__ import annotations

import socket
from array import array
from collections import deque

from jobs.load.agenda import Turn
from jobs.load.clock import raw_stamp
from jobs.load.wire import Message, Reply, pack

KEEP_BYTES = 64 << 20
MOST_UNHEARD = 256 << 20
SAMPLES = 4


class Outbox:
    """Messages on their way to the worker; never blocks until `drain`."""

    def __init__(self, pipe: socket.socket) -> None:
        self.pipe = pipe
        self.kept: deque[bytes] = deque()
        self.kept_bytes = 0
        self.queue: deque[memoryview] = deque()
        self.queued_bytes = 0

    @property
    def is_full(self) -> bool:
        return self.queued_bytes > MOST_UNHEARD

    def keep(self, message: Message) -> None:
        """Say this later."""
        packed = pack(message)
        self.kept.append(packed)
        self.kept_bytes += len(packed)
        if self.kept_bytes > KEEP_BYTES:
            self.release(len(self.kept))

    def release(self, count: int) -> None:
        """Say the oldest `count` of what was kept."""
        for _ in range(min(count, len(self.kept))):
            packed = self.kept.popleft()
            self.kept_bytes -= len(packed)
            self.queue_up(packed)

    def say(self, message: Message) -> None:
        """Say this as soon as the worker listens."""
        self.queue_up(pack(message))

    def queue_up(self, packed: bytes) -> None:
        self.queue.append(memoryview(packed))
        self.queued_bytes += len(packed)

    def flush(self) -> bool:
        """Give the pipe what it takes; whether anything is left."""
        try:
            while self.queue:
                n_sent = self.pipe.send(self.queue[0])
                self.queued_bytes -= n_sent
                self.queue[0] = self.queue[0][n_sent:]
                if not self.queue[0]:
                    self.queue.popleft()
        except BlockingIOError:
            pass
        return bool(self.queue)

    def drain(self) -> None:
        """Say everything, and wait until it is heard."""
        self.release(len(self.kept))
        self.pipe.setblocking(True)
        while self.queue:
            self.pipe.sendall(self.queue.popleft())


def reply_of(turn: Turn, error: str, clock_offset: int) -> Reply:
    """A turn as the worker gets it. Columns are joined here once, so that the loop only ever appends."""
    return Reply(
        conversation=turn.index,
        turn=turn.turn,
        t_due=turn.t_due,
        t_sent=turn.t_sent,
        error=error,
        clock_offset=clock_offset,
        read_at=array("q", [read_at for read_at, _, _ in turn.reads]).tobytes(),
        kernel_at=b"".join([raw_stamp(ancillary) for _, ancillary, _ in turn.reads]),
        sizes=array("q", [len(data) for _, _, data in turn.reads]).tobytes(),
        data=b"".join([data for _, _, data in turn.reads]),
    )
