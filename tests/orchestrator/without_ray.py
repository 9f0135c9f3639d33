"""A scheduler whose workers are pretended: what it makes of what they do. No test, and nothing of the product."""

from __future__ import annotations

from collections import deque

import ray
from grids import cell

from jobs.spec import CellOrder, SessionSpec
from orchestrator.ledger import Node
from orchestrator.schedule import Scheduler, sessions

BOX = Node("box", "box", cpus=4, gpus=0)
OTHER = Node("other", "other", cpus=4, gpus=0)
CELL = cell()
SPEC = SessionSpec("s", "now", CELL.deployment, (CellOrder(CELL, 1),), 1.0)


class Stream:
    """A stream of a session, which raises after its events."""

    def __init__(self, error: Exception, *events: object) -> None:
        self.error = error
        self.events = deque(events)

    def __next__(self) -> object:
        if not self.events:
            raise self.error
        return self.events.popleft()


class Held:
    """A worker on which a session runs, in place of one on Ray."""

    def __init__(self, stream: object, actor: object, *, is_kept: bool = False, group: object = None) -> None:
        self.stream, self.actor, self.is_kept, self.group = stream, actor, is_kept, group

    def stop(self, at_once: bool) -> str:
        return "no answer"

    def progress(self) -> str:
        return "no answer"

    def kill(self) -> None:
        ray.kill(self.actor)


def scheduler_of(
    stream: object, actor: object = "the actor", level: int = 0, *, is_kept: bool = False
) -> tuple[Scheduler, sessions.Running]:
    scheduler = Scheduler(lambda: level, lambda spec, progress: None, None)
    seats = scheduler._ledger.admit(SPEC.deployment)
    assert seats
    running = sessions.Running(SPEC, seats, Held(stream, actor, is_kept=is_kept))
    scheduler._running.append(running)
    return scheduler, running
