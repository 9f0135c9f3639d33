"""Owns the driving of a cell in a thread of its own, and its rows in batches as they come. Does not own the driving itself.

Memory is bounded by back-pressure. Whoever takes batches slowly fills the queue; then the thread waits and hears the load
client no more; then the client keeps what it has to tell, up to `jobs.load.outbox.MOST_UNHEARD`, and then it sends no new
request. No answer under way is ever held back, and what is sent late is recorded as late.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from queue import Empty, Full, Queue
from types import TracebackType

from jobs.load.base import Measured, Traffic
from jobs.load.drive import drive
from storage.rows import RequestRow

MOST_WAITING = 4  # full batches in the queue
GLANCE_S = 0.5


class Driving:
    """A cell under way: iterate for its full batches, then ask for `measured`. Leaving the context ends it at any time."""

    def __init__(self, traffic: Traffic) -> None:
        self.t_zero_ns = 0  # 0 = the clock has not started yet
        self._queue: Queue[Sequence[RequestRow] | None] = Queue(MOST_WAITING)
        self._left = threading.Event()
        self._pool = ThreadPoolExecutor(1, "driving")
        self._future = self._pool.submit(
            self._drive,
            replace(
                traffic,
                on_requests=self._put,
                on_start=self._take_start,
                is_abandoned=lambda: self._left.is_set() or traffic.is_abandoned(),
            ),
        )

    def __enter__(self) -> Driving:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._left.set()
        self._pool.shutdown()

    def __iter__(self) -> Iterator[Sequence[RequestRow]]:
        """Full batches as they come, and an empty one whenever there was none for a while."""
        while True:
            try:
                batch = self._queue.get(timeout=GLANCE_S)
            except Empty:
                batch = ()
            if batch is None:
                return
            yield batch

    def measured(self) -> Measured:
        """The cell as a whole, with the rows that no batch had; raises what `drive` raised."""
        return self._future.result()

    def _drive(self, traffic: Traffic) -> Measured:
        try:
            return drive(traffic)
        finally:
            self._put(None)

    def _put(self, batch: Sequence[RequestRow] | None) -> None:
        """Wait for a place in the queue, as long as somebody takes from it."""
        while not self._left.is_set():
            with suppress(Full):
                self._queue.put(batch, timeout=GLANCE_S)
                return

    def _take_start(self, t_zero_ns: int) -> None:
        self.t_zero_ns = t_zero_ns
