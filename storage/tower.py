"""Owns how the views of `views/` are made in a database, and which of them are told to users. Does not own metrics.

The rows are there already: `recorded_sessions`, `recorded_cells`, ... (`storage/views.py`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import duckdb

VIEW_FILES = [
    Path(__file__).parent / "views" / f"{topic}.sql"
    for topic in (
        "formulas",
        "variants",
        "requests",
        "decisions",
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

_MADE = re.compile(r"^CREATE VIEW (\w+)", re.MULTILINE)
_NAMED = re.compile(r"^CREATE (?:VIEW|MACRO) (\w+)", re.MULTILINE)
_COLUMNS_SQL = """
SELECT table_name, string_agg(format('"{}" {}', column_name, data_type), ', ' ORDER BY column_index)
FROM duckdb_columns() WHERE NOT internal GROUP BY ALL ORDER BY ALL
"""
_seen: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}
"""What was recorded → the columns of all views over it: to ask a view for them is a third of the work of making it."""

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
    "draft_inflations",
    "requests",
    "chunks",
    "steps",
    "telemetry",
    "sessions",
    "versions",
    "attempts",
    "decisions",
    "thresholds",
    "remedies",
    "advice",
    "glossary",
)
"""What a user is told about; the rest of `views/` are steps on the way."""

ROWS = ("requests", "chunks", "steps", "telemetry", "drafting_steps", "outputs")
"""Views with a row for each that was recorded, or with its lists: too large to keep, and quick to read where they are."""


def create_views(runs: duckdb.DuckDBPyConnection, recorded: Iterable[str]) -> None:
    """Run `views/`, with an empty table in the place of each view that is there already.

    A view is bound when it is made, with all that it builds on: without this a tower of views takes seconds of CPU, and
    each mention of `recorded_requests` lists its files. So a *table* of `views/` may only read `recorded_sessions` and
    `recorded_cells`.
    """
    names = list(recorded)
    known = _seen.setdefault(tuple(_columns(runs)), {})
    for name in names:
        _stand_in(runs, name, known)
    for statement in _statements():
        runs.execute(statement).fetchall()
        if made := _MADE.search(statement.query):
            _stand_in(runs, made[1], known)
            names.append(made[1])
    if not known:
        known.update(_columns(runs))
    for name in names:
        runs.execute(f"DROP TABLE {name}; ALTER VIEW {name}_made RENAME TO {name}").fetchall()


def _stand_in(runs: duckdb.DuckDBPyConnection, view: str, known: Mapping[str, str]) -> None:
    columns = f"({known[view]})" if view in known else f"AS FROM {view}_made LIMIT 0"
    runs.execute(f"ALTER VIEW {view} RENAME TO {view}_made").fetchall()
    runs.execute(f"CREATE TABLE {view} {columns}").fetchall()


def _columns(runs: duckdb.DuckDBPyConnection) -> list[tuple[str, str]]:
    """Each table and view with its columns, as a table is made with them."""
    return [(name, columns) for name, columns in runs.execute(_COLUMNS_SQL).fetchall()]


@cache
def _statements() -> list[duckdb.Statement]:
    with duckdb.connect() as parser:
        return list(parser.extract_statements(views_sql()))


def settle(runs: duckdb.DuckDBPyConnection, *names: str) -> None:
    """Compute these views once, in this order: from now on they are tables, and what builds on them reads those."""
    for name in names:
        runs.execute(f"CREATE TABLE settled AS FROM {name}").fetchall()
        runs.execute(f"DROP VIEW {name}; ALTER TABLE settled RENAME TO {name}").fetchall()


def settle_for(runs: duckdb.DuckDBPyConnection, names: Iterable[str]) -> None:
    """Compute once what these views would compute anew at each mention: of a tower of views that is most of the work."""
    uses = _uses()
    mentions = Counter(name for name in names if name in uses)
    for name in reversed(uses):
        mentions.update(uses[name] if mentions[name] else ())
    left = {name for (name,) in runs.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal").fetchall()}
    settle(runs, *(name for name in uses if mentions[name] > 1 and name in left.difference(ROWS)))


@cache
def _uses() -> dict[str, list[str]]:
    """View or macro → those that it builds on, as often as it names them. All come before it: a later one is a column's."""
    uses: dict[str, list[str]] = {}
    for text in re.split(r"^(?=CREATE )", re.sub(r"--.*", "", views_sql()), flags=re.MULTILINE):
        if found := _NAMED.search(text):
            uses[found[1]] = [word for word in re.findall(r"\w+", text[found.end() :]) if word in uses]
    return uses


def views_sql() -> str:
    """The statements that make every view."""
    return "\n".join(file.read_text(encoding="utf-8") for file in VIEW_FILES)
