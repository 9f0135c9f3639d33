"""What the scheduler makes of a session that raises, dies, or cannot hear that it is to stop. Needs no Ray."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import Any

import pytest
import ray
from grids import cell
from without_ray import BOX, CELL, OTHER, SPEC, Stream, scheduler_of

from jobs.engines.lifeline import GRACE_S
from jobs.measure import new_row as new_cell_row
from jobs.session import SessionSite
from jobs.session import new_row as new_session_row
from jobs.spec import CellOrder, SessionSpec
from orchestrator.ledger import Ledger, Node, Waiting
from orchestrator.schedule import Scheduler, sessions
from orchestrator.settings import Cluster
from storage.rows import FAILED, CellBatch, CellResult, SessionRow


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        pytest.param(
            ray.exceptions.RayTaskError("run", "a traceback", ValueError("no such tokenizer\nmore")),
            "session_error",
            "ValueError: no such tokenizer",
            id="an error of ours in a worker that lives",
        ),
        pytest.param(ray.exceptions.ActorDiedError(), "worker_died", "ActorDiedError: ", id="a worker that died"),
        pytest.param(ray.exceptions.NodeDiedError("gone"), "worker_died", "NodeDiedError: gone", id="a node that died"),
    ],
)
def test_how_a_session_was_lost_is_told_and_its_actor_is_killed(
    killed: list[Any], error: Exception, kind: str, words: str
) -> None:
    scheduler, running = scheduler_of(Stream(error))
    (row,) = scheduler._next_events(running)
    assert isinstance(row, SessionRow)
    assert (row.status, row.error_kind) == (FAILED, kind)
    assert words in row.error
    assert "\n" not in row.error
    assert killed == ["the actor"]
    assert scheduler._running == []
    assert not scheduler._ledger.admit(SPEC.deployment), "its engine's lifeline may be at work"
    scheduler._settle(time.monotonic() + GRACE_S + 1)
    assert scheduler._ledger.admit(SPEC.deployment), "its seat is free"


@pytest.mark.parametrize(
    ("status", "error_kind", "is_doubted"),
    [
        pytest.param(FAILED, "gpu_taken", True, id="its engine did not start"),
        pytest.param("ok", "engine_died", True, id="its engine died"),
        pytest.param("ok", "", False, id="it ended well"),
    ],
)
def test_a_node_on_which_a_session_failed_is_doubted_until_one_ends_well_there(
    killed: list[Any], status: str, error_kind: str, is_doubted: bool
) -> None:
    scheduler, running = scheduler_of(Stream(StopIteration()))
    scheduler._doubts.fail([Node("another", "another", cpus=4, gpus=0)], "a", time.monotonic())
    running.row = replace(new_session_row(SPEC, SessionSite()), status=status, error_kind=error_kind)
    running.n_results = 1
    assert list(scheduler._next_events(running)) == []
    assert ("box" in scheduler._doubts.at(time.monotonic())) == is_doubted
    assert "another" in scheduler._doubts.at(time.monotonic())


@pytest.mark.parametrize(
    ("another", "is_told"),
    [
        pytest.param(OTHER, True, id="another node could hold it"),
        pytest.param(replace(OTHER, cpus=0), False, id="the head of the cluster cannot"),
        pytest.param(replace(OTHER, engines=frozenset({"vllm"})), False, id="nor can what is for another engine"),
    ],
)
def test_that_other_nodes_are_preferred_is_said_where_there_are_such(
    killed: list[Any], monkeypatch: pytest.MonkeyPatch, another: Node, is_told: bool
) -> None:
    monkeypatch.setattr(sessions.Fleet, "nodes", lambda fleet: [BOX, another])
    scheduler, running = scheduler_of(Stream(StopIteration()))
    said: list[str] = []
    scheduler._say = said.append
    scheduler._doubts.fail(running.nodes, "another deployment", time.monotonic())
    assert len(list(scheduler._next_events(running))) == 1
    told = f"2 deployments in a row failed on {running.nodes[0].name}: for a while, other nodes are preferred."
    assert said == [told] * is_told


@pytest.mark.parametrize("n_batches", [0, 1, 3])
def test_the_batches_of_a_cell_whose_worker_died_belong_to_its_failed_row(
    killed: list[Any], monkeypatch: pytest.MonkeyPatch, n_batches: int
) -> None:
    monkeypatch.setattr(ray, "get", lambda event: event)
    orders = (CellOrder(CELL, 1), CellOrder(CELL, 2))
    ready = replace(new_session_row(SPEC, SessionSite()), ready_s=1.0)
    first = [CellBatch(CELL.id, 1, part) for part in range(2)]
    first_ends = CellResult(new_cell_row(SPEC, orders[0], 0), n_batches=2)
    second = [CellBatch(CELL.id, 2, part) for part in range(n_batches)]
    stream = Stream(ray.exceptions.ActorDiedError(), ready, *first, first_ends, *second)
    scheduler, running = scheduler_of(stream)
    running.spec = replace(SPEC, orders=orders)
    told = []
    while scheduler._running:
        told += list(scheduler._next_events(running))
    *_, session, cell_ = told
    assert told[:-2] == [ready, *first, first_ends, *second]
    assert isinstance(session, SessionRow)
    assert isinstance(cell_, CellResult)
    assert (session.error_kind, cell_.cell.error_kind, cell_.cell.attempt) == ("worker_died", "worker_died", 2)
    assert (cell_.n_batches, list(cell_.requests)) == (n_batches, [])


def test_a_second_stop_does_not_wait_for_a_session_that_cannot_hear(
    killed: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "STOP_LIMIT_S", 0.05)
    scheduler, _ = scheduler_of("nothing comes", level=2)
    began = time.monotonic()
    with scheduler:
        assert list(scheduler.run([])) == []
    assert time.monotonic() - began < 25
    assert killed == ["the actor"]


def test_a_session_that_only_a_lost_node_could_hold_keeps_no_other_waiting(
    killed: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = Scheduler(lambda: 0, lambda spec, progress: None, None)
    started: list[SessionSpec] = []
    monkeypatch.setattr(scheduler, "_start", lambda spec, seats: started.append(spec))
    waiting = Waiting([SessionSpec("big", "now", cell(cpus=9).deployment, (), 1.0), SPEC])
    scheduler._admit(waiting)
    assert [spec.session_id for spec in started] == ["s"]
    assert len(waiting) == 1
    monkeypatch.setattr(sessions.Fleet, "nodes", lambda fleet: [BOX, Node("back", "back", cpus=16, gpus=0)])
    scheduler._admit(waiting)
    assert [spec.session_id for spec in started] == ["s", "big"]


def test_what_no_node_can_hold_any_more_is_told_waited_for_and_given_up(
    killed: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    scheduler = Scheduler(lambda: 0, lambda spec, progress: None, None, Cluster(node_wait_s=0.05), said.append)
    monkeypatch.setattr(sessions, "TICK_S", 0.01)
    lost = SessionSpec("big", "now", cell(cpus=9).deployment, (), 1.0)
    assert list(scheduler.run([lost])) == []
    why = r"engine.cpus=9, and the largest node has 4 CPUs"
    assert re.search(rf"Waiting at most 0.05 s \(cluster.node_wait_s\) for a node: .*{why}", said[0])
    assert len(said) == 1
    assert list(scheduler.stranded) == [lost.deployment.id]
    assert re.search(rf"no node came within 0.05 s .*{why}", scheduler.stranded[lost.deployment.id])


@pytest.mark.parametrize(
    ("is_up", "is_kept", "nodes", "is_try"),
    [
        pytest.param(False, False, [], False, id="its node was gone before its worker was there"),
        pytest.param(True, False, [], True, id="its node was lost while it ran"),
        pytest.param(False, False, [BOX], True, id="its worker died on a living node"),
        pytest.param(False, True, [BOX], False, id="the worker that was kept had died before it came"),
        pytest.param(True, True, [BOX], True, id="the worker that was kept died under it"),
    ],
)
def test_a_session_whose_node_or_worker_had_gone_before_it_began_waits_again(
    killed: list[Any], monkeypatch: pytest.MonkeyPatch, is_up: bool, is_kept: bool, nodes: list[Node], is_try: bool
) -> None:
    scheduler, running = scheduler_of(Stream(ray.exceptions.ActorUnschedulableError("no such node")), is_kept=is_kept)
    running.is_up = is_up
    monkeypatch.setattr(sessions.Fleet, "nodes", lambda fleet: nodes)
    rows = list(scheduler._next_events(running))
    assert bool(rows) == is_try
    assert len(scheduler._waiting) == (not is_try)
    assert scheduler._running == []
    assert killed == ["the actor"]


@pytest.mark.parametrize(
    ("is_up", "is_try"), [pytest.param(True, True, id="it was starting"), pytest.param(False, False, id="no worker yet")]
)
def test_a_node_that_leaves_while_the_engine_starts_on_several_is_not_waited_for(
    killed: list[Any], monkeypatch: pytest.MonkeyPatch, is_up: bool, is_try: bool
) -> None:
    scheduler, running = scheduler_of("nothing comes")
    running.is_up = is_up
    running.worker.group = "a group"  # type: ignore[assignment]
    assert list(scheduler._give_up_groups()) == [], "its node is there"
    monkeypatch.setattr(sessions.Fleet, "nodes", lambda fleet: [])
    rows = list(scheduler._give_up_groups())
    assert [(row.error_kind, row.error) for row in rows if isinstance(row, SessionRow)] == [
        ("worker_died", "The engine was starting on several nodes, and box left the cluster.")
    ] * is_try
    assert len(scheduler._waiting) == (not is_try)
    assert killed == ["the actor"]


def test_what_is_put_back_is_the_first_again() -> None:
    waiting = Waiting([SessionSpec(name, "now", CELL.deployment, (), 1.0) for name in "abc"])
    ledger = Ledger([Node("box", "box", cpus=400, gpus=0)])
    order = []
    for number in range(4):
        found = ledger.next(waiting, 0.0)
        assert found is not None
        ledger.release(found[1])
        order.append(found[0].session_id)
        if number == 1:
            waiting.put_back(found[0])
    assert order == ["a", "b", "b", "c"]
