"""What happens around a sweep on a cluster: the disk of the results is full, slow or read-only, and the wall clock steps.

After each: no cell lost, none measured twice, no process left, and what the command says is true.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from failing import LIMIT_S, Run, assert_true_end, end_drivers, in_mounts, on

from benchmarks.soak.pretended import Pretended, pretended
from storage.views import open_records

pytestmark = [pytest.mark.ray, pytest.mark.timeout(2 * LIMIT_S), pytest.mark.usefixtures("no_driver_is_left")]

SLOW_S = 1.0  # for each time that a file or its folder is synced
SITE = """
import os, time
told, now, now_ns = os.environ["STEPPED_CLOCK"], time.time, time.time_ns
def step():
    return int(open(told).read()) if os.path.exists(told) else 0
time.time = lambda: now() + step()
time.time_ns = lambda: now_ns() + 10**9 * step()
slow_s, fsync = float(os.environ.get("SLOW_STORAGE_S", 0)), os.fsync
if slow_s:
    os.fsync = lambda file: (time.sleep(slow_s), fsync(file))[1]
"""


BETWEEN_CELLS = """
SELECT max(began - ended) FROM (
    SELECT epoch(started_at::TIMESTAMPTZ) AS began, lag(began + duration_ns / 1e9) OVER (
        PARTITION BY session_id ORDER BY position) AS ended
    FROM recorded_cells)
"""


@pytest.fixture
def no_driver_is_left() -> Iterator[None]:
    """Whatever a test found wrong."""
    yield
    end_drivers()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pretended]:
    """In its Python processes, and the sweeps', the wall clock can be stepped, and writing can be slow."""
    site = tmp_path_factory.mktemp("site")
    (site / "sitecustomize.py").write_text(SITE)
    with pretended(1, cpus=2, gpus=4, added={"PYTHONPATH": str(site), "STEPPED_CLOCK": str(site / "step_s")}) as found:
        yield found


def assert_ended_and_went_on(done: CompletedProcess[str], why: str, run: Run, n_cells: int) -> None:
    """The first command ended for that reason in one line, and the second measured what was missing."""
    assert "first ended with 1\n" in done.stdout, done.stdout + done.stderr
    assert why in done.stderr
    assert "Traceback" not in done.stderr
    run.assert_each_once(n_cells)
    run.assert_nothing_left()


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
    assert_ended_and_went_on(done, "No space left on device", Run(kept, ()), 12)


BECOMES_READ_ONLY = """
disk=$1; shift
"$@" & driver=$!
until ls "$disk"/run/cells/*.parquet; do sleep 0.2; done &> /dev/null
mount --bind "$disk"/run/cells "$disk"/run/cells
until mount -o remount,bind,ro "$disk"/run/cells; do :; done 2> /dev/null  # busy while a file is being written there
wait $driver; echo "first ended with $?"
umount "$disk"/run/cells
"$@"; echo "second ended with $?"
"""


def test_results_that_become_read_only_end_the_command_with_one_line_and_writable_it_goes_on(
    cluster: Pretended, tmp_path: Path
) -> None:
    run = on(cluster, tmp_path, "repeats=6")
    done = in_mounts(BECOMES_READ_ONLY, [str(tmp_path), *run.argv], run.environment)
    assert_ended_and_went_on(done, "Read-only file system", Run(tmp_path, ()), 6)


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
            stepped.with_suffix(".new").write_text(str(step_s))
            stepped.with_suffix(".new").replace(stepped)  # nobody finds it empty
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


def test_storage_that_takes_seconds_for_each_file_slows_no_measurement(cluster: Pretended, tmp_path: Path) -> None:
    run = on(cluster, tmp_path, "axes.engine.args.kv_capacity_tokens=[70000,71000]", "repeats=3")
    run.environment = {**run.environment, "SLOW_STORAGE_S": str(SLOW_S)}
    code, said = run.finish(run.start())
    assert_true_end(code, said)
    run.assert_each_once(6)
    run.assert_nothing_left()
    with open_records([tmp_path / "run"]) as runs:
        (longest_gap_s,) = runs.execute("SELECT max(list_max(chunk_gap_ns)) / 1e9 FROM recorded_requests").fetchall()[0]
        (longest_wait_s,) = runs.execute(BETWEEN_CELLS).fetchall()[0]
    assert longest_gap_s < SLOW_S
    assert longest_wait_s > SLOW_S, "sessions wait for the driver between cells, and go not far ahead"
