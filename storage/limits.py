"""Owns limits of verdicts that a run asks for itself. Does not own the limits, or what they judge: both are in `views/`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import cache

import duckdb

from storage.errors import BadInput
from storage.tower import views_sql

FIXED = ("confidence",)  # a constant of the views, shown beside the limits
COUNTS = ("min_requests", "min_prompts_significant", "high_concurrency", "position_bin")
MOST_RESAMPLES = 100_000
_SHARE = re.compile("share|attainment|efficiency|false_alarms|kv_loss")


def limit_mistake(name: str, value: float) -> str:
    """What is wrong with a limit's value: its range; "" = nothing."""
    if not math.isfinite(value):
        return "must be a number that is finite"
    if name == "resamples":
        return "" if value == int(value) and 10 <= value <= MOST_RESAMPLES else f"must be whole, 10 to {MOST_RESAMPLES:,}"
    if name in COUNTS:
        return "" if value == int(value) and value >= 1 else "must be whole, and at least 1"
    if name == "min_logprob":
        return "" if value <= 0 else "must be at most 0, the logarithm of a probability"
    if _SHARE.search(name):
        return "" if 0 <= value <= 1 else "must be a share, 0 to 1"
    return "" if value >= 0 else "must be at least 0"


@cache
def limit_names() -> tuple[str, ...]:
    """The columns of `thresholds` that a run may set."""
    made = re.search(r"CREATE TABLE thresholds AS SELECT(.*?);", re.sub(r"--.*", "", views_sql()), re.DOTALL)
    return tuple(name for name in re.findall(r"\bAS (\w+)", made[1]) if name not in FIXED) if made else ()


def judge_as_asked(runs: duckdb.DuckDBPyConnection, asked: Sequence[Mapping[str, float]]) -> None:
    """Put the runs' own limits into `thresholds`. Where runs ask for different ones the usual ones stay: see `warnings`.

    Raises `BadInput` for a value that no limit can have: a run's file was written by hand.
    """
    known = [{name: run[name] for name in limit_names() if name in run} for run in asked]
    for name, value in ((name, value) for run in known for name, value in run.items()):
        if wrong := limit_mistake(name, value):
            raise BadInput(f"`thresholds.{name}` {wrong}: got {value:g} in a run's sweep.yaml. Mend it there.")
    if known and known[0] and all(run == known[0] for run in known):
        places = ", ".join(f"{name} = ?" for name in known[0])
        runs.execute(f"UPDATE thresholds SET {places}", list(known[0].values())).fetchall()
