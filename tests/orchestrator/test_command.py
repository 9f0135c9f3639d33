"""The command as a user types it, on the simulated engine: run, resume, kill, Ctrl-C; exit codes; nothing is left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 200
GRID = ["+grid=simulated_smoke", "workload.limit=3", "workload.output_limit=16", "engine.args.step_ms=2"]
SLOW = [
    "cluster.num_cpus=1",  # one session at a time: two would each finish a cell
    "engine=simulated",
    "repeats=4",
    "workload.limit=3",
    "workload.output_limit=64",
    "engine.args.step_ms=15",
]  # 3 s a cell

pytestmark = pytest.mark.timeout(LIMIT_S + 60)


def argv(results: Path, *overrides: str) -> list[str]:
    return [sys.executable, "sweep.py", f"run.dir={results}", *overrides]


def sweep(results: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv(results, *overrides), cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def assert_all_measured(done: subprocess.CompletedProcess[str]) -> None:
    """Exit code 0; a loaded machine may make a cell invalid, and then it is 1, and said."""
    assert done.returncode == ("invalid: " in done.stdout), done.stdout + done.stderr
    assert "failed" not in done.stdout.replace("failed or are invalid", "")
    assert "not measured" not in done.stdout


@contextmanager
def running(results: Path, *overrides: str) -> Iterator[subprocess.Popen[str]]:
    """A sweep in the background; killed at the end if it still runs."""
    with subprocess.Popen(
        argv(results, *overrides), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as driver:
        try:
            yield driver
        finally:
            driver.kill()


def measured(results: Path) -> dict[str, int]:
    """The recorded cells, and when they were written."""
    return {path.name: path.stat().st_mtime_ns for path in results.glob("*/cells/*.parquet")}


def wait_for_cells(results: Path, n: int) -> None:
    deadline = time.monotonic() + LIMIT_S
    while len(measured(results)) < n and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(measured(results)) >= n


def press_ctrl_c(driver: subprocess.Popen[str], after: str) -> None:
    """Once the output says so."""
    assert driver.stdout is not None
    for line in driver.stdout:
        if after in line:
            driver.send_signal(signal.SIGINT)
            return
    pytest.fail(f"{after!r} was never said")


def rest_of(driver: subprocess.Popen[str]) -> str:
    return driver.communicate(timeout=LIMIT_S)[0]


def leftovers(processes: list[psutil.Process], folders: set[str], within_s: float) -> list[object]:
    """Processes and folders of a dead driver that are still there after a while."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        alive = [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
        found = [*alive, *(folder for folder in folders if Path(folder).exists())]
        if not found:
            return []
        time.sleep(0.2)
    return found


def family(pid: int) -> tuple[list[psutil.Process], set[str]]:
    """The descendants of a driver, and the temporary folders that their command lines name."""
    processes = psutil.Process(pid).children(recursive=True)
    folders = set()
    for process in processes:
        with suppress(psutil.Error):
            folders.update(re.findall(r"/\w+/sweep-\w+", " ".join(process.cmdline())))
    return processes, folders


@pytest.mark.ray
def test_a_sweep_is_measured_once_and_grows_by_what_is_new(tmp_path: Path) -> None:
    first = sweep(tmp_path, *GRID, "repeats=1")
    assert_all_measured(first)
    assert "[3/3]" in first.stdout
    assert "Results: " in first.stdout
    before = measured(tmp_path)
    assert len(before) == 3

    began = time.monotonic()
    again = sweep(tmp_path, *GRID, "repeats=1")
    assert_all_measured(again)
    assert measured(tmp_path) == before
    assert "Everything is already measured." in again.stdout
    assert time.monotonic() - began < 30

    grown = sweep(tmp_path, *GRID, "repeats=1", "axes.draft.k=[2,4,6]")
    assert_all_measured(grown)
    assert len(measured(tmp_path)) == 4
    assert before.items() <= measured(tmp_path).items()
    recorded = (tmp_path / "simulated_smoke" / "sweep.yaml").read_text()
    assert "axes.draft.k=[2,4,6]" in recorded
    assert "git_commit:" in recorded


@pytest.mark.ray
def test_a_killed_driver_leaves_nothing_and_the_same_command_measures_only_what_is_missing(tmp_path: Path) -> None:
    with running(tmp_path, *SLOW) as driver:
        wait_for_cells(tmp_path, 1)
        processes, folders = family(driver.pid)
        assert len(processes) > 3
        assert len(folders) == 1
        driver.kill()
    assert leftovers(processes, folders, within_s=20) == []
    before = measured(tmp_path)

    again = sweep(tmp_path, *SLOW)
    assert_all_measured(again)
    assert len(measured(tmp_path)) == 4
    assert before.items() <= measured(tmp_path).items()


@pytest.mark.ray
def test_one_ctrl_c_finishes_the_running_cell(tmp_path: Path) -> None:
    with running(tmp_path, *SLOW) as driver:
        press_ctrl_c(driver, after="[1/4]")
        processes, folders = family(driver.pid)
        said = rest_of(driver)
    assert driver.returncode == 130
    assert "Stopping after the running cell" in said
    assert "not measured yet" in said
    assert 1 <= len(measured(tmp_path)) <= 2
    assert leftovers(processes, folders, within_s=5) == []


@pytest.mark.ray
def test_two_ctrl_c_stop_at_once_and_keep_what_is_measured(tmp_path: Path) -> None:
    with running(
        tmp_path, *SLOW, "workload.output_limit=1000", "engine.args.step_ms=5", "repeats=2"
    ) as driver:  # 15 s a cell
        press_ctrl_c(driver, after="[1/2]")
        time.sleep(1.0)
        processes, folders = family(driver.pid)
        driver.send_signal(signal.SIGINT)
        began = time.monotonic()
        said = rest_of(driver)
    assert driver.returncode == 130
    assert "Stopping at once" in said
    assert len(measured(tmp_path)) == 1
    assert time.monotonic() - began < 14
    assert leftovers(processes, folders, within_s=5) == []


@pytest.mark.ray
def test_what_fails_is_listed_and_the_rest_is_measured(tmp_path: Path) -> None:
    overrides = [
        "engine=simulated",
        "workload.limit=3",
        "workload.output_limit=8",
        "axes.engine.args.fail_at_start=[false,true]",
    ]
    done = sweep(tmp_path, *overrides, "limits.max_starts=1")
    assert done.returncode == 1
    assert "not_measured: the engine did not start in 1 tries" in done.stdout
    assert "engine_did_not_start" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert len(measured(tmp_path)) == 2


def test_a_plan_writes_nothing_and_starts_nothing(tmp_path: Path) -> None:
    done = sweep(tmp_path, *GRID, "mode=plan")
    assert (done.returncode, list(tmp_path.iterdir())) == (0, [])
    assert "6 cells" in done.stdout
    assert "3 engine starts" in done.stdout


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        pytest.param(["draft.kk=3"], "sweep.py: `draft.kk` is no field of `draft`", id="a typo"),
        pytest.param(
            ["engine=simulated", "draft=ngram", "draft.k=0"], "sweep.py: `draft.k` must be at least 1", id="a rule"
        ),
        pytest.param(
            ["engine=simulated", "cluster=ray", "cluster.address=127.0.0.1:1"],
            "`cluster.address` must lead",
            id="no cluster",
        ),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(tmp_path: Path, overrides: list[str], message: str) -> None:
    done = sweep(tmp_path, *overrides)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    done = sweep(tmp_path / "results", "engine=simulated")
    tmp_path.chmod(0o700)
    assert done.returncode in (1, 2)
    assert done.stderr.count("\n") == 1
