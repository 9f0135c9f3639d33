"""One life of an engine: the real session, process owner, load client and HTTP, on the simulated engine."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from jobs.control import SessionControl
from jobs.engines.process import MARKER
from jobs.session import Event, SessionLog, SessionSite, run_session
from jobs.spec import Cell, CellOrder, Deployment, Draft, Engine, Load, Model, Sampling, SessionSpec, Workload
from storage.rows import CellResult, SessionRow

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
    assert (cell.status, cell.error, cell.acceptance_source) == ("ok", "", "steps")
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
