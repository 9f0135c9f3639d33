"""Owns an engine over several nodes as its session sees it: the process of rank 0 here and the ranks elsewhere, as one.

Does not own a rank on its node (`jobs.rank`), or the way there (`orchestrator.schedule`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from jobs.engines.base import Endpoint, Meeting
from jobs.engines.process import TAIL_LINES, EngineProcess
from jobs.errors import EngineDidNotStart

POLL_S = 0.5
NEWS_LIMIT_S = 3.0  # when rank 0 has ended, a rank that was the reason is told of a moment later
STOP_LIMIT_S = 20.0  # for the others to end; longer than TERM → KILL takes


@dataclass(frozen=True)
class RankEnd:
    """A rank that has ended, for whatever reason."""

    rank: int
    why: str
    log: str = ""

    @property
    def tail(self) -> str:
        return "\n".join([f"{self.why}. Its log:", *self.log.splitlines()[-TAIL_LINES:]])


def not_everywhere(lost: RankEnd) -> EngineDidNotStart:
    return EngineDidNotStart(f"the engine must start on all its nodes: {lost.tail}")


class Ranks(Protocol):
    """The ranks above 0, wherever they are."""

    @property
    def logs(self) -> Mapping[int, str]:
        """Rank → its log, of those that have ended."""

    def prepare(self) -> None:
        """Tell them to bring the models to their disks; does not wait."""

    def unprepared(self, should_stop: Callable[[], bool]) -> RankEnd | None:
        """Waits until all have brought them, or should no more; returns the first that cannot."""

    def start(self, nonce: str, meeting: Meeting) -> None:
        """Tell them to start; does not wait."""

    def lost(self, within_s: float) -> RankEnd | None:
        """The first that has ended, waited for so long."""

    def gpus(self) -> list[dict[str, Any]]:
        """Facts of their GPUs."""

    def stop(self) -> None:
        """Tell them to end; does not wait."""

    def wait(self, limit_s: float) -> bool:
        """Until all have ended; False = not within the limit."""


class Spread:
    """A started engine: lost as soon as one of its ranks is. What is left of it then is stopped at once, so that no request
    waits for it."""

    def __init__(self, first: EngineProcess, ranks: Ranks) -> None:
        self._first = first
        self._ranks = ranks
        self._lost: RankEnd | None = None
        self._news = threading.Event()
        self._stopping = threading.Event()
        threading.Thread(target=self._watch, name="ranks", daemon=True).start()

    @property
    def pid(self) -> int:
        return self._first.pid

    def is_alive(self) -> bool:
        return self._lost is None and self._first.is_alive()

    def wait_ready(
        self, endpoint: Endpoint, health_path: str, timeout_s: float, should_stop: Callable[[], bool] = lambda: False
    ) -> float:
        """As `EngineProcess.wait_ready`; a rank that was lost is the reason that is told."""
        try:
            return self._first.wait_ready(endpoint, health_path, timeout_s, should_stop)
        except EngineDidNotStart:
            if (lost := self._told_lost()) is None:
                raise
            raise not_everywhere(lost) from None

    def log_tail(self) -> str:
        """Of the rank that was lost, and then of rank 0."""
        lost = self._told_lost()
        return "\n".join([*([lost.tail, "The log of rank 0:"] if lost else []), self._first.log_tail()])

    def stop(self) -> bool:
        """End all ranks at once. Safe to call twice, from any thread; True = all gone."""
        self._stopping.set()
        self._ranks.stop()
        is_gone = self._first.stop()
        return self._ranks.wait(STOP_LIMIT_S) and is_gone

    def _told_lost(self) -> RankEnd | None:
        if not self._first.is_alive():
            self._news.wait(NEWS_LIMIT_S)
        return self._lost

    def _watch(self) -> None:
        while not self._stopping.is_set():
            lost = self._ranks.lost(POLL_S)
            if lost and not self._stopping.is_set():
                self._lost = lost
                self._news.set()
                self._first.stop()
                return
