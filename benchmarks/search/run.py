"""Whether a search finds what the full grid tells, with how few of its cells, and what its answers cost.

    python benchmarks/search/run.py --json                          # grids of pretended machines; nothing is started
    python benchmarks/search/run.py --run results/NAME --json       # a full grid that was measured

`cells_full` and `cells_search` are means over grids; `same_answer` and `regret_pct` as in judge.py. On pretended machines
the truth is known; of a measured run it is what the full grid measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

HERE = Path(__file__).resolve()
sys.path[:0] = [str(HERE.parents[2]), str(HERE.parent)]

import machine  # noqa: E402
from judge import Truth, Verdict, judge, summed  # noqa: E402

from jobs.errors import BadInput  # noqa: E402
from jobs.spec import Cell, Deployment, Draft, Engine, Load, Model, Sampling, Workload  # noqa: E402
from orchestrator.search import choose, refuse_unsearchable  # noqa: E402
from orchestrator.search.facts import facts_of  # noqa: E402
from orchestrator.search.ground import Spot  # noqa: E402
from orchestrator.search.known import Facts  # noqa: E402
from orchestrator.settings import Goal, Search  # noqa: E402
from storage.places import place_of  # noqa: E402
from storage.views import open_runs  # noqa: E402

GOALS = (Goal.best_k, Goal.crossover, Goal.max_goodput)


class Grid(NamedTuple):
    """A full grid: its cells, what is recorded of them, and what is true of a spot, by goal."""

    cells: Sequence[Cell]
    facts: Facts
    truths: dict[Goal, Truth]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=8, help="machines that are pretended, 10 s of CPU each")
    parser.add_argument("--run", type=Path, help="the folder of a run that measured a full grid")
    parser.add_argument("--coarse", type=int, default=Search().coarse)
    parser.add_argument("--tolerance", type=float, default=Search().tolerance)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    grids = [recorded_run(args.run)] if args.run else [pretended(seed) for seed in range(args.seeds)]
    told = {goal.value: measured(grids, Search(goal, coarse=args.coarse, tolerance=args.tolerance)) for goal in GOALS}
    print(json.dumps(told) if args.json else "\n".join(_lines(told)))


def measured(grids: Sequence[Grid], search: Search) -> dict[str, Any]:
    full, asked, rounds, verdicts = [], [], [], list[Verdict]()
    for grid in grids:
        try:
            refuse_unsearchable(grid.cells, search)
        except BadInput as refusal:
            return {"refused": str(refusal)}
        choice = choose(grid.cells, grid.facts, search)
        full.append(len(grid.cells))
        asked.append(len(choice.cells))
        rounds.append(max(decision.round for decision in choice.decisions) - 1)
        verdicts += judge(search.goal, choice.answers, grid.facts, grid.truths[search.goal])
    return {
        "cells_full": fmean(full),
        "cells_search": fmean(asked),
        "cells_share": round(sum(asked) / sum(full), 3),
        "cells_share_max": round(max(a / b for a, b in zip(asked, full, strict=True)), 3),
        "rounds": fmean(rounds),
        **summed(verdicts),
    }


def pretended(seed: int) -> Grid:
    """A machine of this seed, its full grid recorded in a folder that is gone again."""
    pretence = machine.Machine.of(seed)
    with tempfile.TemporaryDirectory() as folder:
        cells = machine.record(pretence, Path(folder) / "run")
        facts = facts_of(place_of(folder) / "run", Search(), {cell.id for cell in cells}, cells)
    return Grid(cells, facts, truths_of(pretence))


def truths_of(pretence: machine.Machine) -> dict[Goal, Truth]:
    played: dict[str, float] = {}

    def speedup(spot: Spot) -> float:
        return pretence.speedup(spot.first.deployment.draft.k, spot.load)

    def goodput(spot: Spot) -> float:
        if spot.id not in played:
            played[spot.id] = machine.goodput(pretence, spot.first)
        return played[spot.id]

    return {Goal.best_k: speedup, Goal.crossover: speedup, Goal.max_goodput: goodput}


def recorded_run(folder: Path) -> Grid:
    """A run that measured a grid: it is its own truth."""
    with open_runs([folder]) as runs:
        cells = [
            cell_of(json.loads(told))
            for (told,) in runs.execute("SELECT cell_json FROM cells ORDER BY started_at").fetchall()
        ]
    facts = facts_of(place_of(folder), Search(), {cell.id for cell in cells}, cells)

    def speedup(spot: Spot) -> float:
        told = facts.seen[spot.id].speedup if spot.id in facts.seen else None
        return told.value if told else 0.0

    def goodput(spot: Spot) -> float:
        told = facts.seen[spot.id].goodput if spot.id in facts.seen else None
        return told.value if told else 0.0

    return Grid(cells, facts, {Goal.best_k: speedup, Goal.crossover: speedup, Goal.max_goodput: goodput})


def cell_of(told: dict[str, Any]) -> Cell:
    """The cell that a row was recorded of."""
    parts = told["deployment"]
    deployment = Deployment(Model(**parts["model"]), Engine(**parts["engine"]), Draft(**parts["draft"]))
    return Cell(deployment, Workload(**told["workload"]), Sampling(**told["sampling"]), Load(**told["load"]), told["repeat"])


def _lines(told: dict[str, dict[str, Any]]) -> Iterator[str]:
    columns: dict[str, dict[str, Any]] = defaultdict(dict)
    for goal, numbers in told.items():
        for name, value in numbers.items():
            columns[name][goal] = value
    yield f"{'':20}" + "".join(f"{goal:>14}" for goal in told)
    for name, values in columns.items():
        yield f"{name:20}" + "".join(f"{values.get(goal, '')!s:>14}" for goal in told)


if __name__ == "__main__":
    main()
