"""`from storage import open_runs` as a notebook types it, and the example notebook, cell by cell."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from recorded import create_cell, record
from recorded_grid import pair

from storage import open_runs
from storage.errors import BadRun

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = ROOT / ".venvs/extras/bin/python"
NOTEBOOK = ROOT / "docs/notebook.ipynb"

RUN_CELLS = """
import ast, json, sys
space = {}
for cell in json.load(open(sys.argv[1]))["cells"]:
    if cell["cell_type"] == "code":
        *before, last = ast.parse("".join(cell["source"])).body
        is_shown = isinstance(last, ast.Expr)
        exec(compile(ast.Module(before if is_shown else [*before, last], []), "cell", "exec"), space)
        if is_shown:
            shown = eval(compile(ast.Expression(last.value), "cell", "eval"), space)
            print(type(shown).__module__.partition(".")[0], len(shown))
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clone") / "results"
    for name, step_ms in (("one", 25.0), ("two", 30.0)):
        record(folder / name, *pair(create_cell("ngram", 3), step_ms))
    return folder


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        pytest.param("results/*", ["one", "two"], id="a glob"),
        pytest.param("results/one", ["one"], id="one run"),
        pytest.param(Path("results/two"), ["two"], id="a path"),
        pytest.param(["results/one", "results/two"], ["one", "two"], id="several"),
    ],
)
def test_open_runs_takes_what_is_typed(
    pattern: str | Path | list[str], expected: list[str], results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(results.parent)
    with open_runs(pattern) as db:
        assert db.sql("SELECT run FROM runs ORDER BY run").fetchall() == [(name,) for name in expected]


def test_a_pattern_that_matches_nothing_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(BadRun, match=r"A pattern must match a run: got .*nothing"):
        open_runs(f"{tmp_path}/nothing*")


def test_nothing_that_a_notebook_says_changes_a_run(tmp_path: Path) -> None:
    run = record(tmp_path / "run", *pair(create_cell("ngram", 3), 25.0))
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with open_runs(str(run)) as db:
        db.execute("UPDATE thresholds SET min_requests = 100")
        db.execute("DELETE FROM cell_facts")
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_the_example_notebook_shows_frames_of_pandas_and_polars(tmp_path: Path) -> None:
    if not EXTRAS.exists():
        pytest.skip("there is no .venvs/extras: `make extras` makes it")
    run = record(tmp_path / "run", *pair(create_cell("ngram", 3), 25.0))
    done = subprocess.run(
        [str(EXTRAS), "-c", RUN_CELLS, str(NOTEBOOK)],
        capture_output=True,
        text=True,
        cwd=NOTEBOOK.parent,
        env={**os.environ, "RUNS": str(run)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shown = [line.split() for line in done.stdout.splitlines()]
    assert [module for module, _ in shown] == ["pandas", "polars", "pandas", "pandas"]
    assert all(int(rows) > 0 for _, rows in shown)


def test_the_notebook_has_no_outputs() -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")] == []
