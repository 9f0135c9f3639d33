"""Owns how run folders become tables and views of one DuckDB connection. Does not own metrics: they are in `views/`.

Nothing is written: the database is in memory, the rows stay in their Parquet files. What is small (a row a session or
try) is read once, so that one connection sees one state of a run that is still being written.
"""

from __future__ import annotations

import contextlib
import glob
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import duckdb

from storage.asked import asked_of, table_sql
from storage.errors import BadRun
from storage.glossary import write_glossary
from storage.limits import judge_as_asked
from storage.mirror import local_files
from storage.places import Place, is_url, place_of
from storage.rows import SCHEMA_VERSION
from storage.tables import DECISIONS, SCHEMAS
from storage.tower import PUBLIC_VIEWS, create_views, settle, settle_for, views_sql

__all__ = [
    "PUBLIC_VIEWS",
    "find_runs",
    "is_run",
    "one_line",
    "open_records",
    "open_runs",
    "quoted",
    "readable_files",
    "require_run",
    "settle",
    "settle_for",
    "views_sql",
]

_IS_TORN = re.compile("magic bytes|too small|parquet file|corrupt|deserial", re.IGNORECASE)

OF_CELLS = ("requests", "scored", "telemetry")
"""Folders with rows of tries, which count once their cell's row is there."""


def open_runs(patterns: Iterable[Place | str]) -> duckdb.DuckDBPyConnection:
    """One connection with every view over all the runs, each row with its `run`. The caller closes it (or uses `with`).

    A pattern is a run's folder or a glob, here or in a bucket (`s3://`, `gs://`). Raises `BadRun` when one matches nothing,
    is no run, cannot be read, or is newer.
    """
    runs = open_records(patterns)
    try:
        with readable_files():
            create_views(runs, [f"recorded_{kind}" for kind in OF_CELLS])
            judge_as_asked(
                runs, [json.loads(told) for (told,) in runs.execute("SELECT limits FROM recorded_runs").fetchall()]
            )
            write_glossary(runs)
    except BaseException:
        runs.close()
        raise
    return runs


def open_records(patterns: Iterable[Place | str]) -> duckdb.DuckDBPyConnection:
    """As `open_runs`, with only what was recorded: `recorded_sessions`, `recorded_cells`, ..., which is quicker."""
    folders = find_runs(patterns)
    runs = duckdb.connect()
    try:
        runs.execute("SET enable_progress_bar = false")  # it would go to stdout, into a report or a table
        with readable_files():
            _record(runs, folders)
    except BaseException:
        runs.close()
        raise
    return runs


@contextlib.contextmanager
def readable_files(*, only_if_named: bool = False) -> Iterator[None]:
    """What DuckDB says of a file that it cannot read, as `BadRun` in one line; of people's own SQL, only if it names one."""
    try:
        yield
    except duckdb.Error as error:
        told = one_line(error)
        if only_if_named and not (".parquet" in told and _IS_TORN.search(told)):
            raise
        raise BadRun(
            f"Every file of a run must be readable Parquet: got {told}. Move the files of that name out of the run's "
            "cells/, requests/, telemetry/ and sessions/: without its file in cells/, a cell is measured again."
        ) from error


def find_runs(patterns: Iterable[Place | str]) -> list[Place]:
    """The run folders that the patterns name, each once, in order. Raises `BadRun` when one names none."""
    found = [folder for pattern in patterns for folder in _match(str(pattern))]
    if not found:
        raise BadRun("At least one run must be named: got none. Give a run's folder, for example results/quickstart.")
    return list({folder.resolve(): folder for folder in found}.values())


def require_run(folder: Place) -> Place:
    """The folder, if it is a run; else `BadRun` with the runs nearby."""
    try:
        if not folder.exists():
            raise BadRun(f"A run must exist: got {folder}. {_nearby(folder.parent)}")
        if not is_run(folder):
            raise BadRun(f"A run is a folder with sweep.yaml and cells/: got {folder}. {_nearby(folder)}")
        list(folder.iterdir())
    except OSError as error:
        raise BadRun(f"A run must be a readable folder: got {error.strerror} at {folder}. Check its permissions.") from error
    return folder


def is_run(folder: Place) -> bool:
    return folder.is_dir() and ((folder / "sweep.yaml").is_file() or (folder / "cells").is_dir())


def one_line(error: BaseException) -> str:
    """What an error says, in one line."""
    return " ".join(str(error).split())


