"""How long a driver plans: cells expanded, grouped, packed onto a pretended cluster, and what memory that takes.

Starts nothing.
python benchmarks/plan/run.py --cells 10000 --json
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from jobs.spec import Cell, SessionSpec
from orchestrator.config import Sweep, compose
from orchestrator.expected import Expectation
from orchestrator.grid import expand
from orchestrator.ledger import Node
from orchestrator.pack import pack
from orchestrator.plan import make_plan
from orchestrator.reconcile import expectation
from orchestrator.settings import Limits
from storage.rows import OK, Attempt, History

T = TypeVar("T")
KS, BATCHES, TPS = 10, 25, (1, 2, 4, 8)
CELLS_A_SESSION = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=64, help="with 8 GPUs each")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found = measured(args.cells, args.nodes)
    print(json.dumps(found) if args.json else "\n".join(f"{name:20} {value}" for name, value in found.items()))


def measured(n_cells: int, n_nodes: int) -> dict[str, float]:
    took: dict[str, float] = {}

    def timed(name: str, what: Callable[[], T]) -> T:
        began = time.process_time()
        result = what()
        took[name] = round(time.process_time() - began, 2)
        return result

    sweep = timed("compose_cpu_s", lambda: composed(n_cells))
    cells = timed("expand_cpu_s", lambda: expand(sweep.points, sweep.grid))
    nodes = [Node(str(number), str(number), cpus=96, gpus=8) for number in range(n_nodes)]
    history = half_done(cells)
    foreseen: Expectation = timed("expect_cpu_s", lambda: expectation(cells, history))
    plan: list[SessionSpec] = timed("plan_cpu_s", lambda: make_plan(cells, history, Limits(), "benchmark", foreseen))
    packed = timed("pack_cpu_s", lambda: pack(plan, nodes, foreseen))
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
    return {
        "cells": len(cells),
        "sessions": len(plan),
        "sessions_packed": len(packed.sessions),
        **took,
        "all_cpu_s": round(sum(took.values()), 2),
        "makespan_s": round(packed.makespan_s, 1),
        "lower_bound_s": round(packed.lower_bound_s, 1),
        "ratio": round(packed.makespan_s / packed.lower_bound_s, 3),
        "driver_peak_mb": round(peak_mb),
    }


def composed(n_cells: int) -> Sweep:
    """Deployments by TP, k and batch; in each, a cell for each concurrency."""
    batches = max(1, n_cells // (KS * len(TPS) * CELLS_A_SESSION))
    sweep = compose(
        [
            *("engine=simulated", "engine.device=cuda", "draft=ngram", f"axes.engine.tp={list(TPS)}", "baseline=''"),
            f"axes.draft.k={list(range(1, KS + 1))}",
            f"axes.engine.batch={list(range(1, batches + 1))}",
            f"axes.load.concurrency={list(range(1, CELLS_A_SESSION + 1))}",
        ]
    )
    assert sweep is not None
    return sweep


def half_done(cells: list[Cell]) -> History:
    """Every second cell is measured, some slower than others: what a resumed driver finds."""
    return History([Attempt(c.id, 1, "before", c.deployment.id, OK, 5.0 + n % 7) for n, c in enumerate(cells) if n % 2])


if __name__ == "__main__":
    main()
