"""Owns how run folders become tables and views of one DuckDB connection. Does not own metrics: they are in `views/`.

Nothing is written: the database is in memory, the rows stay in their Parquet files. What is small (a row a session or
try) is read once, so that one connection sees one state of a run that is still being written.
"""

from __future__ import annotations

import contextlib
import glob
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import duckdb

from storage.asked import asked_of, table_sql
from storage.errors import BadRun
from storage.glossary import write_glossary
from storage.mirror import local_files
from storage.places import Place, is_url, place_of
from storage.rows import SCHEMA_VERSION
from storage.tables import SCHEMAS

VIEW_FILES = [
    Path(__file__).parent / "views" / f"{topic}.sql"
    for topic in (
        "formulas",
        "requests",
        "acceptance",
        "lengths",
        "metrics",
        "outputs",
        "cells",
        "comparisons",
        "projections",
        "memory",
        "drafts",
        "runs",
        "costs",
        "crossovers",
        "frontier",
        "comparability",
        "verdicts",
        "shapes",
    )
]
"""Every metric and every verdict, once, by topic; each builds on those before it."""

_IS_TORN = re.compile("magic bytes|too small|parquet file|corrupt|deserial", re.IGNORECASE)

_MADE = re.compile(r"^CREATE VIEW (\w+)", re.MULTILINE)

OF_CELLS = ("requests", "scored", "telemetry")
"""Folders with rows of tries, which count once their cell's row is there."""

PUBLIC_VIEWS = (
    "runs",
    "verdicts",
    "checklist",
    "cell_verdicts",
    "comparability",
    "warnings",
    "shape_checks",
    "cells",
    "categories",
    "speedups",
    "draft_speedups",
    "drafts",
    "draft_categories",
    "curves",
    "crossovers",
    "frontier",
    "best_drafts",
    "goodput",
    "causes",
    "acceptance",
    "category_acceptance",
    "acceptance_lengths",
    "step_lengths",
    "projections",
    "projected_lengths",
    "divergences",
    "distributions",
    "scored",
    "memory",
    "gpu_health",
    "costs",
    "draft_costs",
    "parts",
    "inflations",
    "requests",
    "chunks",
    "steps",
    "telemetry",
    "sessions",
    "versions",
    "attempts",
    "thresholds",
    "remedies",
    "advice",
    "glossary",
)
"""What a user is told about; the rest of `views/` are steps on the way."""

_INTERVALS = ("draft_speedups",)
_REASONS = ("draft_speedups", "causes", "best_drafts")
TOWERS = {
    **dict.fromkeys(("curves", "crossovers", "best_drafts", "causes"), _INTERVALS),
    **dict.fromkeys(("verdicts", "checklist", "shape_checks"), _REASONS),
}
"""View → those that it builds on more than once, and that take long."""


def open_runs(patterns: Iterable[Place | str]) -> duckdb.DuckDBPyConnection:
    """One connection with every view over all the runs, each row with its `run`. The caller closes it (or uses `with`).

    A pattern is a run's folder or a glob, here or in a bucket (`s3://`, `gs://`). Raises `BadRun` when one matches nothing,
    is no run, cannot be read, or is newer.
    """
    runs = open_records(patterns)
    try:
        with readable_files():
            _create_views(runs)
            write_glossary(runs)
    except BaseException:
        runs.close()
        raise
    return runs


def settle(runs: duckdb.DuckDBPyConnection, *names: str) -> None:
    """Compute these views once, in this order: from now on they are tables, and what builds on them reads those."""
    for name in names:
        runs.execute(f"CREATE TABLE settled AS FROM {name}").fetchall()
        runs.execute(f"DROP VIEW {name}; ALTER TABLE settled RENAME TO {name}").fetchall()


def settle_for(runs: duckdb.DuckDBPyConnection, names: Iterable[str]) -> None:
    """Compute once what several of these views would each compute anew: the intervals of all drafts."""
    towers = [TOWERS[name] for name in names if name in TOWERS]
    left = {name for (name,) in runs.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal").fetchall()}
    settle(runs, *(name for name in max(towers, key=len, default=()) if name in left))


def views_sql() -> str:
    """The statements that make every view."""
    return "\n".join(file.read_text(encoding="utf-8") for file in VIEW_FILES)


def open_records(patterns: Iterable[Place | str]) -> duckdb.DuckDBPyConnection:
    """As `open_runs`, with only what was recorded: `recorded_sessions`, `recorded_cells`, ..., which is quicker."""
    folders = find_runs(patterns)
    runs = duckdb.connect()
    try:
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
        return f"There is no run in {folder}. Start one: python sweep.py +grid=quickstart"
    return f"Runs there: {', '.join(runs)}. Use one of them."


def _record(runs: duckdb.DuckDBPyConnection, folders: Sequence[Place]) -> None:
    names = _names(folders)
    asked = [asked_of(folder, name) for folder, name in names.items()]
    runs.execute(table_sql(asked), [value for row in asked for value in row]).fetchall()
    for kind in ("sessions", "cells"):
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


def _create_views(runs: duckdb.DuckDBPyConnection) -> None:
    """Run `views/`, with an empty table in the place of each view that is there already.

    A view is bound when it is made, with all that it builds on: without this a tower of views takes seconds of CPU, and
    each mention of `recorded_requests` lists its files. So a *table* of `views/` may only read `recorded_sessions` and
    `recorded_cells`.
    """
    names = [f"recorded_{kind}" for kind in OF_CELLS]
    for name in names:
        _stand_in(runs, name)
    for statement in runs.extract_statements(views_sql()):
        runs.execute(statement).fetchall()
        if made := _MADE.search(statement.query):
            _stand_in(runs, made[1])
            names.append(made[1])
    for name in names:
        runs.execute(f"DROP TABLE {name}; ALTER VIEW {name}_made RENAME TO {name}").fetchall()


def _stand_in(runs: duckdb.DuckDBPyConnection, view: str) -> None:
    runs.execute(f"ALTER VIEW {view} RENAME TO {view}_made").fetchall()
    runs.execute(f"CREATE TABLE {view} AS FROM {view}_made LIMIT 0").fetchall()


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
    runs.register("typed", SCHEMAS[kind].empty_table())
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
