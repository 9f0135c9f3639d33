"""Owns SQL from the page: it reads the rows of the runs that were named, within limits, and touches nothing else.

Does not own views, or what SQL may say (`storage.query`). Every question gets a database of its own, in memory, that is
locked once the views are there: the next question finds it as new, and sees what was recorded meanwhile.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb

from storage.errors import BadInput
from storage.mirror import copy_of
from storage.places import Place
from storage.query import ask, sql_mistakes
from storage.views import OF_CELLS, open_runs

MEMORY = "25%"  # of the machine's, for one question
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


def answer_of(folders: Sequence[Place], sql: str, *, most_rows: int, limit_s: float) -> Answer:
    """The answer to one statement over these runs. `BadInput` when it is wrong, would write, or takes too long."""
    started = time.monotonic()
    with open_runs(folders) as runs:
        confine(runs, folders)
        with _interrupted_after(runs, limit_s), sql_mistakes():
            found = ask(runs, sql, obeyed=())
            assert found is not None  # what is not obeyed is answered
            told = found.limit(most_rows + 1).query("told", "SELECT COLUMNS(*)::VARCHAR FROM told")
            rows = told.fetchall()
        is_number = [bool(_NUMBER.fullmatch(kind.id)) for kind in found.types]
        return Answer(told.columns, is_number, rows[:most_rows], len(rows) > most_rows, time.monotonic() - started)


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
            raise BadInput(
                f"SQL must answer within {limit_s:g} s: this did not. Ask less of it, or fewer runs, or use storage.query."
            ) from error
        raise
    finally:
        ended.set()
        watcher.join()
