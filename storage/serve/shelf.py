"""Owns the runs of one folder: which there are, and what was read of each, kept as long as nothing new is committed.

Does not own what is read (`summary.py`, `storage.report`), or how it is shown.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from storage.errors import BadInput, BadRun
from storage.places import BucketPath, Place
from storage.serve.summary import BROKEN, READING, Summary, committed, summaries_of
from storage.views import is_run

AT_ONCE, WAIT_S = 4, 10.0
"""Reports, comparisons and queries that are made at once, and how long another waits for its turn."""

KEPT = 16  # reports and comparisons, of a megabyte or so
PAUSE = 5.0
"""After a run was read, times what that took, before it is read again: looking on takes a sixth of one core at most."""

LOOK_S = 15.0  # between two looks into the folder of a bucket: each costs

Made = TypeVar("Made")


class Shelf:
    """The runs directly in a folder. One thread of its own reads them; `close` lets it end."""

    def __init__(self, folder: Place) -> None:
        """Raise `BadRun` when there is no such folder."""
        self.folder = folder
        self._known: dict[str, tuple[Any, Summary]] = {}
        self._due_s: dict[str, float] = {}
        self._wanted: queue.Queue[str | None] = queue.Queue()
        self._queued: set[str] = set()
        self._changed = threading.Condition()
        self._kept: dict[tuple[str, ...], tuple[Any, Any]] = {}
        self._turns = threading.BoundedSemaphore(AT_ONCE)
        self.runs()
        threading.Thread(target=self._read, name="shelf", daemon=True).start()

    def close(self) -> None:
        self._wanted.put(None)

    def runs(self) -> dict[str, Place]:
        """Name → folder, by name. No name of a user ever becomes a path: it is looked up here."""
        try:
            if not self.folder.is_dir():
                raise BadRun(f"The folder of the runs must exist: got {self.folder}. Try: python -m storage.serve results")
            found: list[Place] = [place for place in self.folder.iterdir() if _may_be_run(place)]
            return {place.name: place for place in sorted(found, key=lambda place: place.name)}
        except OSError as error:
            raise BadRun(
                f"The folder of the runs must be readable: got {error.strerror} at {self.folder}. Check its permissions."
            ) from error

    def named(self, names: Sequence[str]) -> list[Place]:
        """The folders of these runs, each once; of none named, of all that can be read. `BadInput` for an unknown name."""
        runs = self.runs()
        if unknown := [name for name in names if name not in runs]:
            raise BadInput(f"A run must be in {self.folder}: got {unknown[0]!r}. The list has all that are there.")
        chosen = names or [one.name for one in self.summaries(wait_s=WAIT_S) if one.state != BROKEN]
        if not chosen:
            raise BadInput(f"There is no run to read in {self.folder}. Start one: python sweep.py +grid=quickstart")
        return [runs[name] for name in dict.fromkeys(chosen)]

    def summaries(self, wait_s: float = 0.0) -> list[Summary]:
        """What is known of each run, the newest first; waits so long for those of which nothing is known."""
        runs = self.runs()
        for name, folder in runs.items():
            self._want(name, folder)
        with self._changed:
            self._changed.wait_for(lambda: all(name in self._known for name in runs), wait_s)
            known = {name: self._known[name][1] for name in runs if name in self._known}
        told = [known[name].at_present(folder) if name in known else Summary(name) for name, folder in runs.items()]
        return sorted(told, key=lambda one: (one.state == READING, one.started_at), reverse=True)

    def kept(self, kind: str, folders: Sequence[Place], make: Callable[[], Made]) -> Made:
        """What `make` makes of these runs, made anew only when something was committed to one of them."""
        key, mark = (kind, *map(str, folders)), tuple(map(committed, folders))
        found = self._kept.get(key)
        if found is None or found[0] != mark:
            with self.turn():
                found = (mark, make())
            self._kept.pop(key, None)
            self._kept[key] = found
            while len(self._kept) > KEPT:
                self._kept.pop(next(iter(self._kept)), None)
        made: Made = found[1]
        return made

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """For work that takes a while. Raises `BadInput` when too much is going on."""
        if not self._turns.acquire(timeout=WAIT_S):
            raise BadInput(f"At most {AT_ONCE} questions are answered at once: all are busy. Ask again in a while.")
        try:
            yield
        finally:
            self._turns.release()

    def _want(self, name: str, folder: Place) -> None:
        """Have it read when something was committed since, and it is time again."""
        if time.monotonic() < self._due_s.get(name, 0.0):
            return
        mark = committed(folder)
        with self._changed:
            if (name not in self._known or self._known[name][0] != mark) and name not in self._queued:
                self._queued.add(name)
                self._wanted.put(name)
            elif isinstance(folder, BucketPath):
                self._due_s[name] = time.monotonic() + LOOK_S

    def _read(self) -> None:
        while (name := self._wanted.get()) is not None:
            started = time.monotonic()
            folder = self.folder / name
            mark = committed(folder)
            for summary in summaries_of(name, folder):
                self._know(name, mark, summary)
            with self._changed:
                self._queued.discard(name)
                self._due_s[name] = time.monotonic() + PAUSE * (time.monotonic() - started)

    def _know(self, name: str, mark: Any, summary: Summary) -> None:
        with self._changed:
            before = self._known.get(name)
            self._known[name] = (mark, summary.with_verdict_of(before[1]) if before else summary)
            self._changed.notify_all()


def _may_be_run(place: Place) -> bool:
    """A run, or what was one and can't be looked into: the list says so."""
    try:
        return is_run(place)
    except OSError:
        return True
