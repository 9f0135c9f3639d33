"""What becomes of a session whose worker is long in coming: another job has the place, or all is slow. Needs no Ray."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
import ray
from grids import cell
from without_ray import BOX, OTHER, SPEC, Held, scheduler_of

from jobs.control import SessionProgress
from jobs.engines.lifeline import GRACE_S
from orchestrator.schedule import Scheduler, sessions


def test_a_worker_that_ray_does_not_start_is_told_once(killed: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "PLACE_LIMIT_S", 0.0)
    said: list[str] = []
    scheduler, _ = scheduler_of("nothing comes")
    scheduler._say = said.append
    for _ in range(4):
        assert list(scheduler._move_held()) == []
    (told,) = said
    assert "Session s waits for Ray to start its worker on box" in told


def test_a_session_that_is_held_up_moves_once_and_not_to_and_fro(killed: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker may need longer than the limit everywhere: a folder in the network, a busy machine."""
    monkeypatch.setattr(sessions, "PLACE_LIMIT_S", 0.0)
    monkeypatch.setattr(sessions.Fleet, "nodes", lambda fleet: [BOX, OTHER])
    scheduler, first = scheduler_of("nothing comes")
    monkeypatch.setattr(scheduler._workers, "start", lambda *_: Held("nothing comes", "another actor"))
    for _ in range(5):
        assert list(scheduler._move_held()) == []
        scheduler._admit(scheduler._waiting)
        scheduler._settle(time.monotonic() + GRACE_S + 1)
    (running,) = scheduler._running
    assert {*first.nodes, *running.nodes} == {BOX, OTHER}
    assert killed == ["the actor"]


def test_the_seat_of_a_session_that_moves_settles_as_its_engine_may_have_begun_after_all(
    killed: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "PLACE_LIMIT_S", 0.0)
    monkeypatch.setattr(sessions.Fleet, "nodes", lambda fleet: [BOX, OTHER])
    scheduler, running = scheduler_of("nothing comes")
    assert list(scheduler._move_held()) == []
    ledger = scheduler._ledger
    ledger.refresh([BOX, OTHER])  # whoever is doubted
    assert ledger.admit(SPEC.deployment)
    assert not ledger.admit(SPEC.deployment), "its engine's lifeline may be at work"
    scheduler._settle(time.monotonic() + GRACE_S + 1)
    assert [seat.node for seat in ledger.admit(SPEC.deployment)] == running.nodes


def test_a_session_that_runs_well_is_left_alone_however_busy_the_driver_was(
    killed: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver wrote for longer than the limit: the worker's answer has long been there, and was not yet taken."""
    monkeypatch.setattr(sessions, "PLACE_LIMIT_S", 0.0)
    monkeypatch.setattr(sessions, "STOP_LIMIT_S", 0.0)
    monkeypatch.setattr(sessions.Fleet, "nodes", lambda fleet: [BOX, OTHER])
    monkeypatch.setattr(ray, "wait", lambda asked, **how: ([item for item in asked if item == "no answer"], []))
    monkeypatch.setattr(ray, "get", lambda answer: SessionProgress("measuring"))
    said: list[str] = []
    watched: list[SessionProgress | None] = []
    scheduler = Scheduler(lambda: 2 * (len(watched) > 1), lambda spec, told: watched.append(told), None, say=said.append)
    monkeypatch.setattr(scheduler._workers, "start", lambda *_: Held("nothing comes", "the actor"))
    assert list(scheduler.run([SPEC])) == []
    assert watched == [SessionProgress("placed"), SessionProgress("measuring")]
    assert (said, killed, scheduler._doubts.at(time.monotonic())) == ([], [], {})


@pytest.mark.parametrize(
    ("runtime_env", "doubted"),
    [
        pytest.param({}, {"box": True}, id="another job holds it"),
        pytest.param({"uv": ["vllm"]}, {}, id="its environment is being built"),
    ],
)
def test_a_node_that_lets_a_session_wait_rests_and_has_failed_nothing(
    killed: list[Any], monkeypatch: pytest.MonkeyPatch, runtime_env: dict[str, Any], doubted: dict[str, bool]
) -> None:
    monkeypatch.setattr(sessions, "PLACE_LIMIT_S", 0.0)
    scheduler, running = scheduler_of("nothing comes")
    running.spec = replace(SPEC, deployment=cell(runtime_env=runtime_env).deployment)
    for _ in range(3):
        assert list(scheduler._move_held()) == []
    assert scheduler._doubts.at(time.monotonic()) == doubted
    assert scheduler._doubts.fail([BOX], SPEC.deployment.id, time.monotonic()) == ""
