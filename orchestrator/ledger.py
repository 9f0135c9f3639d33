"""Owns what of the cluster is taken: which session may start now, and on which node. Pure.

Ray never reserves for a big session (fed small ones, a big one starves) and keeps impossible demands pending without a word:
so sessions are admitted here, in plan order. What does not fit yet gets a node reserved, the one where it will fit first;
others may start there meanwhile only if they are expected to be gone by then, or leave room enough (EASY backfilling of
Slurm and Maui). Does not own Ray, the order (`plan`, `pack`), or the words for what can never be held (`shortage`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from math import inf

from jobs.errors import BadInput
from jobs.spec import Deployment, SessionSpec
from orchestrator.shortage import Demand, Node, demand_of, shortage

__all__ = ["Demand", "Ledger", "Node", "Seat", "Waiting", "seat_on"]


@dataclass(frozen=True)
class Seat:
    """What one session holds of a node, and until when it is expected to (on the caller's clock)."""

    node: Node
    cpus: float
    gpus: int
    until_s: float = inf

    def fits(self, cpus: float, gpus: float) -> bool:
        return 0 < self.cpus <= cpus and self.gpus <= gpus


@dataclass(frozen=True)
class Reservation:
    """From when on a node is kept for a session, and what that will leave of it."""

    from_s: float
    cpus: float
    gpus: float

    def permits(self, seat: Seat, until_s: float) -> bool:
        return until_s <= self.from_s or seat.fits(self.cpus, self.gpus)


class Waiting:
    """The sessions of a plan that have not started, in its order; those with the same demand can be passed over together."""

    def __init__(self, plan: Iterable[SessionSpec]) -> None:
        self._queues: dict[Demand, dict[int, SessionSpec]] = {}
        self._first_number = 0
        for number, spec in enumerate(plan):
            self._queues.setdefault(demand_of(spec.deployment), {})[number] = spec

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    @property
    def demands(self) -> list[Demand]:
        """What is waited for."""
        return list(self._queues)

    def first(self, demand: Demand) -> SessionSpec:
        """Of those that want this."""
        return next(iter(self._queues[demand].values()))

    def in_order(self, passed: set[Demand]) -> Iterator[tuple[int, Demand, SessionSpec]]:
        """(number, demand, session); a demand that the caller adds to `passed` comes no more."""
        queues = {demand: iter(queue.items()) for demand, queue in self._queues.items()}
        heads = [(*item, demand) for demand, queue in queues.items() if (item := next(queue, None))]
        heap = [(number, position) for position, (number, _, _) in enumerate(heads)]
        heapify(heap)
        while heap:
            _, position = heappop(heap)
            number, spec, demand = heads[position]
            yield number, demand, spec
            if demand not in passed and (item := next(queues[demand], None)):
                heads[position] = (*item, demand)
                heappush(heap, (item[0], position))

    def take(self, number: int, demand: Demand) -> None:
        del self._queues[demand][number]
        if not self._queues[demand]:
            del self._queues[demand]

    def put_back(self, spec: SessionSpec) -> None:
        """It did not start after all, and is the first again."""
        demand = demand_of(spec.deployment)
        self._first_number -= 1
        self._queues[demand] = {self._first_number: spec, **self._queues.get(demand, {})}

    def drop(self, demand: Demand) -> list[SessionSpec]:
        """All that want this."""
        return list(self._queues.pop(demand).values())


class Ledger:
    """The seats that are taken."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._free = {node: (node.cpus, node.gpus) for node in nodes}
        self._seats: dict[Node, list[Seat]] = {node: [] for node in nodes}
        self._rooms: dict[Node, dict[tuple[float, int], Reservation]] = {node: {} for node in nodes}
        self._places: dict[Demand, list[Seat]] = {}  # on every node that could hold it if it were empty

    @property
    def nodes(self) -> list[Node]:
        return list(self._free)

    def refresh(self, nodes: Iterable[Node]) -> None:
        """The cluster as it is now: a node that has gone takes its seats along, a new one is empty."""
        self._free = {node: self._free.get(node, (node.cpus, node.gpus)) for node in nodes}
        self._seats = {node: self._seats.get(node, []) for node in self._free}
        self._rooms = {node: {} for node in self._free}
        self._places.clear()

    def refuse_impossible(self, deployments: Iterable[Deployment], to_come: Sequence[Node] = ()) -> None:
        """`BadInput` for the first deployment that no node could hold even if it were empty; `to_come` are waited for."""
        nodes = [*self._free, *to_come]
        for deployment in {demand_of(item): item for item in deployments}.values():
            if said := shortage(deployment, nodes):
                raise BadInput(said)

    def is_possible(self, deployment: Deployment) -> bool:
        """Whether a node could hold it if that were empty: what only a lost node could hold keeps no other waiting."""
        return not shortage(deployment, self.nodes)

    def admit(self, deployment: Deployment, until_s: float = inf) -> Seat | None:
        """A seat for this one alone, whoever waits; None = wait."""
        seat = self._fullest(self._seats_for(demand_of(deployment)), until_s, {})
        return self._taken(seat, until_s) if seat else None

    def next(self, waiting: Waiting, now_s: float) -> tuple[SessionSpec, Seat] | None:
        """The first session of the plan that may start now, no longer waiting, with its seat; None = all have to wait."""
        if not any(self._has_room(seat) for demand in waiting.demands for seat in self._seats_for(demand)):
            return None  # nobody could pass anybody
        kept: dict[Node, Reservation] = {}
        soonest: dict[Demand, Iterator[tuple[Node, Reservation]]] = {}
        passed: set[Demand] = set()
        gaps_s: dict[Demand, float] = {}  # where only gaps are left: the longest
        for number, demand, spec in waiting.in_order(passed):
            if spec.expected_s > gaps_s.get(demand, inf):
                continue
            seats, until_s = self._seats_for(demand), now_s + spec.expected_s
            if seat := self._fullest(seats, until_s, kept):
                waiting.take(number, demand)
                return spec, self._taken(seat, until_s)
            if demand not in soonest:
                soonest[demand] = self._by_time(seats, now_s)
            if found := next((item for item in soonest[demand] if item[0] not in kept), None):
                kept[found[0]] = found[1]
            if all(seat.node in kept for seat in seats):
                gaps_s[demand] = max((kept[seat.node].from_s - now_s for seat in seats if self._has_room(seat)), default=0.0)
                passed |= {demand} if gaps_s[demand] <= 0 else set()
        return None

    def release(self, seat: Seat) -> None:
        """The session has ended. The seat of a node that has gone is gone already."""
        if seat in self._seats.get(seat.node, ()):
            self._seats[seat.node].remove(seat)
            self._move(seat, +1)

    def _seats_for(self, demand: Demand) -> list[Seat]:
        if demand not in self._places:
            self._places[demand] = [seat_on(node, demand) for node in self._free if demand.lack_on(node) is None]
        return self._places[demand]

    def _fullest(self, seats: Iterable[Seat], until_s: float, kept: Mapping[Node, Reservation]) -> Seat | None:
        """On the fullest node that has room, so that whole nodes stay whole for big sessions."""
        free = self._free
        open_ = (
            seat
            for seat in seats
            if self._has_room(seat) and (seat.node not in kept or kept[seat.node].permits(seat, until_s))
        )
        return min(open_, key=lambda seat: (free[seat.node][1], free[seat.node][0]), default=None)

    def _has_room(self, seat: Seat) -> bool:
        return seat.fits(*self._free[seat.node])

    def _by_time(self, seats: Iterable[Seat], now_s: float) -> Iterator[tuple[Node, Reservation]]:
        """The nodes in the order in which they will have room; what is overdue ends now."""
        rooms = [(seat.node, self._room_for(seat)) for seat in seats]
        return iter(sorted(rooms, key=lambda item: max(now_s, item[1].from_s)))

    def _room_for(self, seat: Seat) -> Reservation:
        """When its node will have room, if what runs there ends as expected. Known until that changes."""
        known, asked = self._rooms[seat.node], (seat.cpus, seat.gpus)
        if asked not in known:
            known[asked] = self._room_after(seat)
        return known[asked]

    def _room_after(self, seat: Seat) -> Reservation:
        cpus, gpus = self._free[seat.node]
        from_s = -inf
        for other in sorted(self._seats[seat.node], key=lambda item: item.until_s):
            if seat.fits(cpus, gpus):
                break
            from_s = other.until_s
            cpus, gpus = round(cpus + other.cpus, 4), gpus + other.gpus
        return Reservation(from_s, round(cpus - seat.cpus, 4), gpus - seat.gpus)

    def _taken(self, place: Seat, until_s: float) -> Seat:
        seat = replace(place, until_s=until_s)
        self._seats[seat.node].append(seat)
        self._move(seat, -1)
        return seat

    def _move(self, seat: Seat, sign: int) -> None:
        cpus, gpus = self._free[seat.node]
        self._rooms[seat.node].clear()
        self._free[seat.node] = (round(cpus + sign * seat.cpus, 4), gpus + sign * seat.gpus)


def seat_on(node: Node, demand: Demand) -> Seat:
    """What it takes of a node. `engine.cpus` 0 = all CPUs; with GPUs, as large a share of them as of the GPUs."""
    return Seat(node, demand.cpus_of(node), demand.gpus)
