"""A search as a user types it, on the simulated engine: it measures a part of the grid, says why, and resumes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from storage.views import open_runs

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 300
SEARCH = [
    *("cluster.num_cpus=1", "engine=simulated", "draft=ngram", "axes.draft.k=[1,3]", "axes.load.concurrency=[1,2,3,4,6,8]"),
    *(
        "draft.args.batch_slope=0.3",
        "engine.args.step_ms=4",
        "engine.args.draft_ms=0.2",
        "engine.args.acceptance=[0.7,0.5,0.3]",
    ),
    *("workload.limit=11", "workload.output_limit=12", "run.name=searched", "search.goal=crossover", "search.coarse=2"),
]

pytestmark = [pytest.mark.ray, pytest.mark.timeout(2 * LIMIT_S)]


def sweep(results: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "sweep.py", f"run.dir={results}", *SEARCH, *overrides]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def test_a_search_measures_a_part_of_the_grid_and_the_rest_is_not_searched(tmp_path: Path) -> None:
    first = sweep(tmp_path)
    assert first.returncode == ("invalid: " in first.stdout), first.stdout + first.stderr
    assert re.search(r"of 18 cells (were enough|told nothing that is valid)", first.stdout)  # as busy as this machine is
    assert "not measured yet" not in first.stdout
    with open_runs([tmp_path / "searched"]) as runs:
        told = runs.execute("SELECT n_planned, n_ok, n_not_searched, n_missing, is_whole, search_goal FROM runs").fetchone()
        by_action = dict(runs.execute("SELECT action, count(*) FROM decisions WHERE is_current GROUP BY action").fetchall())
        measured = runs.execute(
            "SELECT count(*) FROM decisions JOIN cells USING (run, cell_id) WHERE action = 'measure'"
        ).fetchall()
    assert told is not None
    n_planned, n_ok, n_not_searched, *rest = told
    assert rest == [0, True, "crossover"]
    assert n_planned == 18 == n_ok + n_not_searched
    assert by_action["measure"] == n_ok == measured[0][0] < 18
    assert by_action["answer"] == 2

    again = sweep(tmp_path)
    assert "Everything is already measured." in again.stdout
    answers = [line for line in first.stdout.splitlines() if line.startswith("  ngram k=")]
    assert len(answers) == 2
    assert [line for line in again.stdout.splitlines() if line.startswith("  ngram k=")] == answers
