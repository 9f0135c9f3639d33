"""Sessions on a real Ray with the simulated engine: what comes back, what a death leaves, and that no engine is left."""

from __future__ import annotations

import gc
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import ray

from jobs.control import SessionProgress
from jobs.engines.process import MARKER
from jobs.errors import BadInput
from jobs.session import Event, SessionLog, SessionSite
from jobs.spec import Cell, SessionSpec
from orchestrator.config import compose
from orchestrator.expected import Size, expect
from orchestrator.grid import expand
from orchestrator.plan import given_up, make_plan
from orchestrator.schedule import Scheduler, connected
from orchestrator.settings import Cluster, Limits
from storage.rows import FAILED, OK, Attempt, CellBatch, CellResult, History, SessionRow, Start
from storage.runs import RunStore
from storage.views import open_records

pytestmark = [pytest.mark.ray, pytest.mark.timeout(240)]

INVOCATION = "test"
FAST = ["engine=simulated", "workload.limit=3", "workload.output_limit=8", "engine.args.step_ms=2", "repeats=2"]


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    with connected(Cluster(num_cpus=1)) as folder:
        assert folder is not None
        yield folder
    assert not folder.exists()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # Ray drops its `Popen`s unread
        gc.collect()


class Sweep:
    """The loop of the driver, with the record in memory."""

    def __init__(self, *overrides: str) -> None:
        sweep = compose([*FAST, *overrides])
        assert sweep is not None
        self.cells: list[Cell] = expand(sweep.points, sweep.grid)
        self.events: list[Event] = []
        self.progress: list[SessionProgress | None] = []
        self.level = 0

    @property
    def history(self) -> History:
        sessions = {row.session_id: row for row in self.events if isinstance(row, SessionRow)}
        starts = [Start(r.session_id, r.invocation_id, r.deployment_id, r.status, r.ready_s) for r in sessions.values()]
        return History(
            [Attempt(c.cell_id, c.attempt, INVOCATION, c.deployment_id, c.status, 1.0) for c in self.tries], starts
        )

    @property
    def tries(self) -> list:
        return [event.cell for event in self.events if isinstance(event, CellResult)]

    def plan(self) -> list[SessionSpec]:
        return make_plan(
            self.cells, self.history, Limits(), INVOCATION, expect(self.cells, History(), lambda workload: Size(1, 1, 0))
        )

    def run(self, scratch: Path, on_event: Callable[[Event, Scheduler], None] = lambda event, scheduler: None) -> None:
        with Scheduler(lambda: self.level, lambda spec, progress: self.progress.append(progress), scratch) as scheduler:
            while (plan := self.plan()) and not self.level:
                for event in scheduler.run(plan):
                    self.events.append(event)
                    on_event(event, scheduler)


