"""Owns which turn is sent next, and when it was due. Does not own sockets or the clock.

Closed loop: a conversation holds one of `slots` for all its turns; when it ends, the next one is due at that very moment.
Open loop: a first turn is due at its own time, however many are under way. A later turn is due when the answer before ended.
"""

from __future__ import annotations

import heapq
import sys
from collections import deque

ANY = -1
"""`t_due` of a turn that is due as soon as a slot is free."""


class Turn:
    """One turn of a conversation: the request, and every read of its answer (monotonic ns, ancillary data, bytes)."""

    __slots__ = ("has_more", "index", "is_open", "n_tries", "reads", "request", "t_due", "t_sent", "turn")

    def __init__(self, index: int, turn: int, has_more: bool, t_due: int, request: bytes) -> None:
        self.index, self.turn, self.has_more, self.t_due, self.request = index, turn, has_more, t_due, request
        self.t_sent = 0  # 0 = not yet
        self.n_tries = 0
        self.is_open = True  # it has not ended
        self.reads: list[tuple[int, list[tuple[int, int, bytes]], bytes]] = []


class Agenda:
    """Turns that wait for a slot, for their time, or for the answer before them; `ready` are those to send now."""

    def __init__(self, slots: int) -> None:
        self.slots = slots or sys.maxsize
        self.ready: deque[Turn] = deque()
        self.waiting: deque[Turn] = deque()
        self.timed: list[tuple[int, int, Turn]] = []  # a heap
        self.parked: dict[int, int] = {}  # conversation → when the answer ended that its next turn waits for
        self.expected = self.done = 0
        self.is_given_up = False  # the cell's time is up

    def add(self, turn: Turn) -> None:
        """A first turn, before the start."""
        self.expected += 1
        if turn.t_due == ANY:
            self.waiting.append(turn)
        else:
            heapq.heappush(self.timed, (turn.t_due, turn.index, turn))

    def start(self, t_zero: int) -> None:
        """Fill the slots. Times of scheduled turns were counted from `t_zero`."""
        self.timed = [(due + t_zero, index, turn) for due, index, turn in self.timed]
        for due, _, turn in self.timed:
            turn.t_due = due
        for _ in range(min(self.slots, len(self.waiting))):
            self.admit(t_zero)

    def admit(self, at: int) -> None:
        """Give a slot that is free since `at` to the next turn in line."""
        if self.waiting:
            turn = self.waiting.popleft()
            turn.t_due = at
            self.ready.append(turn)

    def call(self, now: int) -> None:
        """Make ready what is due."""
        while self.timed and self.timed[0][0] <= now:
            self.ready.append(heapq.heappop(self.timed)[2])

    def until_due(self, now: int, most: int) -> int:
        """Nanoseconds until the next scheduled turn, at most `most`."""
        return max(0, min(most, self.timed[0][0] - now)) if self.timed else most

    def end(self, turn: Turn, at: int, *, failed: bool) -> None:
        """A turn ended; its conversation waits for the next one, or is over."""
        turn.is_open = False
        if turn.has_more and not failed:
            self.parked[turn.index] = at
        else:
            self.leave(at)

    def go_on(self, turn: Turn) -> None:
        """A later turn of a conversation that waits for it."""
        turn.t_due = self.parked.pop(turn.index)
        self.ready.append(turn)

    def release(self, index: int) -> None:
        """A conversation that waits gets no further turn."""
        self.leave(self.parked.pop(index))

    def leave(self, at: int) -> None:
        """A conversation is over."""
        self.done += 1
        self.admit(at)

    @property
    def is_over(self) -> bool:
        return self.is_given_up or self.done == self.expected
