"""Owns the workers on Ray: one actor a session at a time, and kept for the next one where that is of the same shape there.

A worker's start (Ray's, and what it imports) takes seconds of a CPU; a session of half a minute would feel it. Only one
whose session ended well is kept, and only until the next sessions are admitted: no idle one holds what another could take.
That of a session over several nodes is never kept. Does not own admission, further ranks (`ranks`), or what becomes of a
session.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any

import ray
from ray.runtime_env import RuntimeEnv
from ray.util.placement_group import PlacementGroup, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from jobs.control import SessionControl, SessionProgress
from jobs.errors import BadInput
from jobs.provenance import local_path
from jobs.session import Event, SessionSite, run_session
from jobs.spec import SessionSpec
from orchestrator.ledger import Seat, Seats
from orchestrator.schedule.ranks import RayRanks, assigned_gpus, group_on, ranks_in

MOST_AHEAD = 2  # events that a session may be ahead of what is written: they wait in the memory of its node

Shape = tuple[str, float, float, str]


@ray.remote(max_restarts=0, max_task_retries=0, max_concurrency=3)  # run, stop, progress; an attempt is ours, never Ray's
class SessionActor:
    """The sessions of one seat, one after the other."""

    def __init__(self) -> None:
        self._controls: dict[str, SessionControl] = {}  # a stop may come before the session that it is for

    def run(self, spec: SessionSpec, site: SessionSite, ranks: Sequence[Any] = ()) -> Iterator[Event]:
        others = RayRanks(spec.deployment, ranks) if ranks else None
        site = replace(site, gpus=assigned_gpus(), address=ray.util.get_node_ip_address(), ranks=others)
        try:
            yield from run_session(spec, site, self._control(spec.session_id))
        finally:
            del self._controls[spec.session_id]

    def stop(self, session_id: str, at_once: bool) -> None:
        control = self._control(session_id)
        if at_once:
            control.stop_now()
        else:
            control.stop_after_cell()

    def progress(self, session_id: str) -> SessionProgress:
        return self._controls.get(session_id, SessionControl()).progress()

    def _control(self, session_id: str) -> SessionControl:
        return self._controls.setdefault(session_id, SessionControl())


class Worker:
    """A session's hold of its actor, and of the group in which that is, with those of other ranks."""

    def __init__(
        self,
        actor: Any,
        spec: SessionSpec,
        site: SessionSite,
        ranks: Sequence[Any] = (),
        group: PlacementGroup | None = None,
        *,
        is_kept: bool = False,
    ) -> None:
        self.is_kept = is_kept  # it ran a session before
        self.actor = actor
        self.group = group  # None = the session is on one node
        self._ranks = ranks  # Ray ends an actor that nobody holds
        self._session_id = spec.session_id
        how = {"num_returns": "streaming", "_generator_backpressure_num_objects": MOST_AHEAD}
        self.stream = actor.run.options(**how).remote(spec, site, ranks)

    def stop(self, at_once: bool) -> Any:
        return self.actor.stop.remote(self._session_id, at_once)

    def progress(self) -> Any:
        return self.actor.progress.remote(self._session_id)

    def kill(self) -> None:
        ray.kill(self.actor)
        if self.group is not None:
            remove_placement_group(self.group)  # kills what is in it


class Workers:
    """Those that wait for a session."""

    def __init__(self) -> None:
        self._kept: dict[Shape, list[Any]] = {}

    def start(self, spec: SessionSpec, seats: Seats, site: SessionSite) -> Worker:
        """The session on one that was kept, else on a new one; with one for each further rank."""
        if len(seats) > 1:
            group = group_on(seats)
            ranks = ranks_in(group, seats, environment_of(spec.deployment.engine.runtime_env))
            return Worker(_new_actor(spec, seats[0], PlacementGroupSchedulingStrategy(group, 0)), spec, site, ranks, group)
        (seat,) = seats
        if kept := self._kept.get(shape_of(spec, seat)):
            return Worker(kept.pop(), spec, site, is_kept=True)
        return Worker(_new_actor(spec, seat, NodeAffinitySchedulingStrategy(seat.node.id, soft=False)), spec, site)

    def keep(self, worker: Worker, spec: SessionSpec, seat: Seat) -> None:
        """Its session, on this node alone, has ended well."""
        self._kept.setdefault(shape_of(spec, seat), []).append(worker.actor)

    def release(self) -> None:
        """Those that nobody took."""
        for actors in self._kept.values():
            for actor in actors:
                with suppress(ray.exceptions.RayError):
                    ray.kill(actor)
        self._kept.clear()


def _new_actor(spec: SessionSpec, seat: Seat, place: Any) -> Any:
    environment = environment_of(spec.deployment.engine.runtime_env)
    return SessionActor.options(  # type: ignore[attr-defined]
        num_cpus=seat.cpus, num_gpus=seat.gpus, scheduling_strategy=place, runtime_env=environment
    ).remote()


def refuse_environments(plan: Sequence[SessionSpec]) -> None:
    """`BadInput` for the first that Ray would not take; the files that they name are read now, and never again."""
    for spec in plan:
        environment_of(spec.deployment.engine.runtime_env)


def environment_of(given: Mapping[str, Any]) -> RuntimeEnv | None:
    """In Ray's type, with the content of files that it names as it was at the first call; None for none.

    `BadInput` for what Ray would not take.
    """
    try:
        return _made_once(_key_of(given)) if given else None
    except (TypeError, ValueError, OSError) as refusal:
        why = " ".join(str(refusal).split())
        raise BadInput(f"`engine.runtime_env` must be what Ray takes: got {dict(given)!r}. Ray says: {why}") from refusal


@cache
def _made_once(key: str) -> RuntimeEnv:
    return RuntimeEnv(**{name: _found(name, value) for name, value in json.loads(key).items()})


def _found(name: str, value: Any) -> Any:
    """A file that Ray reads is found as all others are: from the project's root, or from a home folder."""
    is_file = isinstance(value, str) and (name in ("uv", "pip") or value.endswith((".yml", ".yaml")))
    return str(local_path(value)) if is_file else value


def _key_of(given: Mapping[str, Any]) -> str:
    return json.dumps(given, sort_keys=True, default=str)


def shape_of(spec: SessionSpec, seat: Seat) -> Shape:
    """What Ray gave a worker for good: its node, its share of it, its environment."""
    return seat.node.id, seat.cpus, seat.gpus, _key_of(spec.deployment.engine.runtime_env)
