"""What every side command does alike: a mistake is one line and exit code 2, a closed pipe is no failure."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from storage.rows import CellResult
from storage.runs import RunStore
from tests.storage.recorded import create_cell, create_request, create_row

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results") / "run"
    with RunStore.create(folder, "mode: run\n") as store:
        row = create_row(create_cell())
        store.write(CellResult(row, [create_request(row)]))
    return folder


def command(*words: str | bytes, **options: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-m", *words], cwd=ROOT, capture_output=True, check=False, **options)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("storage.query",), id="query"),
        pytest.param(("storage.query", "results", "--format", "xml"), id="query's format"),
        pytest.param(("storage.report",), id="report"),
        pytest.param(("jobs.workloads", "mini", "--limit", "few"), id="workloads"),
        pytest.param(("jobs.submit", "fly"), id="submit"),
        pytest.param(("jobs.submit", "slurm", "--nowhere", "few"), id="submit's command"),
    ],
)
def test_wrong_arguments_are_one_line(words: tuple[str, ...]) -> None:
    done = command(*words)
    (line,) = done.stderr.decode().splitlines()
    assert done.returncode == 2
    assert line.startswith(f"python -m {words[0]}")


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(
            ("storage.query", "{run}", "FROM cells", "--output", "{run}/none/x.csv", "--format", "csv"), id="query"
        ),
        pytest.param(("storage.report", "{run}", "--output", "{run}/none/report.md"), id="report"),
    ],
)
def test_an_output_in_a_folder_that_is_not_there_is_bad_input(run: Path, words: tuple[str, ...]) -> None:
    done = command(*(word.format(run=run) for word in words))
    (line,) = done.stderr.decode().splitlines()
    assert done.returncode == 2
    assert "must be in a folder that exists" in line


def test_sql_that_is_no_text_is_one_line(run: Path) -> None:
    done = command("storage.query", str(run), b"SELECT '\xff' FROM cells")
    (line,) = done.stderr.decode().splitlines()
    assert done.returncode == 2
    assert line.startswith("SQL must be text in UTF-8")


def test_sql_longer_than_the_name_of_a_file_may_be_is_sql(run: Path) -> None:
    done = command("storage.query", str(run), f"SELECT {' + '.join(['1'] * 200)} AS sum", "--format", "csv")
    assert (done.stdout.decode().split(), done.stderr) == (["sum", "200"], b"")


@pytest.mark.parametrize("words", [("storage.query", "FROM cells"), ("storage.report",)], ids=["query", "report"])
def test_a_pipe_that_closes_early_is_no_failure(run: Path, words: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed:
        line = [sys.executable, "-m", words[0], str(run), *words[1:]]
        done = subprocess.run(line, cwd=ROOT, stdout=closed, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
