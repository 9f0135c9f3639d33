"""Every way to fail in a week on a cluster, killed for real: no cell is lost, none is measured twice, no process is left.

What is tested elsewhere, and not again here:
an engine that crashes at its start, or says that memory is out: test_simulated (it_fails_at_start), test_session
a deployment that never starts: test_sessions (is_given_up_and_the_others_run), test_command (what_fails_is_listed)
an engine that hangs: test_session (an_engine_that_hangs_in_a_cell); that ignores TERM at its stop: test_process
a worker's SIGKILL on one node: test_sessions (a_worker_that_dies); a driver's, on this machine's own Ray: test_command
Ctrl-C, once and twice: test_command; slow storage: test_sessions (a_driver_that_is_slow_to_write)
a disk that fills up at each of a cell's files: test_runs (a_full_disk, a_disk_that_takes_no_more_bytes)
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from benchmarks.soak.pretended import Pretended, engines_of, kill, orphans_after, pretended, roots
from benchmarks.soak.run import LEVELS, Soak
from storage.rows import FAILED, OK
from storage.views import open_records

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 240
REAP_S = 30  # a lifeline ends a tree in less; this machine may be busy

pytestmark = [pytest.mark.ray, pytest.mark.timeout(2 * LIMIT_S)]


STARTED: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def no_driver_is_left() -> Iterator[None]:
    """Whatever a test found wrong."""
    yield
    for driver in STARTED:
        with driver:
            driver.kill()
    STARTED.clear()


@dataclass
class Run:
    """Runs of the command into one folder, one after the other, and all that they leave."""

    folder: Path
    overrides: Sequence[str]
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    invocations: set[str] = field(default_factory=set)

    @property
    def argv(self) -> list[str]:
        """A cell takes a second and more: two answers of 32 tokens, unless the overrides say something else."""
        shape = {"workload.limit": 2, "workload.output_limit": 32, "engine.args.step_ms": 20}
        shape = {key: value for key, value in shape.items() if not any(f"{key}=" in said for said in self.overrides)}
        words = [f"{key}={value}" for key, value in shape.items()]
        return [
            *(sys.executable, "sweep.py", "engine=simulated", *words, f"run.dir={self.folder}", "run.name=run"),
            *self.overrides,
        ]

    def start(self, *before: str) -> subprocess.Popen[str]:
        command = [*before, *self.argv]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        driver = subprocess.Popen(command, cwd=ROOT, env=self.environment, text=True, **pipes)
        STARTED.append(driver)
        return driver

    def finish(self, driver: subprocess.Popen[str]) -> tuple[int, str]:
        with driver:
            try:
                said = driver.communicate(timeout=LIMIT_S)[0]
            finally:
                driver.kill()
        self.note()
        return driver.returncode, said

    def note(self) -> None:
        """The id of the newest run of the command: it is in the names of its engines."""
        written = self.folder / "run" / "sweep.yaml"
        if written.exists():
            self.invocations |= set(re.findall(r"^  id: \"(\w+)\"$", written.read_text(), re.MULTILINE))

    def engines(self) -> list[psutil.Process]:
        self.note()
        return roots(engines_of(self.invocations))

    def tries(self) -> list[tuple[str, str, str]]:
        """Of each recorded try: the cell, how it ended, why."""
        if not (self.folder / "run" / "cells").is_dir():
            return []
        with open_records([self.folder / "run"]) as runs:
            return runs.execute(
                "SELECT cell_id, status, error_kind FROM recorded_cells ORDER BY started_at, attempt"
            ).fetchall()

    def measured(self) -> Counter[str]:
        return Counter(cell for cell, status, _ in self.tries() if status == OK)

    def lost(self) -> list[str]:
        return [kind for _, status, kind in self.tries() if status == FAILED]

    def wait(self, until: Callable[[], object]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not until():
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def assert_each_once(self, n_cells: int) -> None:
        assert list(self.measured().values()) == [1] * n_cells

    def assert_nothing_left(self) -> None:
        assert orphans_after(self.invocations, REAP_S) == []


def assert_true_end(code: int, said: str, n_unmeasured: int = 0, *, is_ray_sound: bool = True) -> None:
    """0, or 1 with a line for each cell that is not as it should be; a busy machine may make a measured one invalid."""
    assert code == (n_unmeasured > 0 or "invalid: " in said), said
    assert not is_ray_sound or "Traceback" not in said
    assert len(re.findall(r": (?:failed|not_measured): ", said)) == n_unmeasured, said


STEPS = """
import os, time
told, now, now_ns = os.environ["STEPPED_CLOCK"], time.time, time.time_ns
def step():
    return int(open(told).read()) if os.path.exists(told) else 0
