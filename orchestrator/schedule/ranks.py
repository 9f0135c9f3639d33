"""Owns the further ranks of an engine over several nodes on Ray: their places, an actor for each, and the word from them.

Does not own which nodes these are (`ledger`), the session's own worker (`workers`), or a rank's life (`jobs.rank`). The
places are a placement group with a bundle on each of the nodes that were admitted: Ray gives all of them or none, so that
two jobs of one cluster never each hold what the other waits for, and one call ends all actors of a group.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import ray
from ray.runtime_env import RuntimeEnv
from ray.util.placement_group import PlacementGroup, placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from jobs.control import SessionControl
from jobs.engines.base import Meeting
from jobs.engines.spread import RankEnd
from jobs.provenance import gpu_facts, node_name
from jobs.rank import RankOrder, prepare_rank, run_rank
from jobs.spec import Deployment
from orchestrator.ledger import Seats

NODE_LABEL = "ray.io/node-id"  # Ray gives it to each node
FACTS_LIMIT_S = 30.0
POLL_S = 0.5
MOST_CHARACTERS = 500  # of why an environment was not made
FRAMES = re.compile(r"\A.*\n  File [^\n]*\n(?: [^\n]*\n)*", re.DOTALL)  # all up to the end of the last traceback's


# Three at a time: prepare or run, stop, gpus; an attempt is ours, never Ray's.
@ray.remote(max_restarts=0, max_task_retries=0, max_concurrency=3)
class RankActor:
    """One rank on its node."""

    def __init__(self) -> None:
        self.control = SessionControl()

    def prepare(self, deployment: Deployment, rank: int) -> RankEnd | None:
        return prepare_rank(deployment, rank)

    def run(self, order: RankOrder) -> RankEnd:
        meeting = replace(order.meeting, own_address=ray.util.get_node_ip_address())
        return run_rank(replace(order, meeting=meeting), assigned_gpus(), self.control)

    def stop(self) -> None:
        self.control.stop_now()

    def gpus(self) -> list[dict[str, Any]]:
        """What is used of them now is their engine's, and says nothing."""
        return [{**facts, "used_bytes": None, "node": node_name()} for facts in gpu_facts(assigned_gpus())]


class RayRanks:
    """The ranks above 0 of a session's engine, from where the session runs."""

    def __init__(self, deployment: Deployment, actors: Sequence[Any]) -> None:
        self._deployment = deployment
        self._actors = actors
        self._preparing: dict[Any, int] = {}
        self._runs: dict[Any, int] = {}
        self._logs: dict[int, str] = {}

    @property
    def logs(self) -> Mapping[int, str]:
        return self._logs

    def prepare(self) -> None:
        for rank, actor in enumerate(self._actors, 1):
            self._preparing[actor.prepare.remote(self._deployment, rank)] = rank

    def unprepared(self, should_stop: Callable[[], bool]) -> RankEnd | None:
        left = list(self._preparing)
        while left and not should_stop():
            ended, left = ray.wait(left, timeout=POLL_S)
            for told in ended:
                try:
                    end: RankEnd | None = ray.get(told)
                except ray.exceptions.RayError as error:
                    return lost_with_worker(self._preparing[told], error)
                if end:
                    return end
        return None

    def start(self, nonce: str, meeting: Meeting) -> None:
        for rank, actor in enumerate(self._actors, 1):
            order = RankOrder(self._deployment, nonce, replace(meeting, rank=rank, own_address=""))
            self._runs[actor.run.remote(order)] = rank

    def lost(self, within_s: float) -> RankEnd | None:
        ended, _ = ray.wait(list(self._runs), timeout=within_s)
        return self._end_of(ended[0]) if ended else None

    def gpus(self) -> list[dict[str, Any]]:
        told = [actor.gpus.remote() for actor in self._actors]
        try:
            return [facts for gpus in ray.get(told, timeout=FACTS_LIMIT_S) for facts in gpus]
        except ray.exceptions.RayError:  # one is lost, and that is told elsewhere
            return []

    def stop(self) -> None:
        for actor in self._actors:
            actor.stop.remote()

    def wait(self, limit_s: float) -> bool:
        ended, left = ray.wait(list(self._runs), num_returns=len(self._runs), timeout=limit_s)
        for run in ended:
            self._end_of(run)
        return not left

    def _end_of(self, run: Any) -> RankEnd:
        rank = self._runs[run]
        try:
            end: RankEnd = ray.get(run)
        except ray.exceptions.RayError as error:
            return lost_with_worker(rank, error)
        self._logs[rank] = end.log
        return end


def lost_with_worker(rank: int, error: BaseException) -> RankEnd:
    return RankEnd(rank, f"rank {rank} was lost with its worker: {first_line(error)}")


def group_on(seats: Seats) -> PlacementGroup:
    """A place on each of the nodes of these seats, in their order, once Ray has all of them."""
    return placement_group(
        [{name: amount for name, amount in (("CPU", seat.cpus), ("GPU", seat.gpus)) if amount} for seat in seats],
        strategy="STRICT_SPREAD",
        bundle_label_selector=[{NODE_LABEL: seat.node.id} for seat in seats],
    )


def ranks_in(group: PlacementGroup, seats: Seats, environment: RuntimeEnv | None) -> list[Any]:
    """The actors of the ranks above 0."""
    return [
        RankActor.options(  # type: ignore[attr-defined]
            num_cpus=seat.cpus,
            num_gpus=seat.gpus,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, rank),
            runtime_env=environment,
        ).remote()
        for rank, seat in enumerate(seats)
        if rank
    ]


def assigned_gpus() -> tuple[str, ...]:
    """The GPUs that Ray gave this worker."""
    return tuple(str(gpu) for gpu in ray.get_gpu_ids())


def first_line(error: BaseException) -> str:
    cause = getattr(error, "cause", None) or error
    if isinstance(cause, ray.exceptions.RuntimeEnvSetupError):
        return line_of_environment(str(cause))
    return f"{type(cause).__name__}: {str(cause).strip().splitlines()[0] if str(cause).strip() else 'no more is known'}"


def line_of_environment(told: str) -> str:
    """Why Ray could not make one, without its tracebacks; of a command that failed, the end of what that printed."""
    cause = FRAMES.sub("", told).rpartition("lines of stdout:")[2]
    line = " ".join(cause.split())
    return line if len(line) <= MOST_CHARACTERS else f"…{line[1 - MOST_CHARACTERS :]}"
