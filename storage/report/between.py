"""Owns what changed from one run to another, in words. Does not own what is compared (`between.sql`)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from storage.limits import judge_as_asked
from storage.places import Place
from storage.report.markdown import number, table
from storage.report.reading import Row, rows_of
from storage.views import open_runs, readable_files, settle

METRICS = {"user_tps": "user TPS", "output_tps": "output TPS", "ttft": "TTFT", "e2e": "E2E"}
COLUMNS = ("what", "draft", "load", "×", "repeats", "AL", "versions")
HOW_TO_READ = (
    "× = after / before, more is better, with its 95 % interval over prompts.",
    "A change counts when its interval excludes 1 even among so many comparisons (false discovery rate 5 %), it is larger "
    "than thresholds.min_change, all repeats agree and every cell is valid; invalid repeats are left out.",
)
MAX_LISTED = 200

_SQL = Path(__file__).with_suffix(".sql")


@dataclass(frozen=True)
class Change:
    """One row of `changes`: a metric of a draft and load, or a cell that is no longer valid (`metric` "")."""

    metric: str
    is_regression: bool
    is_gain: bool
    row: Row


def changes_between(before: Place, after: Place) -> list[Change]:
    """What both runs measured alike, by the later one's limits, the worst first; nothing where they share no measurement."""
    with readable_files(), open_runs([before, after]) as runs:
        runs.execute("SET VARIABLE after = (SELECT run FROM recorded_runs WHERE folder = ?)", [str(after)]).fetchall()
        ((limits,),) = runs.execute("SELECT limits FROM recorded_runs WHERE run = getvariable('after')").fetchall()
        judge_as_asked(runs, [json.loads(limits)])
        settle(runs, "cells")
        runs.execute(_SQL.read_text(encoding="utf-8")).fetchall()
        rows = rows_of(runs, "FROM changes ORDER BY ratio NULLS FIRST, metric, now.draft, now.load, now.repeat")
    return [Change(row["metric"], row["is_regression"], row["is_gain"], row) for row in rows]


def missing_of(run: Place) -> str:
    """How far a run is that is not whole, in words; "" = it is, or does not tell what it asked for."""
    with readable_files(), open_runs([run]) as runs:
        (told,) = rows_of(runs, "SELECT n_planned, is_whole, progress FROM runs")
    return str(told["progress"]) if told["n_planned"] and not told["is_whole"] else ""


def changes_page(changes: Sequence[Change]) -> str:
    """What changed, as Markdown: the regressions, then the gains."""
    return "\n".join(_lines(changes)) + "\n\n"


def _lines(changes: Sequence[Change]) -> Iterator[str]:
    before, after = changes[0].row["before"]["run"], changes[0].row["now"]["run"]
    yield from (f"# {after} against {before}", "", f"**{summary_of(changes)}**", "")
    yield from HOW_TO_READ
    for head, listed, n_more in listed_parts(changes):
        yield from ("", f"## {head}", "")
        yield from table(COLUMNS, listed)
        yield from [f"\nand {n_more} more"] if n_more else []


def listed_parts(changes: Sequence[Change]) -> list[tuple[str, list[list[str]], int]]:
    """What got worse, and what better: head, rows under `COLUMNS`, and how many more there are."""
    worse, better = [c for c in changes if c.is_regression], [c for c in reversed(changes) if c.is_gain]
    return [
        (head, [list(cells_of(change)) for change in some[:MAX_LISTED]], max(0, len(some) - MAX_LISTED))
        for head, some in (("Worse", worse), ("Better", better))
        if some
    ]


def summary_of(changes: Sequence[Change]) -> str:
    """How many got worse or better, in a sentence."""
    compared = [change for change in changes if change.metric]
    n_worse, n_better = sum(change.is_regression for change in compared), sum(change.is_gain for change in compared)
    n_lost = len(changes) - len(compared)
    lost = f"; {n_lost} {'is' if n_lost == 1 else 'are'} no longer valid" if n_lost else ""
    worse = "No regression" if not n_worse else f"{n_worse} regression" + "s" * (n_worse > 1)
    return f"{worse} beyond noise, {n_better} gain{'s' * (n_better != 1)}, in {len(compared)} comparisons{lost}."


def cells_of(change: Change) -> Iterator[str]:
    """A change as a row under `COLUMNS`."""
    row, now, before = change.row, change.row["now"], change.row["before"]
    yield METRICS.get(change.metric, "no longer valid")
    yield now["draft"] if now["draft"] == before["draft"] else f"{before['draft']} → {now['draft']}"
    others = [f"{now['isl']} input tokens"] if now["isl"] else []
    others += [now["variant"]] if now["variant"] else []
    yield ", ".join([f"{now['model']} on {now['engine']}", now["workload"], *others, now["load"]])
    if change.metric:
        yield (
            f"{row['ratio']:.2f}× [{row['ci_low']:.2f}, {row['ci_high']:.2f}]"
            if row["ci_low"] is not None
            else f"{row['ratio']:.2f}×"
        )
        yield f"{row['n_repeats']} ({row['ratio_min']:.2f} to {row['ratio_max']:.2f})"
        yield _moved(number(row["al_before"]), number(row["al"]))
    else:
        yield from (", ".join(now["reasons"] or [now["status"]]), "-", "-")
    yield _moved(str(before["engine_version"] or "-"), str(now["engine_version"] or "-"))


def _moved(before: str, after: str) -> str:
    return before if before == after else f"{before} → {after}"
