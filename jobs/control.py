"""Owns how a running session is watched and stopped from other threads. Does not own the session."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class SessionProgress:
    """Where a session is: for the live view only, never recorded."""

    phase: str = "starting"  # "placed" | "fetching" | "starting" | "warming" | "measuring" | "scoring" | "stopping"
    cell_id: str = ""
    label: str = ""
    done: int = 0  # conversations of the running cell
    total: int = 0
    tokens_per_s: float = 0.0


class SessionControl:
    """Thread-safe. The session asks it whether to go on; other threads of the worker tell it to stop and read progress."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._progress = SessionProgress()
        self._stop_after_cell = threading.Event()
        self._stop_now = threading.Event()
        self._kill: Callable[[], object] | None = None

    @property
    def is_stopping(self) -> bool:
        """No further cell is to be started."""
        return self._stop_after_cell.is_set() or self._stop_now.is_set()

    @property
    def is_killed(self) -> bool:
        """The engine is being killed: what fails now is nobody's fault, and is not recorded."""
        return self._stop_now.is_set()

    def stop_after_cell(self) -> None:
        """Finish the running cell, then end the session."""
        self._stop_after_cell.set()

    def stop_now(self) -> None:
        """Kill the engine and end the session; returns when the engine is gone. The running cell is not recorded."""
        self._stop_now.set()
        with self._lock:
            kill = self._kill
        if kill is not None:
            kill()

    def own(self, kill: Callable[[], object]) -> None:
        """The session has started a process, and this is how to end it (at once, if it was to stop before it had begun)."""
        with self._lock:
            self._kill = kill
        if self.is_killed:
            kill()

    def progress(self) -> SessionProgress:
        with self._lock:
            return self._progress

    def show(self, progress: SessionProgress) -> None:
        with self._lock:
            self._progress = progress

    def show_counts(self, done: int, total: int, tokens_per_s: float) -> None:
        with self._lock:
            self._progress = replace(self._progress, done=done, total=total, tokens_per_s=tokens_per_s)
