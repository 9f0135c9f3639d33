"""The main job on the real model: the grid that `make sweep` runs, with fewer and shorter answers, as a user types it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
RUN_LIMIT_S = 600

pytestmark = [pytest.mark.model, pytest.mark.ray, pytest.mark.timeout(RUN_LIMIT_S + 60)]


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=RUN_LIMIT_S, check=False
    )


def sweep(results: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    return command(
        "sweep.py", "+grid=quickstart", f"run.dir={results}", "workload.limit=3", "workload.output_limit=16", *overrides
    )


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    done = sweep(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def ask(results: Path, sql: str) -> list[dict[str, Any]]:
    done = command("-m", "storage.query", str(results / "quickstart"), sql, "--format", "json")
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def test_every_cell_of_the_quickstart_is_measured_and_valid_but_for_its_small_size(results: Path) -> None:
    cells = ask(results, "SELECT * FROM cells")

    assert {(cell["method"], cell["k"]) for cell in cells} >= {("none", 0), ("ngram", 3), ("ngram", 8)}
    assert {cell["repeat"] for cell in cells} == {0, 1}
    assert {cell["status"] for cell in cells} == {"ok"}
    assert all(cell["n_failed"] == 0 and cell["n_requests"] >= 3 for cell in cells)
    assert len(list((results / "quickstart" / "cells").glob("*.parquet"))) == len(cells)


def test_greedy_float32_answers_are_the_baselines(results: Path) -> None:
    assert ask(results, "SELECT DISTINCT lossless FROM cells") == [{"lossless": 1.0}]


def test_acceptance_comes_from_the_engines_own_steps_and_matches_its_counters(results: Path) -> None:
    cells = ask(results, "SELECT method, k, al, acceptance_source, reasons FROM cells WHERE method <> 'none'")

    assert {cell["acceptance_source"] for cell in cells} == {"steps"}
    assert all(1.0 <= cell["al"] <= cell["k"] + 1 for cell in cells)
    assert not any(reason in cell["reasons"] for cell in cells for reason in ("acceptance_mismatch", "steps_merged"))


def test_each_speculative_cell_has_a_speed_up_with_its_interval(results: Path) -> None:
    rows = ask(results, "SELECT * FROM speedups WHERE category = 'all' AND metric = 'user_tps'")

    speculative = ask(results, "SELECT cell_id FROM cells WHERE method <> 'none'")
    assert {row["cell_id"] for row in rows} == {cell["cell_id"] for cell in speculative}
    assert all(row["ci_low"] <= row["ratio"] <= row["ci_high"] for row in rows)


def test_the_report_and_the_sweeps_own_words_name_what_was_found(results: Path) -> None:
    report = (results / "quickstart" / "report.md").read_text()

    assert "ngram" in report
    assert "smollm2_135m" in report


def test_the_same_command_again_measures_nothing_and_says_so(results: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (results / "quickstart").rglob("*.parquet")}
    began = time.monotonic()

    done = sweep(results)

    assert done.returncode == 0
    assert "already measured" in done.stdout
    assert time.monotonic() - began < 60
    assert {path: path.stat().st_mtime_ns for path in (results / "quickstart").rglob("*.parquet")} == before


def test_a_plan_starts_nothing_and_counts_what_would_run(tmp_path: Path) -> None:
    done = sweep(tmp_path, "mode=plan")

    assert done.returncode == 0
    assert "8 cells" in done.stdout
    assert list(tmp_path.iterdir()) == []
