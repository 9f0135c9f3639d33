"""Owns SQL from the page: it reads the rows of the runs that were named, within limits, and touches nothing else.

Does not own views, or what SQL may say (`storage.query`). Every question has a database to itself, in memory, that is locked
once the views are there: no question can change it, so the next one gets it too, unless something was recorded meanwhile.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from storage.errors import BadInput, SpecSweepError
from storage.mirror import copy_of
from storage.places import Place
from storage.query import ask, sql_mistakes
from storage.serve.summary import committed
from storage.views import OF_CELLS, open_runs

MEMORY = "15%"  # of the machine's, for one question; four are answered at once (`shelf`)
IDLE = 4  # databases that wait for the next question
_AGAIN_S = 0.1
_NUMBER = re.compile("u?(tiny|small|big|huge)?int(eger)?|float|double|decimal")


@dataclass(frozen=True)
class Answer:
    """Rows as text, as DuckDB writes them; null is None. `is_cut`: there are more."""

    columns: Sequence[str]
    is_number: Sequence[bool]
    rows: Sequence[Sequence[str | None]]
    is_cut: bool
    took_s: float


class Sandbox:
    """Answers questions; keeps the databases of the last ones, as long as nothing is committed to their runs."""

    def __init__(self) -> None:
        self._idle: list[tuple[Any, duckdb.DuckDBPyConnection]] = []
        self._lock = threading.Lock()

    def answer(self, folders: Sequence[Place], sql: str, *, most_rows: int, limit_s: float) -> Answer:
        """The answer to one statement over these runs. `BadInput` when it is wrong, would write, or takes too long."""
        started = time.monotonic()
        with self._database(folders) as runs, _interrupted_after(runs, limit_s), sql_mistakes():
            found = ask(runs, sql, obeyed=())
            assert found is not None  # what is not obeyed is answered
            told = found.limit(most_rows + 1).query("told", "SELECT COLUMNS(*)::VARCHAR FROM told")
            rows = told.fetchall()
            is_number = [bool(_NUMBER.fullmatch(kind.id)) for kind in found.types]
            return Answer(told.columns, is_number, rows[:most_rows], len(rows) > most_rows, time.monotonic() - started)

    @contextlib.contextmanager
    def _database(self, folders: Sequence[Place]) -> Iterator[duckdb.DuckDBPyConnection]:
        """One that nobody else asks meanwhile; one that took too long to answer is not used again."""
        key = [(str(folder), committed(folder)) for folder in folders]
        runs = self._taken(key) or self._opened(folders)
        try:
            yield runs
        except TooSlow:
            runs.close()
            raise
        except SpecSweepError:
            self._give_back(key, runs)
            raise
        self._give_back(key, runs)

    def _taken(self, key: Any) -> duckdb.DuckDBPyConnection | None:
        with self._lock:
            found = next((n for n, (known, _) in enumerate(self._idle) if known == key), None)
            return None if found is None else self._idle.pop(found)[1]

    def _opened(self, folders: Sequence[Place]) -> duckdb.DuckDBPyConnection:
        runs = open_runs(folders)
        confine(runs, folders)
        return runs

    def _give_back(self, key: Any, runs: duckdb.DuckDBPyConnection) -> None:
        with self._lock:
            self._idle.append((key, runs))
            while len(self._idle) > IDLE:
                self._idle.pop(0)[1].close()


class TooSlow(BadInput):
    """A question that took longer than it may."""


def confine(runs: duckdb.DuckDBPyConnection, folders: Sequence[Place]) -> None:
    """From now on this database reads the rows of these runs and no other file, loads nothing, and stays like that."""
    homes = [folder.resolve() if isinstance(folder, Path) else copy_of(folder) for folder in folders]
    runs.execute(
        "SET allowed_directories = $folders", {"folders": [str(home / kind) for home in homes for kind in OF_CELLS]}
    )
    for setting in (
        f"memory_limit = '{MEMORY}'",
        "temp_directory = ''",  # it would be another folder to read and write
        "python_enable_replacements = false",  # variables of this process are no tables
        "autoinstall_known_extensions = false",
        "autoload_known_extensions = false",
        "enable_external_access = false",
        "lock_configuration = true",
    ):
        runs.execute(f"SET {setting}").fetchall()


@contextlib.contextmanager
def _interrupted_after(runs: duckdb.DuckDBPyConnection, limit_s: float) -> Iterator[None]:
    """Whatever is asked in the block ends soon after this time, as `BadInput`."""
    ended, is_late = threading.Event(), threading.Event()

    def watch() -> None:
        if ended.wait(limit_s):
            return
        is_late.set()
        while not ended.wait(_AGAIN_S):  # an interrupt that finds nothing running is lost
            runs.interrupt()

    watcher = threading.Thread(target=watch, name="sql-limit", daemon=True)
    watcher.start()
    try:
        yield
    except BadInput as error:
        if is_late.is_set():
            raise TooSlow(
                f"SQL must answer within {limit_s:g} s: this did not. Ask less of it, or fewer runs, or use storage.query."
            ) from error
        raise
    finally:
        ended.set()
        watcher.join()
