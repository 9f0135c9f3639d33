"""Owns limits of verdicts that a run asks for itself. Does not own the limits, or what they judge: both are in `views/`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache

import duckdb

from storage.tower import views_sql


@cache
def limit_names() -> tuple[str, ...]:
    """The columns of `thresholds`."""
    made = re.search(r"CREATE TABLE thresholds AS SELECT(.*?);", re.sub(r"--.*", "", views_sql()), re.DOTALL)
    return tuple(re.findall(r"\bAS (\w+)", made[1])) if made else ()


def judge_as_asked(runs: duckdb.DuckDBPyConnection, asked: Sequence[Mapping[str, float]]) -> None:
    """Put the runs' own limits into `thresholds`. Where runs ask for different ones the usual ones stay: see `warnings`."""
    known = [{name: run[name] for name in limit_names() if name in run} for run in asked]
    if known and known[0] and all(run == known[0] for run in known):
        places = ", ".join(f"{name} = ?" for name in known[0])
        runs.execute(f"UPDATE thresholds SET {places}", list(known[0].values())).fetchall()
