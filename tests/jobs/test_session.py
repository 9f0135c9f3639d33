"""One life of an engine: the real session, process owner, load client and HTTP, on the simulated engine."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import psutil
import pytest

from jobs.control import SessionControl
from jobs.engines.process import MARKER
from jobs.session import Event, SessionLog, SessionSite, end_of, run_session
from jobs.spec import Cell, CellOrder, Deployment, Draft, Engine, Load, Model, Sampling, SessionSpec, Workload
from storage.rows import CellBatch, CellResult, SessionRow

BYTES = Model(name="bytes", path="jobs/workloads/data/bytes")


def session_of(*loads: Load, draft: Draft | None = None, **args: object) -> SessionSpec:
    engine = Engine(name="simulated", device="cpu", batch=8, start_timeout_s=30, args={"step_ms": 2.0, **args})
    deployment = Deployment(BYTES, engine, draft or Draft(method="ngram", k=3))
    workload = Workload(limit=4, output_limit=12)
    orders = tuple(CellOrder(Cell(deployment, workload, Sampling(), load, repeat), 1) for repeat, load in enumerate(loads))
    return SessionSpec("a-session", "an-invocation", deployment, orders, 0.0)


def run(spec: SessionSpec, control: SessionControl | None = None, site: SessionSite | None = None) -> list[Event]:
    return list(run_session(spec, site or SessionSite(), control or SessionControl()))


def cells_of(events: list[Event]) -> list[CellResult]:
    return [event for event in events if isinstance(event, CellResult)]


def sessions_of(events: list[Event]) -> list[SessionRow]:
    return [event for event in events if isinstance(event, SessionRow)]


def engines_alive() -> list[int]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARKER, "").startswith("specsweep-a-session"):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


@pytest.fixture(autouse=True)
def _no_engine_outlives_its_session() -> Iterator[None]:
    yield
    assert engines_alive() == []


def test_a_session_yields_ready_then_each_cell_then_how_it_ended(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "a-session.log"

    events = run(session_of(Load(), Load(concurrency=4)), site=SessionSite(log_path=str(log), log_name="logs/x.log"))

    assert [type(event) for event in events] == [SessionRow, CellResult, CellResult, SessionRow]
    ready, ended = sessions_of(events)
    assert (ready.status, ready.ended_s, ended.status) == ("ok", None, "ok")
    assert ended.session_id == ready.session_id
    assert ended.ended_s is not None
    assert ready.ready_s is not None
    assert ended.ended_s > ready.ready_s > 0
    assert ready.simulated
    assert ready.log == "logs/x.log"
    assert "Uvicorn running" in log.read_text()


def test_what_the_engine_streamed_is_in_the_rows() -> None:
    result = cells_of(run(session_of(Load(concurrency=2))))[0]

    cell = result.cell
    streamed = sum(len(request.output_ids) for request in result.requests)
    assert (cell.status, cell.error) == ("ok", "")
    assert cell.counters_after["output_tokens"] - cell.counters_before["output_tokens"] == streamed > 0
    assert json.loads(cell.cell_json)["deployment"]["draft"]["k"] == 3
    for request in result.requests:
        assert sum(request.chunk_tokens) == len(request.output_ids)
        assert len(request.step_drafted) == len(request.step_accepted) > 0
        assert max(request.step_drafted) <= 3
        assert request.error == ""


def test_warm_up_requests_are_never_rows() -> None:
    result = cells_of(run(session_of(Load(warmup=3))))[0]

    assert {request.category for request in result.requests}.isdisjoint({"warmup"})
    assert result.cell.counters_before["requests"] == 3


def test_the_log_of_a_node_without_the_runs_folder_comes_as_the_last_event() -> None:
    events = run(session_of(Load()))

    assert isinstance(events[-1], SessionLog)
    assert "Uvicorn running" in events[-1].text


@pytest.mark.parametrize(
    ("most", "told"),
    [
        pytest.param(13, "start\nall\n\ufffd\ufffd\n", id="all of a short one"),
        pytest.param(5, "[8 bytes before this are left out]\nl\n\ufffd\ufffd\n", id="the end of a long one"),
    ],
)
def test_of_a_long_log_the_end_is_kept(most: int, told: str) -> None:
    assert end_of(BytesIO(b"start\nall\n\xff\xfe\n"), most) == told


def test_an_engine_that_does_not_start_is_one_failed_row_with_the_tail_of_its_log() -> None:
    events = run(session_of(Load(), fail_at_start=True))

    (row,) = sessions_of(events)
    assert cells_of(events) == []
    assert (row.status, row.error_kind) == ("failed", "engine_did_not_start")
    assert row.error.endswith("simulated failure at start")


def test_an_engine_under_a_wrong_name_is_refused_before_a_cell_is_measured() -> None:
    events = run(session_of(Load(), wrong_name=True))

    (row,) = sessions_of(events)
    assert cells_of(events) == []
    assert (row.status, row.error_kind) == ("failed", "wrong_engine")


def test_an_engine_that_dies_in_a_cell_fails_that_cell_and_ends_the_session() -> None:
    events = run(session_of(*[Load(warmup=0)] * 3, crash_after_requests=7))

    first, second = cells_of(events)
    assert (first.cell.status, second.cell.status) == ("ok", "failed")
    assert second.cell.error_kind == "engine_died"
    assert any(request.error for request in second.requests)
    assert sessions_of(events)[-1].error_kind == "engine_died"


def test_an_engine_that_hangs_in_a_cell_fails_it_and_ends_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.measure.HEALTH_LIMIT_S", 1.0)
    hasty = Load(request_timeout_s=1.0, warmup=0, concurrency=4)

    events = run(session_of(hasty, hasty, hang_after_requests=2))

    (result,) = cells_of(events)
    assert (result.cell.status, result.cell.error_kind) == ("failed", "engine_hung")
    assert any("1 s" in request.error for request in result.requests if request.error)
    assert sessions_of(events)[-1].error_kind == "engine_hung"


def test_a_prompt_that_does_not_fit_fails_its_cell_with_the_numbers() -> None:
    spec = session_of(Load())
    small = Engine(name="simulated", device="cpu", max_length=64)
    deployment = Deployment(BYTES, small, Draft())
    cell = Cell(deployment, Workload(limit=1), Sampling(), Load())

    (result,) = cells_of(run(SessionSpec(spec.session_id, "i", deployment, (CellOrder(cell, 1),), 0.0)))

    assert (result.cell.status, result.cell.error_kind) == ("failed", "bad_input")
    assert "64 tokens" in result.cell.error


def test_a_cell_whose_time_is_up_fails_with_what_it_has_and_the_session_goes_on() -> None:
    slow = Load(warmup=0, cell_timeout_s=1.0)

    first, second = cells_of(run(session_of(slow, Load(warmup=0, cell_timeout_s=60.0), step_ms=60.0)))

    assert (first.cell.status, first.cell.error_kind) == ("failed", "cell_timed_out")
    assert first.requests
    assert first.requests[-1].error == "the cell's time was up"
    assert first.cell.duration_ns > 0
    assert second.cell.status == "ok"


# ------------------------------------------------------------------------------------------------------ a cell in batches

IN_BATCHES = SessionSite(rows_a_batch=2)


def batches_of(events: list[Event]) -> list[CellBatch]:
    return [event for event in events if isinstance(event, CellBatch)]


def test_a_long_cells_rows_come_while_it_runs_and_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.telemetry.SLOW_PERIOD_S", 0.02)
    spec = session_of(Load(), Load())
    events = run(spec, site=IN_BATCHES)
    in_memory = cells_of(run(spec))

    n_requests = len(in_memory[0].requests)
    of_a_cell = [CellBatch] * (n_requests // 2) + [CellResult]
    assert [type(event) for event in events] == [SessionRow, *of_a_cell, *of_a_cell, SessionRow, SessionLog]
    for order, result, whole in zip(spec.orders, cells_of(events), in_memory, strict=True):
        parts = [item for item in batches_of(events) if item.cell_id == order.cell.id]
        assert [(item.part, item.attempt, len(item.requests)) for item in parts] == [(i, 1, 2) for i in range(len(parts))]
        assert result.n_batches == len(parts) > 1
        rows = sorted([row for item in [*parts, result] for row in item.requests], key=lambda row: (row.index, row.turn))
        assert [(row.index, row.output_ids) for row in rows] == [(row.index, row.output_ids) for row in whole.requests]
        times = [row.t_ns for item in [*parts, result] for row in item.telemetry]
        assert times == sorted(set(times)) != []
        assert {row.cell_id for item in [*parts, result] for row in item.telemetry} == {order.cell.id}
        assert result.cell.status == "ok"
        assert len(result.cell.late_send_ns) == len(whole.cell.late_send_ns) == n_requests


def test_telemetry_that_piles_up_comes_without_waiting_for_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.telemetry.SLOW_PERIOD_S", 0.02)
    monkeypatch.setattr("jobs.measure.SAMPLES", 5)
    events = run(session_of(Load(warmup=0), step_ms=60.0))

    assert batches_of(events) != []
    assert any(len(item.telemetry) >= 5 for item in batches_of(events))  # what came before the start counts, and is no row
    assert all(not item.requests for item in batches_of(events))
    assert cells_of(events)[0].n_batches == len(batches_of(events))
    assert len(cells_of(events)[0].requests) >= 4


def test_an_engine_that_dies_after_some_batches_leaves_them_to_its_failed_cell() -> None:
    events = run(session_of(Load(warmup=0), crash_after_requests=3), site=IN_BATCHES)

    (result,) = cells_of(events)
    assert (result.cell.status, result.cell.error_kind, result.n_batches) == ("failed", "engine_died", 2)
    rows = [row for item in [*batches_of(events), result] for row in item.requests]
    assert {row.index for row in rows} == {0, 1, 2, 3}
    assert len({(row.index, row.turn) for row in rows}) == len(rows)
    assert 0 < len([row for row in rows if not row.error]) < len(rows)


def test_a_cell_whose_time_is_up_after_some_batches_keeps_them() -> None:
    events = run(session_of(Load(warmup=0, cell_timeout_s=1.0), step_ms=60.0), site=SessionSite(rows_a_batch=1))

    (result,) = cells_of(events)
    assert (result.cell.status, result.cell.error_kind) == ("failed", "cell_timed_out")
    assert result.n_batches == len(batches_of(events)) > 0
    assert any(row.error == "the cell's time was up" for item in batches_of(events) for row in item.requests)


def test_a_cell_of_which_every_batch_failed_has_failed_for_the_commonest_reason() -> None:
    events = run(session_of(Load(warmup=0), error_every=1), site=IN_BATCHES)

    (result,) = cells_of(events)
    assert (result.cell.status, result.cell.error_kind, result.n_batches) == ("failed", "cell_failed", 2)
    assert (
        "No request of the cell was answered: the engine gave up: RuntimeError: simulated error in request"
        in result.cell.error
    )


def test_leaving_a_session_in_the_middle_of_a_cell_leaves_no_engine() -> None:
    events = run_session(session_of(Load(warmup=0), step_ms=60.0), SessionSite(rows_a_batch=1), SessionControl())
    assert isinstance(next(events), SessionRow)
    assert engines_alive() != []
    events.close()
    assert engines_alive() == []


def test_stop_after_cell_finishes_the_running_cell() -> None:
    control = SessionControl()
    events: list[Event] = []
    for event in run_session(session_of(Load(), Load(), Load()), SessionSite(), control):
        events.append(event)
        if isinstance(event, SessionRow) and event.ended_s is None:
            threading.Timer(0.2, control.stop_after_cell).start()

    assert [result.cell.status for result in cells_of(events)] == ["ok"]
    assert sessions_of(events)[-1].error == ""


def test_stop_now_kills_the_engine_and_records_nothing_of_the_running_cell() -> None:
    control = SessionControl()
    slow = session_of(Load(), Load(), step_ms=500.0)
    began = time.monotonic()
    events: list[Event] = []
    for event in run_session(slow, SessionSite(), control):
        events.append(event)
        if isinstance(event, SessionRow) and event.ended_s is None:
            threading.Timer(1.0, control.stop_now).start()

    assert cells_of(events) == []
    assert time.monotonic() - began < 25


def test_progress_tells_the_phase_and_the_cell() -> None:
    control = SessionControl()
    seen = set()
    spec = session_of(Load(), step_ms=30.0)

    def watch() -> None:
        while not done.wait(0.02):
            seen.add((control.progress().phase, control.progress().cell_id))

    done = threading.Event()
    watcher = threading.Thread(target=watch)
    watcher.start()
    list(run_session(spec, SessionSite(), control))
    done.set()
    watcher.join()

    cell_id = spec.orders[0].cell.id
    assert {("starting", ""), ("warming", cell_id), ("measuring", cell_id)} <= seen
