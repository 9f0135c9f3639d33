"""Owns how the views of `views/` are made in a database, and which of them are told to users. Does not own metrics.

The rows are there already: `recorded_sessions`, `recorded_cells`, ... (`storage/views.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import duckdb

VIEW_FILES = [
    Path(__file__).parent / "views" / f"{topic}.sql"
    for topic in (
        "formulas",
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

_CELLS = ("cells",)
_INTERVALS = ("cells", "draft_speedups")
_REASONS = ("cells", "draft_speedups", "causes", "best_drafts")
TOWERS = {
    **dict.fromkeys(("speedups", "draft_speedups", "comparability", "warnings", "drafts", "projections"), _CELLS),
    **dict.fromkeys(("curves", "crossovers", "best_drafts", "causes"), _INTERVALS),
    **dict.fromkeys(("verdicts", "checklist", "shape_checks"), _REASONS),
}
"""View → those that it builds on more than once, and that take long."""


def create_views(runs: duckdb.DuckDBPyConnection, recorded: Iterable[str]) -> None:
    """Run `views/`, with an empty table in the place of each view that is there already.

    A view is bound when it is made, with all that it builds on: without this a tower of views takes seconds of CPU, and
    each mention of `recorded_requests` lists its files. So a *table* of `views/` may only read `recorded_sessions` and
    `recorded_cells`.
    """
    names = list(recorded)
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