def engines() -> list[psutil.Process]:
    """Processes of the engines of these tests."""
    found = []
    for process in psutil.process_iter():
        try:
            if f"-{INVOCATION}-" in process.environ().get(MARKER, "") and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def assert_no_engine_within(seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while engines() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert engines() == []


def test_our_own_ray_listens_on_loopback_only(scratch: Path) -> None:
    listening = {
        connection.laddr.ip
        for process in psutil.Process().children(recursive=True)
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening != set()
    assert {ip.removeprefix("::ffff:") for ip in listening} <= {"127.0.0.1", "::1"}


def test_our_own_ray_starts_no_process_for_onlookers(scratch: Path) -> None:
    commands = [" ".join(process.cmdline()) for process in psutil.Process().children(recursive=True)]
    assert any("raylet/raylet " in command for command in commands)
    assert [command for command in commands if "dashboard.py" in command or "monitor.py" in command] == []


def test_a_sessions_rows_come_in_order_and_its_log_last(scratch: Path) -> None:
    sweep = Sweep()
    sweep.run(scratch)
    first, *cells, last, log = sweep.events
    assert isinstance(first, SessionRow)
    assert isinstance(last, SessionRow)
    assert isinstance(log, SessionLog)
    assert (first.status, first.ended_s, last.status, last.session_id) == (OK, None, OK, first.session_id)
    assert last.ended_s is not None
    assert [cell.cell.status for cell in cells if isinstance(cell, CellResult)] == [OK, OK]
    assert "running" in log.text
    assert sweep.progress[0] == SessionProgress("placed")
    assert sweep.progress[-1] is None
    assert engines() == []


@pytest.mark.parametrize(
    "kill",
    [
        pytest.param(lambda scheduler: os.kill(engines()[0].ppid(), signal.SIGKILL), id="its process is killed"),
        pytest.param(lambda scheduler: scheduler._running[0].worker.kill(), id="Ray kills its actor"),
    ],
)
def test_a_worker_that_dies_is_a_failed_session_and_cell_and_the_sweep_goes_on(
    scratch: Path, kill: Callable[[Scheduler], None]
) -> None:
    sweep = Sweep("workload.output_limit=64", "engine.args.step_ms=10")
    killed: list[str] = []

    def kill_once(event: Event, scheduler: Scheduler) -> None:
        if isinstance(event, CellResult) and not killed:
            killed.append(event.cell.session_id)
            kill(scheduler)

    sweep.run(scratch, kill_once)
    lost = [row for row in sweep.events if isinstance(row, SessionRow) and row.status == FAILED]
    assert [(row.session_id, row.error_kind) for row in lost] == [(killed[0], "worker_died")]
    failed = [row for row in sweep.tries if row.status == FAILED]
    assert [(row.session_id, row.error_kind, row.position, row.attempt) for row in failed] == [
        (killed[0], "worker_died", 1, 1)
    ]
    assert {row.cell_id for row in sweep.tries if row.status == OK} == {cell.id for cell in sweep.cells}
    assert_no_engine_within(15)


@pytest.fixture
def in_small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    site_of = Scheduler._site

    def small(scheduler: Scheduler, spec: SessionSpec) -> SessionSite:
        return replace(site_of(scheduler, spec), rows_a_batch=1)

    monkeypatch.setattr(Scheduler, "_site", small)


def recorded(folder: Path) -> list[tuple[str, int, int, int]]:
    """Of each try: how it ended, its number, its requests, those among them that are there once."""
    with open_records([folder]) as runs:
        return runs.execute(
            "SELECT status, attempt, count(index), count(DISTINCT (index, turn)) FILTER (index IS NOT NULL) "
            "FROM recorded_cells LEFT JOIN recorded_requests USING (cell_id, attempt) "
            "GROUP BY ALL ORDER BY min(started_at)"
        ).fetchall()


@pytest.mark.usefixtures("in_small_batches")
def test_a_worker_that_dies_in_the_middle_of_a_long_cell_leaves_the_batches_that_were_written(
    scratch: Path, tmp_path: Path
) -> None:
    sweep = Sweep("repeats=1", "load.warmup=0", "workload.output_limit=32", "engine.args.step_ms=10")
    killed: list[int] = []

    def record_and_kill_once(event: Event, scheduler: Scheduler) -> None:
        if not isinstance(event, SessionLog):
            store.write(event)
        if isinstance(event, CellBatch) and not killed:
            killed.append(event.part)
            os.kill(engines()[0].ppid(), signal.SIGKILL)

    with RunStore.create(tmp_path / "run", "") as store:
        sweep.run(scratch, record_and_kill_once)
    lost, good = recorded(tmp_path / "run")
    assert lost[:2] == (FAILED, 1)
    assert good[:2] == (OK, 2)
    assert 1 <= lost[2] == lost[3] < good[2] == good[3]
    assert_no_engine_within(15)


@pytest.mark.usefixtures("in_small_batches")
def test_a_stop_at_once_in_the_middle_of_a_long_cell_leaves_nothing_of_it(scratch: Path, tmp_path: Path) -> None:
    sweep = Sweep("repeats=1", "load.warmup=0", "workload.output_limit=64", "engine.args.step_ms=10")

    def record_and_stop(event: Event, scheduler: Scheduler) -> None:
        if not isinstance(event, SessionLog):
            store.write(event)
        sweep.level = 2 if isinstance(event, CellBatch) else sweep.level

    with RunStore.create(tmp_path / "run", "") as store:
        sweep.run(scratch, record_and_stop)
    assert sweep.level == 2
    assert recorded(tmp_path / "run") == []
    assert list((tmp_path / "run" / "requests").iterdir()) != []
    RunStore.open(tmp_path / "run").close()
    assert list((tmp_path / "run" / "requests").iterdir()) == []
    assert engines() == []


@pytest.mark.usefixtures("in_small_batches")
def test_a_session_waits_for_a_driver_that_is_slow_to_write_and_loses_nothing(scratch: Path) -> None:
    sweep = Sweep("repeats=1", "load.warmup=0", "workload.limit=12", "engine.args.step_ms=1")
    phases = []

    def be_slow(event: Event, scheduler: Scheduler) -> None:
        if isinstance(event, CellBatch) and event.part == 0:
            time.sleep(2)  # by far enough to drive the cell
            phases.append(ray.get(scheduler._running[0].worker.progress()).phase)

    sweep.run(scratch, be_slow)
    assert phases == ["measuring"], "the session did not run ahead of what was taken"
    assert [row.status for row in sweep.tries] == [OK]
    parts = [event for event in sweep.events if isinstance(event, CellBatch)]
    assert [event.part for event in parts] == list(range(len(parts)))
    assert len({(row.index, row.turn) for event in parts for row in event.requests}) == len(parts) >= 12


def test_an_engine_that_dies_in_a_cell_is_tried_again_and_given_up(scratch: Path) -> None:
    sweep = Sweep("engine.args.crash_after_requests=5", "load.warmup=0")
    sweep.run(scratch)
    assert [(row.status, row.attempt, row.error_kind) for row in sweep.tries] == [
        (OK, 1, ""),
        (FAILED, 1, "engine_died"),
        (OK, 2, ""),
    ]
    assert_no_engine_within(5)


def test_an_engine_that_never_starts_is_given_up_and_the_others_run(scratch: Path) -> None:
    sweep = Sweep("axes.engine.args.fail_at_start=[true,false]", "repeats=1")
    sweep.run(scratch)
    dead = sweep.cells[0].deployment
    failed = [row for row in sweep.events if isinstance(row, SessionRow) and row.status == FAILED]
    assert [(row.deployment_id, row.error_kind) for row in failed] == [(dead.id, "engine_did_not_start")] * 2
    assert {row.deployment_id for row in sweep.tries} == {cell.deployment.id for cell in sweep.cells} - {dead.id}
    reasons = given_up(sweep.cells, sweep.history, Limits(), INVOCATION)
    assert set(reasons.values()) == {"the engine did not start in 2 tries (limits.max_starts)"}


@pytest.mark.parametrize(
    ("level", "n_tries"),
    [pytest.param(1, 2, id="after the running cell"), pytest.param(2, 1, id="at once")],
)
def test_a_stop_keeps_what_is_measured(scratch: Path, level: int, n_tries: int) -> None:
    sweep = Sweep("repeats=4", "workload.output_limit=64", "engine.args.step_ms=15")

    def stop_in_the_second_cell(spec: SessionSpec, progress: SessionProgress | None) -> None:
        if progress is not None and (progress.phase, progress.cell_id) == ("measuring", spec.orders[1].cell.id):
            sweep.level = level

    with Scheduler(lambda: sweep.level, stop_in_the_second_cell, scratch) as scheduler:
        sweep.events.extend(scheduler.run(sweep.plan()))
    assert [row.status for row in sweep.tries] == [OK] * n_tries
    assert engines() == []


def test_a_stop_does_not_wait_for_an_engine_that_still_starts(scratch: Path) -> None:
    sweep = Sweep("engine.args.start_s=60")
    began = time.monotonic()

    def press(spec: SessionSpec, progress: SessionProgress | None) -> None:
        if engines():
            sweep.level = 1

    with Scheduler(lambda: sweep.level, press, scratch) as scheduler:
        events = list(scheduler.run(sweep.plan()))
    assert [event for event in events if not isinstance(event, SessionLog)] == []
    assert time.monotonic() - began < 40
    assert engines() == []


def test_leaving_the_scheduler_stops_what_runs(scratch: Path) -> None:
    sweep = Sweep()
    with Scheduler(lambda: 0, lambda spec, progress: None, scratch) as scheduler:
        next(scheduler.run(sweep.plan()))
        assert engines() != []
    assert engines() == []


def test_what_no_node_can_hold_is_refused_before_anything_starts(scratch: Path) -> None:
    sweep = Sweep("engine.device=cuda", "engine.tp=16")
    with (
        Scheduler(lambda: 0, lambda spec, progress: None, scratch) as scheduler,
        pytest.raises(BadInput, match="tp=16 takes 16 GPUs"),
    ):
        scheduler.refuse_impossible(sweep.plan())


@pytest.mark.parametrize(
    ("crash_at", "n_workers"),
    [pytest.param(0, 1, id="which ended well"), pytest.param(13, 2, id="not one whose engine died")],
)
def test_sessions_that_follow_each_other_on_a_seat_share_a_worker(scratch: Path, crash_at: int, n_workers: int) -> None:
    axes = ["axes.engine.batch=[8,9]", "workload.output_limit=13", "repeats=1", "engine.cpus=1"]
    sweep = Sweep(*axes, f"engine.args.crash_at_output_limit={crash_at}")
    workers = []
    with Scheduler(lambda: 0, lambda spec, progress: None, scratch) as scheduler:
        for event in scheduler.run(sweep.plan()):
            if isinstance(event, SessionRow) and event.ended_s is None:
                workers.append(engines()[0].ppid())
    assert (len(workers), len(set(workers))) == (2, n_workers)
    assert engines() == []
