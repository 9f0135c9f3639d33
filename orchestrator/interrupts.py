"""Owns what signals ask for: one Ctrl-C finishes the running cells, a second stops at once, as does SIGTERM.

Does not own stopping. A handler counts and tells, no more, so that it can run anywhere; who waits asks for `level`.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

AFTER_CELL, AT_ONCE = 1, 2
SAID = {
    AFTER_CELL: "Stopping after the running cell. Ctrl-C again stops at once.",
    AT_ONCE: "Stopping at once. What was measured is kept.",
}


class Interrupts:
    """A context manager that takes SIGINT and SIGTERM over."""

    def __init__(self) -> None:
        self.level = 0
        self.on_press: Callable[[str], None] = lambda text: None
        self._before: dict[int, Any] = {}

    def listen(self) -> None:
        """Take the signals over (again: Ray takes SIGTERM for itself when it starts)."""
        for number in (signal.SIGINT, signal.SIGTERM):
            before = signal.signal(number, self._count)
            self._before.setdefault(number, before)

    def _count(self, number: int, frame: FrameType | None) -> None:
        self.level = AT_ONCE if number == signal.SIGTERM else min(self.level + 1, AT_ONCE)
        self.on_press(SAID[self.level])

    def __enter__(self) -> Interrupts:
        self.listen()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
