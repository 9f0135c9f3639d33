"""Owns the workers on Ray: one actor a session at a time, and kept for the next one where that is of the same shape there.

A worker's start (Ray's, and what it imports) takes seconds of a CPU; a session of half a minute would feel it. Only one
whose session ended well is kept, and only until the next sessions are admitted: no idle one holds what another could take.
Does not own admission, or what becomes of a session.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from jobs.control import SessionControl, SessionProgress
from jobs.session import Event, SessionSite, run_session
from jobs.spec import SessionSpec
from orchestrator.ledger import Seat

MOST_AHEAD = 2  # events that a session may be ahead of what is written: they wait in the memory of its node

Shape = tuple[str, float, float, str]


@ray.remote(max_restarts=0, max_task_retries=0, max_concurrency=3)  # run, stop, progress; an attempt is ours, never Ray's
class SessionActor:
    """The sessions of one seat, one after the other."""

    def __init__(self) -> None:
        self._controls: dict[str, SessionControl] = {}  # a stop may come before the session that it is for

    def run(self, spec: SessionSpec, site: SessionSite) -> Iterator[Event]:
        gpus = tuple(str(gpu) for gpu in ray.get_gpu_ids())
        try:
            yield from run_session(spec, replace(site, gpus=gpus), self._control(spec.session_id))
        finally:
            del self._controls[spec.session_id]

    def stop(self, session_id: str, at_once: bool) -> None:
        control = self._control(session_id)
        if at_once:
            control.stop_now()
        else:
            control.stop_after_cell()

    def progress(self, session_id: str) -> SessionProgress:
        return self._control(session_id).progress()

    def _control(self, session_id: str) -> SessionControl:
        return self._controls.setdefault(session_id, SessionControl())


class Worker:
    """A session's hold of its actor."""

    def __init__(self, actor: Any, spec: SessionSpec, site: SessionSite, *, is_kept: bool = False) -> None:
        self.is_kept = is_kept  # it ran a session before
        self.actor = actor
        self._session_id = spec.session_id
        how = {"num_returns": "streaming", "_generator_backpressure_num_objects": MOST_AHEAD}
        self.stream = actor.run.options(**how).remote(spec, site)

    def stop(self, at_once: bool) -> Any:
        return self.actor.stop.remote(self._session_id, at_once)

    def progress(self) -> Any:
        return self.actor.progress.remote(self._session_id)

    def kill(self) -> None:
        ray.kill(self.actor)


class Workers:
    """Those that wait for a session."""

    def __init__(self) -> None:
        self._kept: dict[Shape, list[Any]] = {}

    def start(self, spec: SessionSpec, seat: Seat, site: SessionSite) -> Worker:
        """The session on one that was kept, else on a new one."""
        if kept := self._kept.get(shape_of(spec, seat)):
            return Worker(kept.pop(), spec, site, is_kept=True)
        place = NodeAffinitySchedulingStrategy(seat.node.id, soft=False)
        environment = spec.deployment.engine.runtime_env
        actor = SessionActor.options(  # type: ignore[attr-defined]
            num_cpus=seat.cpus, num_gpus=seat.gpus, scheduling_strategy=place, runtime_env=environment or None
        ).remote()
        return Worker(actor, spec, site)

    def keep(self, worker: Worker, spec: SessionSpec, seat: Seat) -> None:
        """Its session has ended well."""
        self._kept.setdefault(shape_of(spec, seat), []).append(worker.actor)

    def release(self) -> None:
        """Those that nobody took."""
        for actors in self._kept.values():
            for actor in actors:
                with suppress(ray.exceptions.RayError):
                    ray.kill(actor)
        self._kept.clear()


def shape_of(spec: SessionSpec, seat: Seat) -> Shape:
    """What Ray gave a worker for good: its node, its share of it, its environment."""
    environment = json.dumps(spec.deployment.engine.runtime_env, sort_keys=True, default=str)
    return seat.node.id, seat.cpus, seat.gpus, environment
