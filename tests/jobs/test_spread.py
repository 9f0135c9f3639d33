"""An engine over several nodes as its session sees it: real processes of the simulated engine that meet, and one is lost."""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import psutil
import pytest

from jobs.control import SessionControl
from jobs.engines.base import Meeting
from jobs.engines.host.ranks import address_of, greeted
from jobs.engines.process import MARKER, free_ports
from jobs.engines.spread import RankEnd
from jobs.rank import RankOrder, prepare_rank, run_rank
from jobs.session import Event, SessionLog, SessionSite, run_session
from jobs.spec import Cell, CellOrder, Deployment, Draft, Engine, Load, Model, Sampling, SessionSpec, Workload
from storage.rows import FAILED, OK, CellResult, SessionRow

NAME = "over-nodes"


class LocalRanks:
    """Ranks above 0 in threads here, in place of actors on other nodes."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.logs: dict[int, str] = {}
        self.ends: queue.Queue[RankEnd] = queue.Queue()
        self.controls: list[SessionControl] = []
        self.threads: list[threading.Thread] = []
        self.prepared_s = 0.0  # what a download takes

    def prepare(self) -> None:
        pass

    def unprepared(self, should_stop: Callable[[], bool]) -> RankEnd | None:
        deadline = time.monotonic() + self.prepared_s
        while time.monotonic() < deadline and not should_stop():
            time.sleep(0.05)
        return prepare_rank(self.deployment, 1)

    def start(self, nonce: str, meeting: Meeting) -> None:
        for rank in range(1, self.deployment.engine.nodes):
            order = RankOrder(self.deployment, nonce, replace(meeting, rank=rank, own_address=""))
            self.controls.append(SessionControl())
            self.threads.append(threading.Thread(target=self._run, args=(order, self.controls[-1])))
            self.threads[-1].start()

    def _run(self, order: RankOrder, control: SessionControl) -> None:
        end = run_rank(order, (), control)
        self.logs[end.rank] = end.log
        self.ends.put(end)

    def lost(self, within_s: float) -> RankEnd | None:
        try:
            return self.ends.get(timeout=within_s)
        except queue.Empty:
            return None

    def gpus(self) -> list[dict[str, Any]]:
        return [{"device": "gpu0", "name": "pretended", "node": "another"}]

    def stop(self) -> None:
        for control in self.controls:
            control.stop_now()

    def wait(self, limit_s: float) -> bool:
        for thread in self.threads:
            thread.join(limit_s)
        return not any(thread.is_alive() for thread in self.threads)


def spec_over(nodes: int, **args: Any) -> SessionSpec:
    model = Model("bytes", "jobs/workloads/data/bytes")
    engine = Engine("simulated", device="cpu", tp=nodes, nodes=nodes, start_timeout_s=120, args={"step_ms": 20.0, **args})
    deployment = Deployment(model, engine, Draft())
    cell = Cell(deployment, Workload(limit=2, output_limit=40), Sampling(), Load(warmup=0))
    return SessionSpec(NAME, "now", deployment, (CellOrder(cell, 1),), 0.0)


def session_over(spec: SessionSpec, ranks: LocalRanks, control: SessionControl | None = None) -> Iterator[Event]:
    return run_session(spec, SessionSite(ranks=ranks), control or SessionControl())


def ranks_alive() -> dict[int, int]:
    """Rank → process id."""
    found = {}
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARKER, "").startswith(f"specsweep-{NAME}") and "--rank" in (
                words := process.cmdline()
            ):
                found[int(words[words.index("--rank") + 1])] = process.pid
        except psutil.Error:
            continue
    return found


@pytest.fixture(autouse=True)
def no_rank_outlives_its_session() -> Iterator[None]:
    yield
    assert ranks_alive() == {}


def test_it_is_ready_when_all_have_come_and_the_log_of_each_is_kept() -> None:
    spec = spec_over(3)
    events = list(session_over(spec, LocalRanks(spec.deployment)))
    assert [event.cell.status for event in events if isinstance(event, CellResult)] == [OK]
    row = [event for event in events if isinstance(event, SessionRow)][-1]
    assert (row.status, row.error) == (OK, "")
    assert [gpu["node"] for gpu in json.loads(row.gpus_json)] == ["another"]
    logs = {event.session_id: event.text for event in events if isinstance(event, SessionLog)}
    assert list(logs) == [NAME, f"{NAME}.rank1", f"{NAME}.rank2"]
    assert all(f"rank {rank} has come" in logs[NAME] for rank in (1, 2))
    assert all(f"rank {rank} is with rank 0" in logs[f"{NAME}.rank{rank}"] for rank in (1, 2))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)
def test_a_rank_that_is_lost_in_a_cell_fails_it_and_ends_the_session(number: signal.Signals) -> None:
    spec = spec_over(2, answer_tokens=1e6, step_ms=200.0)
    events: list[Event] = []
    for event in session_over(spec, LocalRanks(spec.deployment)):
        events.append(event)
        if isinstance(event, SessionRow) and event.ended_s is None:
            threading.Timer(0.5, lambda: os.kill(ranks_alive()[1], number)).start()
    (failed,) = [event.cell for event in events if isinstance(event, CellResult)]
    assert (failed.status, failed.error_kind) == (FAILED, "engine_died")
    assert f"rank 1 on {socket.gethostname()} ended with {number.name}" in failed.error
    assert events[-1].session_id == f"{NAME}.rank1"  # type: ignore[union-attr]


def test_a_rank_that_does_not_start_fails_the_start_with_its_reason() -> None:
    spec = spec_over(2)
    ranks = LocalRanks(replace(spec.deployment, model=Model("gone", "models/not_there")))
    row = next(session_over(spec, ranks))
    assert isinstance(row, SessionRow)
    assert (row.status, row.error_kind) == (FAILED, "engine_did_not_start")
    assert "the engine must start on all its nodes: rank 1 on" in row.error
    assert "models/not_there" in row.error


def test_no_process_starts_before_every_node_has_the_models() -> None:
    """So that a download counts for no `start_timeout_s`."""
    spec, control = spec_over(2), SessionControl()
    ranks = LocalRanks(spec.deployment)
    ranks.prepared_s = 600
    before: list[dict[int, int]] = []
    threading.Timer(2.0, lambda: (before.append(ranks_alive()), control.stop_now())).start()
    assert [event for event in session_over(spec, ranks, control) if not isinstance(event, SessionLog)] == []
    assert (before, ranks.threads) == ([{}], [])


def test_who_stops_a_session_that_waits_for_a_rank_stops_them_all() -> None:
    spec, control = spec_over(2), SessionControl()
    ranks = LocalRanks(spec.deployment)
    ranks.deployment = replace(spec.deployment, engine=replace(spec.deployment.engine, nodes=1))  # the second never comes
    threading.Timer(2.0, control.stop_now).start()
    began = time.monotonic()
    assert [event for event in session_over(spec, ranks, control) if not isinstance(event, SessionLog)] == []
    assert time.monotonic() - began < spec.deployment.engine.start_timeout_s


@pytest.mark.parametrize(
    ("authority", "address"),
    [
        pytest.param("10.0.0.1:7000", ("10.0.0.1", 7000), id="IPv4"),
        pytest.param("[fd00::1]:7000", ("fd00::1", 7000), id="IPv6"),
    ],
)
def test_a_meeting_is_an_address_and_a_port(authority: str, address: tuple[str, int]) -> None:
    assert address_of(authority) == address
    assert Meeting(*address, 7001).authority == authority


def test_ports_that_are_free_together_are_different_ones() -> None:
    assert len(set(free_ports(20, "127.0.0.1"))) == 20


@pytest.mark.parametrize(
    ("said", "rank"),
    [
        pytest.param(b"secret 3\n", 3, id="one of ours"),
        pytest.param(b"guess 3\n", None, id="a stranger"),
        pytest.param(b"secret x\n", None, id="no number"),
        pytest.param(b"", None, id="one who says nothing and goes"),
    ],
)
def test_only_who_knows_the_secret_is_let_in(said: bytes, rank: int | None) -> None:
    host, guest = socket.socketpair()
    with host, guest:
        guest.sendall(said)
        guest.shutdown(socket.SHUT_WR)
        assert greeted(host, "secret") == rank
