"""Owns what the list tells of one run: how far it is, whether somebody works on it, its verdict. Does not own any number.

All of it is read from what is committed in the run's folder, so that a sweep may run on any machine that shares the folder.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import duckdb

from storage.errors import SpecSweepError
from storage.lock import LOCK_FILE
from storage.parts import MANIFEST
from storage.places import BucketPath, Place
from storage.report.headline import headline
from storage.report.reading import rows_of
from storage.runs import FOLDERS, SWEEP_FILE
from storage.views import one_line, open_runs, readable_files, settle_for

QUIET_S = 900.0
"""A run of another machine that has recorded nothing for so long is said to have stopped."""

READING, RUNNING, FINISHED, STOPPED, BROKEN = "reading", "running", "finished", "stopped", "broken"

BREAKAGES = (SpecSweepError, OSError, duckdb.Error, ValueError, LookupError, TypeError)
"""What a damaged folder may make of reading it: the list goes on with the next run."""

_LOCKS = Path("/proc/locks")
_COMMITTED = ("cells", "sessions", "decisions", SWEEP_FILE, MANIFEST)


@dataclass(frozen=True)
class Summary:
    """One run of the list. `state` is of the constants above; `word`, `tone` and `sentence` are the verdict's."""

    name: str
    state: str = READING
    started_at: str = ""
    last_cell_at: str = ""
    is_whole: bool = False
    n_planned: int = 0
    n_ok: int = 0
    n_failed: int = 0
    n_invalid: int = 0
    word: str = ""
    tone: str = "unknown"
    sentence: str = ""
    simulated: bool = False
    error: str = ""

    @property
    def is_going_on(self) -> bool:
        return self.state in (READING, RUNNING)

    def with_verdict_of(self, before: Summary) -> Summary:
        """Until the new verdict is there, the one of before stands."""
        is_open = self.state != BROKEN and self.n_ok and not self.word
        return replace(self, word=before.word, tone=before.tone, sentence=before.sentence) if is_open else self

    def at_present(self, folder: Place) -> Summary:
        """The same, with the state of this moment: a driver may come and go without recording anything."""
        return self if self.state in (READING, BROKEN) else replace(self, state=state_of(folder, is_whole=self.is_whole))


def committed(folder: Place) -> tuple[Any, ...]:
    """Differs from what it was when something was committed meanwhile; of a folder that cannot be read, says why."""
    try:
        if isinstance(folder, BucketPath):
            places = (folder, folder / "cells", folder / "sessions", folder / "decisions")
            return tuple((name, info.mtime_ns) for place in places for name, info in sorted(place.listing().items()))
        return tuple(_changed_ns(folder / name) for name in _COMMITTED)
    except OSError as error:
        return (str(error),)


def summaries_of(name: str, folder: Place) -> Iterator[Summary]:
    """What the list tells of the run: first how far it is, then, which takes longer, with its verdict."""
    try:
        with readable_files(), open_runs([folder]) as runs:
            runs.execute("SET threads = 1").fetchall()  # whoever looks on must not disturb what is measured here
            settle_for(runs, ["runs", "cells"])
            counted = _counted(name, folder, runs)
            yield counted
            if counted.n_ok:
                settle_for(runs, ["verdicts"])
                told = headline(rows_of(runs, "FROM verdicts"))
                yield replace(counted, word=told.word, tone=told.tone, sentence=told.sentence)
    except BREAKAGES as error:
        yield Summary(name, BROKEN, error=one_line(error))


def _counted(name: str, folder: Place, runs: duckdb.DuckDBPyConnection) -> Summary:
    (row,) = rows_of(runs, "FROM runs")
    return Summary(
        name,
        state_of(folder, is_whole=row["is_whole"]),
        is_whole=row["is_whole"],
        started_at=row["started_at"] or row["first_session_at"] or "",
        last_cell_at=row["last_cell_at"] or "",
        n_planned=max(row["n_planned"] or 0, row["n_cells"]),
        n_ok=row["n_ok"],
        n_failed=row["n_failed"],
        n_invalid=row["n_invalid"],
        simulated=row["simulated"],
    )


def state_of(folder: Place, *, is_whole: bool) -> str:
    """Running while its driver holds the lock, where that can be seen; else while it has recorded something lately."""
    held = _is_held(folder) if isinstance(folder, Path) else None
    if held or not is_whole:
        is_lively = held if held is not None else time.time() - _last_written_s(folder) < QUIET_S
        return RUNNING if is_lively else STOPPED
    return FINISHED


def _is_held(folder: Path) -> bool | None:
    """Whether a process of this machine drives the run; None where that cannot be told. Looks at locks and takes none."""
    lock = folder / LOCK_FILE
    try:
        found = re.fullmatch(r"process (\d+) on (.+)\n", lock.read_text())
        if not found or found[2] != socket.gethostname():
            return None
        held = [line.split() for line in _LOCKS.read_text().splitlines()]
        return any(words[1:5:3] == ["FLOCK", found[1]] and words[5].endswith(f":{lock.stat().st_ino}") for words in held)
    except (OSError, UnicodeDecodeError):
        return None


def _last_written_s(folder: Place) -> float:
    """When the run's driver last gave a sign of life; a claim in a bucket is renewed as long as it lives."""
    if isinstance(folder, BucketPath):
        infos = [info for place in (folder, folder / LOCK_FILE, folder / "cells") for info in place.listing().values()]
        return max((info.mtime_ns or 0 for info in infos), default=0) / 1e9
    return max(_changed_ns(folder / name) for name in (*FOLDERS, *_COMMITTED, LOCK_FILE)) / 1e9


def _changed_ns(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0
