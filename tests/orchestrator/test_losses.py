"""What the scheduler makes of a session that raises, dies, or cannot hear that it is to stop. Needs no Ray."""

from __future__ import annotations

import time
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from grids import cell

from jobs.spec import CellOrder, SessionSpec
from orchestrator.ledger import Node
from orchestrator.schedule import Scheduler, sessions
from storage.rows import FAILED, SessionRow

BOX = Node("box", "box", cpus=4, gpus=0)
CELL = cell()
SPEC = SessionSpec("s", "now", CELL.deployment, (CellOrder(CELL, 1),), 1.0)


class Stream:
    """A stream of a session, which raises."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __next__(self) -> None:
        raise self.error


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The actors that were killed, in place of Ray's own doing."""
    found: list[Any] = []
    monkeypatch.setattr(ray, "kill", found.append)
    monkeypatch.setattr(ray, "wait", lambda asked, **how: ([], asked))
    monkeypatch.setattr(sessions, "cluster_nodes", lambda: [BOX])
    return found


def scheduler_of(stream: object, actor: object, level: int = 0) -> tuple[Scheduler, sessions.Running]:
    scheduler = Scheduler(lambda: level, lambda spec, progress: None, None)
    seat = scheduler._ledger.admit(SPEC.deployment)
    assert seat is not None
    running = sessions.Running(SPEC, seat, actor, stream)
    scheduler._running.append(running)
    return scheduler, running


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
    scheduler, running = scheduler_of(Stream(error), "the actor")
    (row,) = scheduler._next_events(running)
    assert isinstance(row, SessionRow)
    assert (row.status, row.error_kind) == (FAILED, kind)
    assert words in row.error
    assert "\n" not in row.error
    assert killed == ["the actor"]
    assert scheduler._running == []
    assert scheduler._ledger.admit(SPEC.deployment) is not None, "its seat is free"


def test_a_second_stop_does_not_wait_for_a_session_that_cannot_hear(
    killed: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "STOP_LIMIT_S", 0.05)
    deaf = SimpleNamespace(remote=lambda *told: "no answer")
    actor = SimpleNamespace(stop=deaf, progress=deaf)
    scheduler, _ = scheduler_of("nothing comes", actor, level=2)
    began = time.monotonic()
    with scheduler:
        assert list(scheduler.run([])) == []
    assert time.monotonic() - began < 5
    assert killed == [actor]


def test_a_session_that_only_a_lost_node_could_hold_keeps_no_other_waiting(
    killed: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = Scheduler(lambda: 0, lambda spec, progress: None, None)
    started: list[SessionSpec] = []
    monkeypatch.setattr(scheduler, "_start", lambda spec, seat: started.append(spec))
    waiting = deque([SessionSpec("big", "now", cell(cpus=9).deployment, (), 1.0), SPEC])
    scheduler._admit(waiting)
    assert [spec.session_id for spec in started] == ["s"]
    assert [spec.session_id for spec in waiting] == ["big"]
    monkeypatch.setattr(sessions, "cluster_nodes", lambda: [BOX, Node("back", "back", cpus=16, gpus=0)])
    scheduler._admit(waiting)
    assert [spec.session_id for spec in started] == ["s", "big"]
