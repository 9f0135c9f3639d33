"""Owns what of the cluster is taken: which session may start now, and on which node. Pure.

Ray never reserves for a big session (fed small ones, a big one starves) and keeps impossible demands pending without a word:
so sessions are admitted here, in plan order, and the impossible is refused before anything starts. Does not own Ray.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jobs.errors import BadInput
from jobs.spec import Deployment


@dataclass(frozen=True)
class Node:
    """A node of the cluster and all that it has."""

    id: str
    name: str
    cpus: float
    gpus: float


@dataclass(frozen=True)
class Seat:
    """What one session holds of a node."""

    node: Node
    cpus: float
    gpus: int


class Ledger:
    """The seats that are taken. First come, first served: what does not fit now is waited for, never overtaken."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._free = {node: (node.cpus, node.gpus) for node in nodes}

    def refresh(self, nodes: Iterable[Node]) -> None:
        """The cluster as it is now: a node that has gone takes its seats along, a new one is empty."""
        self._free = {node: self._free.get(node, (node.cpus, node.gpus)) for node in nodes}

    def refuse_impossible(self, deployments: Iterable[Deployment]) -> None:
        """`BadInput` for the first deployment that no node could hold even if it were empty."""
        for deployment in deployments:
            if not self.is_possible(deployment):
                raise BadInput(_impossible(deployment, list(self._free)))

    def is_possible(self, deployment: Deployment) -> bool:
        """Whether a node could hold it if that were empty: what only a lost node could hold keeps no other waiting."""
        return any(_fits(seat_on(node, deployment), node.cpus, node.gpus) for node in self._free)

    def admit(self, deployment: Deployment) -> Seat | None:
        """A seat on the fullest node that still has room, so that whole nodes stay whole for big sessions; None = wait."""
        seats = [
            (gpus, cpus, seat)
            for node, (cpus, gpus) in self._free.items()
            if _fits(seat := seat_on(node, deployment), cpus, gpus)
        ]
        if not seats:
            return None
        seat = min(seats, key=lambda item: item[:2])[2]
        self._move(seat, -1)
        return seat

    def release(self, seat: Seat) -> None:
        """The session has ended. The seat of a node that has gone is gone already."""
        if seat.node in self._free:
            self._move(seat, +1)

    def _move(self, seat: Seat, sign: int) -> None:
        cpus, gpus = self._free[seat.node]
        self._free[seat.node] = (round(cpus + sign * seat.cpus, 4), gpus + sign * seat.gpus)


def seat_on(node: Node, deployment: Deployment) -> Seat:
    """What a deployment takes of a node. `engine.cpus` 0 = all CPUs; with GPUs, as large a share of them as of the GPUs."""
    cpus = deployment.engine.cpus
    if not cpus:
        share = deployment.gpus / node.gpus if deployment.gpus and node.gpus else 1.0
        cpus = int(node.cpus * min(share, 1.0) * 10_000) / 10_000  # the precision that Ray accepts
    return Seat(node, cpus, deployment.gpus)


def _fits(seat: Seat, cpus: float, gpus: float) -> bool:
    return 0 < seat.cpus <= cpus and seat.gpus <= gpus


def _impossible(deployment: Deployment, nodes: Sequence[Node]) -> str:
    gpus = max((node.gpus for node in nodes), default=0)
    cpus = max((node.cpus for node in nodes), default=0)
    if deployment.gpus > gpus:
        got = f"engine.tp={deployment.engine.tp} takes {deployment.gpus} GPUs, and the largest node has {gpus:g}"
        remedy = "Lower engine.tp, or choose another cluster." if gpus else "Choose another cluster, or engine.device=cpu."
    else:
        got = f"engine.cpus={deployment.engine.cpus:g}, and the largest node has {cpus:g} CPUs"
        remedy = "Lower engine.cpus, or choose another cluster."
    return f"a session must fit on one node: got {got} (of {len(nodes)} nodes). {remedy}"