time.time = lambda: now() + step()
time.time_ns = lambda: now_ns() + 10**9 * step()
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pretended]:
    """One for all: its start is what takes time. In its Python processes, and the sweeps', the wall clock can be stepped."""
    clock = tmp_path_factory.mktemp("clock")
    (clock / "sitecustomize.py").write_text(STEPS)
    with pretended(2, cpus=2, gpus=4, added={"PYTHONPATH": str(clock), "STEPPED_CLOCK": str(clock / "step_s")}) as found:
        yield found


def on(cluster: Pretended, folder: Path, *overrides: str) -> Run:
    where = ["cluster=ray", f"cluster.address={cluster.address}", "engine.device=cuda", "engine.cpus=1", "engine.tp=2"]
    return Run(folder, [*where, *overrides], cluster.environment)


def test_an_engine_a_worker_and_a_node_that_die_in_mid_cell_cost_a_try_each_and_no_cell(
    cluster: Pretended, tmp_path: Path
) -> None:
    run = on(
        cluster, tmp_path, "axes.engine.args.kv_capacity_tokens=[70000,71000,72000]", "repeats=3", "limits.max_attempts=4"
    )
    driver = run.start()
    for number, what in enumerate(("engine", "worker", "node")):
        run.wait(lambda: len(run.measured()) > number and run.engines())  # noqa: B023
        time.sleep(0.3)
        engine = run.engines()[-1]
        if what == "node":
            cluster.lose_node(cluster.node_of(engine) or 0)
            cluster.add_node()
        else:
            assert kill(engine if what == "engine" else engine.parent())
        run.wait(lambda: len(run.lost()) > number or driver.poll() is not None)  # noqa: B023
    code, said = run.finish(driver)
    assert_true_end(code, said)
    run.assert_each_once(9)
    run.assert_nothing_left()
    assert Counter(run.lost()) == {"engine_died": 1, "worker_died": 2}


def test_a_poison_cell_is_given_up_and_the_others_of_its_deployment_are_measured(cluster: Pretended, tmp_path: Path) -> None:
    run = on(cluster, tmp_path, "axes.workload.output_limit=[8,13,16]", "engine.args.crash_at_output_limit=13")
    code, said = run.finish(run.start())
    assert_true_end(code, said, n_unmeasured=1)
    run.assert_each_once(2)
    run.assert_nothing_left()
    assert run.lost() == ["engine_died"] * 2
    assert "engine_died" in (tmp_path / "run" / "report.md").read_text()


def test_a_killed_driver_leaves_the_cluster_empty_and_another_machine_goes_on(cluster: Pretended, tmp_path: Path) -> None:
    run = on(cluster, tmp_path, "repeats=3", "workload.output_limit=64")
    driver = run.start()
    run.wait(lambda: run.measured() and run.engines())
    run.engines()[-1].suspend()  # so that the first driver lives as long as the second asks; and a hung engine must go, too
    code, said = run.finish(run.start())
    assert (code, said.count("\n")) == (2, 1)
    assert "A run has one driver at a time" in said
    kill(psutil.Process(driver.pid))
    run.finish(driver)
    run.assert_nothing_left()
    before = run.measured()
    (tmp_path / "run" / ".lock").write_text("process 4711 on another-machine\n")
    code, said = run.finish(run.start(*as_another_machine()))
    assert_true_end(code, said)
    run.assert_each_once(3)
    assert before.items() <= run.measured().items()
    run.assert_nothing_left()


def as_another_machine() -> list[str]:
    """A host name of its own, where that is allowed."""
    words = ["unshare", "--uts", "sh", "-c", 'hostname elsewhere && exec "$@"', "sh"]
    return words if is_allowed([*words, "true"]) else []


def is_allowed(command: list[str]) -> bool:
    return bool(shutil.which(command[0])) and subprocess.run(command, capture_output=True, check=False).returncode == 0


def in_mounts(script: str, words: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """A shell that may mount, in a view of the file system that only it has."""
    enter = ["unshare", "--mount"]
    if not is_allowed([*enter, "mount", "-t", "tmpfs", "none", "/mnt"]):
        pytest.skip("this user may not mount")
    command = [*enter, "bash", "-c", script, "bash", *words]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=2 * LIMIT_S, check=False
    )