def _match(pattern: str) -> Sequence[Place]:
    if is_url(pattern):
        return _match_in_bucket(pattern)
    if Path(pattern).exists() or not glob.has_magic(pattern):
        return [require_run(Path(pattern))]
    parent = next(path for path in Path(pattern).parents if not glob.has_magic(str(path)))
    runs = [path for path in sorted(parent.glob(str(Path(pattern).relative_to(parent)))) if is_run(path)]
    if not runs:
        raise BadRun(f"A pattern must match a run: got {pattern}. {_nearby(parent)}")
    return runs


def _match_in_bucket(pattern: str) -> Sequence[Place]:
    """A run, or the runs whose names match the last part."""
    place = place_of(pattern)
    if not glob.has_magic(place.name):
        return [require_run(place)]
    runs = [path for path in place.parent.glob(place.name) if is_run(path)]
    if not runs:
        raise BadRun(f"A pattern must match a run: got {pattern}. {_nearby(place.parent)}")
    return runs


def _nearby(folder: Place) -> str:
    places = [folder] if folder.is_dir() else []
    runs = sorted(str(path) for place in places for path in place.iterdir() if is_run(path))
    if not runs:
        where = "this folder" if str(folder) == "." else folder
        return f"There is no run in {where}. Start one: python sweep.py +grid=quickstart"
    return f"Runs there: {', '.join(runs)}. Use one of them."


def _record(runs: duckdb.DuckDBPyConnection, folders: Sequence[Place]) -> None:
    names = _names(folders)
    asked = [asked_of(folder, name) for folder, name in names.items()]
    runs.execute(table_sql(asked), [value for row in asked for value in row]).fetchall()
    for kind in ("sessions", "cells", "decisions"):
        runs.execute(f"CREATE TABLE recorded_{kind} AS {_select(runs, kind, names, is_mixed=True)}")
        _refuse_newer(runs, kind)
    older = runs.execute(
        f"SELECT 1 FROM recorded_cells WHERE schema_version IS DISTINCT FROM {SCHEMA_VERSION} LIMIT 1"
    ).fetchall()
    for kind in OF_CELLS:  # of committed tries only: a cell that still runs has files there too
        rows = _select(runs, kind, names, is_mixed=bool(older))
        runs.execute(
            f"CREATE VIEW recorded_{kind} AS SELECT * FROM ({rows}) SEMI JOIN recorded_cells USING (run, cell_id, attempt)"
        )


def _names(folders: Sequence[Place]) -> dict[Place, str]:
    """folder → `run`: its name, with its parent's where two would be called the same."""
    names = [folder.resolve().name for folder in folders]
    return {
        folder: name if names.count(name) == 1 else f"{folder.resolve().parent.name}/{name}"
        for folder, name in zip(folders, names, strict=True)
    }


def _select(runs: duckdb.DuckDBPyConnection, kind: str, names: dict[Place, str], *, is_mixed: bool) -> str:
    """All rows of one kind, with the columns and types of this schema whatever the files are: none yet, or older.

    Files of one schema are not opened to learn their columns: each mention of the view would open thousands of them again.
    """
    schema = DECISIONS if kind == "decisions" else SCHEMAS[kind]
    runs.register("typed", schema.empty_table())
    runs.execute(f"CREATE TABLE empty_{kind} AS FROM typed")
    runs.unregister("typed")
    parts = [f"SELECT NULL::VARCHAR AS run, * FROM empty_{kind}"]
    for folder, name in names.items():
        if files := local_files(folder, (kind,))[kind]:
            listed = ", ".join(quoted(str(path)) for path in files)
            parts.append(f"SELECT {quoted(name)} AS run, * FROM read_parquet([{listed}], union_by_name = {is_mixed})")
    return " UNION ALL BY NAME ".join(parts)


def _refuse_newer(runs: duckdb.DuckDBPyConnection, kind: str) -> None:
    newer = runs.execute(
        f"SELECT run, schema_version FROM recorded_{kind} WHERE schema_version > {SCHEMA_VERSION}"
    ).fetchall()
    if newer:
        raise BadRun(
            f"A run's schema must be known: got schema {newer[0][1]} in {newer[0][0]}. "
            f"This SpecSweep reads up to {SCHEMA_VERSION}. Update SpecSweep."
        )


def quoted(text: str) -> str:
    """The text as a literal of SQL."""
    return "'" + text.replace("'", "''") + "'"
