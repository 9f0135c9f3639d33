"""Owns what a run's `sweep.yaml` says of the run as a whole. Does not own the file, or the cells that it asks for."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import yaml

from storage.places import Place

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # that of libyaml, where it is there, takes a tenth of the time
COLUMNS = {
    "run": "VARCHAR",
    "folder": "VARCHAR",
    "command": "VARCHAR",
    "started_at": "VARCHAR",
    "git_commit": "VARCHAR",
    "git_dirty": "BOOLEAN",
    "n_planned": "BIGINT",
    "gpu_hour_price": "DOUBLE",
    "search_id": "VARCHAR",
    "limits": "VARCHAR",
}
"""Column of `recorded_runs` → its type."""


def asked_of(folder: Place, run: str) -> tuple[Any, ...]:
    """One row of `recorded_runs`; what an older or a torn file does not tell is None."""
    sweep = _read(folder / "sweep.yaml")
    asked, cluster = _section(sweep, "invocation"), _section(sweep, "cluster")
    told = (asked.get(name) for name in ("command", "started_at", "git_commit", "git_dirty", "n_cells"))
    limits = json.dumps(_limits(sweep), sort_keys=True)
    return (run, str(folder), *told, cluster.get("gpu_hour_price"), asked.get("search_id"), limits)


def table_sql(rows: Iterable[tuple[Any, ...]]) -> str:
    """The statement that makes the table `recorded_runs`, with a parameter for each value of its rows."""
    one = "(" + ", ".join(f"?::{kind}" for kind in COLUMNS.values()) + ")"
    return f"CREATE TABLE recorded_runs AS FROM (VALUES {', '.join(one for _ in rows)}) AS asked({', '.join(COLUMNS)})"


def _read(file: Place) -> dict[str, Any]:
    try:
        content = yaml.load(file.read_text(encoding="utf-8"), LOADER)
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return {}
    return content if isinstance(content, dict) else {}


def _limits(sweep: dict[str, Any]) -> dict[str, float]:
    """The limits of verdicts that the run asks for (`thresholds`): {} = the usual ones."""
    asked = _section(sweep, "thresholds")
    return {str(name): float(value) for name, value in asked.items() if isinstance(value, (int, float))}


def _section(content: dict[str, Any], name: str) -> dict[str, Any]:
    section = content.get(name)
    return section if isinstance(section, dict) else {}