FILLS_UP = """
disk=$1 kept=$2; shift 2
mount -t tmpfs -o size=300k none "$disk"
"$@"; echo "first ended with $?"
ls "$disk"/run/cells/ | wc -l
mount -o remount,size=64m "$disk"
"$@"; echo "second ended with $?"
cp -r "$disk"/. "$kept"
"""


def test_a_disk_that_is_full_ends_the_command_with_one_line_and_with_room_it_goes_on(
    cluster: Pretended, tmp_path: Path
) -> None:
    disk, kept = tmp_path / "disk", tmp_path / "kept"
    disk.mkdir()
    kept.mkdir()
    run = on(cluster, disk, "repeats=12", "workload.output_limit=200", "engine.args.step_ms=1")
    done = in_mounts(FILLS_UP, [str(disk), str(kept), *run.argv], run.environment)
    assert "first ended with 1\n" in done.stdout, done.stdout + done.stderr
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    after = Run(kept, ())
    after.assert_each_once(12)
    after.assert_nothing_left()


READ_ONLY = 'disk=$1; shift; mount -t tmpfs none "$disk" && mount -o remount,ro "$disk" && exec "$@"'


def test_results_that_cannot_be_written_are_one_line_and_nothing_starts(cluster: Pretended, tmp_path: Path) -> None:
    run = on(cluster, tmp_path)
    done = in_mounts(READ_ONLY, [str(tmp_path), *run.argv], run.environment)
    assert done.returncode in (1, 2)
    assert done.stderr.count("\n") == 1
    assert "Read-only file system" in done.stderr
    assert "Starting Ray" not in done.stdout


def test_a_clock_that_steps_changes_no_measurement(cluster: Pretended, tmp_path: Path) -> None:
    """An hour forth in the middle of one cell, two back in the middle of another; in every Python process of all nodes."""
    run = on(cluster, tmp_path, "repeats=4", "workload.output_limit=64")
    stepped = Path(cluster.environment["STEPPED_CLOCK"])
    driver = run.start()
    try:
        for n_cells, step_s in ((1, 3600), (2, -3600)):
            run.wait(lambda: len(run.measured()) >= n_cells)  # noqa: B023
            stepped.write_text(str(step_s))
        code, said = run.finish(driver)
    finally:
        stepped.unlink(missing_ok=True)
    assert_true_end(code, said, is_ray_sound=False)  # its log monitor falls over such a clock, and says so
    run.assert_each_once(4)
    run.assert_nothing_left()
    with open_records([tmp_path / "run"]) as runs:
        durations = runs.execute("SELECT min(duration_ns) / 1e9, max(duration_ns) / 1e9 FROM recorded_cells")
        shortest, longest = durations.fetchall()[0]
        gaps_ns = runs.execute("SELECT min(list_min(chunk_gap_ns)), max(list_max(chunk_gap_ns)) FROM recorded_requests")
        (least_ns, most_ns) = gaps_ns.fetchall()[0]
    assert 0 < shortest <= longest < 600
    assert 0 <= least_ns <= most_ns < 600e9


def test_a_short_soak_loses_nothing_measures_nothing_twice_and_leaves_nothing(cluster: Pretended, tmp_path: Path) -> None:
    """`python benchmarks/soak/run.py` is the long one: 2,000 cells over 16 nodes."""
    shape = {"cells": 24, "cells_a_session": 6, "cell_s": 1.5, "kill_every_s": 1.5, "seed": 1}
    soak = Soak(cluster, tmp_path, **shape, most_kills=len(LEVELS))
    told = soak.told(soak.run(), seats=4)
    assert [told[name] for name in ("cells", "measured", "lost", "duplicated", "orphans")] == [24, 24, 0, 0, 0], told
    assert told["kills"] == dict.fromkeys(LEVELS, 1), told
    assert told["exit_code"] in (0, 1), told


def test_the_loss_of_the_head_ends_the_command_and_the_run_goes_on_under_another(cluster: Pretended, tmp_path: Path) -> None:
    """The last on this cluster: it ends it."""
    run = on(cluster, tmp_path, "repeats=3", "workload.output_limit=64")
    driver = run.start()
    run.wait(lambda: run.measured() and run.engines())
    cluster.kill_head()
    code, said = run.finish(driver)
    assert code not in (0, 2), said
    assert "Traceback" not in said
    run.assert_nothing_left()
    before = run.measured()
    alone = Run(tmp_path, ["cluster.num_gpus=2", *run.overrides[2:]])
    code, said = alone.finish(alone.start())
    assert_true_end(code, said)
    alone.assert_each_once(3)
    assert before.items() <= alone.measured().items()
    alone.assert_nothing_left()
