"""Owns what of the cluster is taken: which session may start now, and on which nodes. Pure.

Ray never reserves for a big session (fed small ones, a big one starves) and keeps impossible demands pending without a word:
so sessions are admitted here, in plan order. What does not fit yet gets a node reserved, the one where it will fit first;
others may start there meanwhile only if they are expected to be gone by then, or leave room enough (EASY backfilling of
Slurm and Maui). A session over several nodes takes a seat on each at once, or has those reserved that will have room first,
each until the last of them has. Does not own Ray, the order (`plan`, `pack`), or words for what can't be held (`shortage`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush, nlargest, nsmallest
from itertools import islice
from math import inf

from jobs.errors import BadInput
from jobs.spec import Deployment, SessionSpec
from orchestrator.shortage import Demand, Node, demand_of, shortage

__all__ = ["Demand", "Ledger", "Node", "Seat", "Seats", "Waiting", "seat_on"]


@dataclass(frozen=True)
class Seat:
    """What a session holds of one node, and until when it is expected to (on the caller's clock)."""

    node: Node
    cpus: float
    gpus: int
    until_s: float = inf

    def fits(self, cpus: float, gpus: float) -> bool:
        return 0 < self.cpus <= cpus and self.gpus <= gpus


Seats = tuple[Seat, ...]
"""All that a session holds: one on each of its nodes, the first of them that of rank 0."""


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
        self._doubted: Mapping[str, bool] = {}

    @property
    def nodes(self) -> list[Node]:
        return list(self._free)

    def refresh(self, nodes: Iterable[Node], doubted: Mapping[str, bool] | None = None) -> None:
        """The cluster as it is now: a node that has gone takes its seats along, a new one is empty.

        `doubted`: the nodes to choose last, by id, and whether they are to be left alone for now.
        """
        self._doubted = doubted or {}
        self._free = {node: self._free.get(node, (node.cpus, node.gpus)) for node in nodes}
        self._seats = {node: self._seats.get(node, []) for node in self._free}
        self._rooms = {node: {} for node in self._free}
        self._places.clear()

    def refuse_impossible(self, deployments: Iterable[Deployment], to_come: Sequence[Node] = ()) -> None:
        """`BadInput` for the first deployment that could not be held even if all were empty; `to_come` are waited for."""
        nodes = [*self._free, *to_come]
        for deployment in {demand_of(item): item for item in deployments}.values():
            if said := shortage(deployment, nodes):
                raise BadInput(said)

    def is_possible(self, deployment: Deployment) -> bool:
        """Whether it could be held if all were empty: what only a lost node could hold keeps no other waiting."""
        return not shortage(deployment, self.nodes)

    def has_choice(self, deployment: Deployment) -> bool:
        """Whether more nodes could hold it, if all were empty, than it takes."""
        demand = demand_of(deployment)
        return sum(demand.lack_on(node) is None for node in self._free) > demand.nodes

    def admit(self, deployment: Deployment, until_s: float = inf) -> Seats:
        """Seats for this one alone, whoever waits; () = wait."""
        demand = demand_of(deployment)
        return self._taken(self._fullest(demand, until_s, {}), until_s)

    def has_trusted_room(self, deployment: Deployment) -> bool:
        """Whether it could start now, and on no node that is doubted."""
        seats = self._fullest(demand_of(deployment), inf, {})
        return bool(seats) and not any(seat.node.id in self._doubted for seat in seats)

    def next(self, waiting: Waiting, now_s: float) -> tuple[SessionSpec, Seats] | None:
        """The first session of the plan that may start now, no longer waiting, with its seats; None = all have to wait."""
        if not any(self._has_nodes(demand) for demand in waiting.demands):
            return None  # nobody could pass anybody
        kept: dict[Node, Reservation] = {}
        soonest: dict[Demand, Iterator[tuple[Node, Reservation]]] = {}
        passed: set[Demand] = set()
        gaps_s: dict[Demand, float] = {}  # where only gaps are left: the longest
        for number, demand, spec in waiting.in_order(passed):
            if spec.expected_s > gaps_s.get(demand, inf):
                continue
            until_s = now_s + spec.expected_s
            if seats := self._taken(self._fullest(demand, until_s, kept), until_s):
                waiting.take(number, demand)
                return spec, seats
            if demand not in soonest:
                soonest[demand] = self._by_time(demand, now_s)
            kept |= reserved(demand, (item for item in soonest[demand] if item[0] not in kept))
            if sum(seat.node not in kept for seat in self._seats_for(demand)) < demand.nodes:
                gaps_s[demand] = self._longest_gap_s(demand, kept, now_s)
                passed |= {demand} if gaps_s[demand] <= 0 else set()
        return None

    def release(self, seats: Iterable[Seat]) -> None:
        """The session has ended. The seat of a node that has gone is gone already."""
        for seat in seats:
            if seat in self._seats.get(seat.node, ()):
                self._seats[seat.node].remove(seat)
                self._move(seat, +1)

    def _seats_for(self, demand: Demand) -> list[Seat]:
        if demand not in self._places:
            seats = [seat_on(node, demand) for node in self._free if demand.lack_on(node) is None]
            awake = [seat for seat in seats if not self._doubted.get(seat.node.id)]
            self._places[demand] = awake if len(awake) >= max(demand.nodes, len(seats) / 2) else seats
        return self._places[demand]

    def _fullest(self, demand: Demand, until_s: float, kept: Mapping[Node, Reservation]) -> list[Seat]:
        """On the fullest nodes that have room, so that whole nodes stay whole for big sessions; [] = they are too few."""
        free, doubted = self._free, self._doubted
        open_ = (
            seat
            for seat in self._seats_for(demand)
            if self._has_room(seat) and (seat.node not in kept or kept[seat.node].permits(seat, until_s))
        )
        found = nsmallest(demand.nodes, open_, key=lambda seat: (seat.node.id in doubted, *reversed(free[seat.node])))
        return found if len(found) == demand.nodes else []

    def _has_nodes(self, demand: Demand) -> bool:
        """Whether enough nodes have room now, whoever they are kept for."""
        return len(list(islice(filter(self._has_room, self._seats_for(demand)), demand.nodes))) == demand.nodes

    def _longest_gap_s(self, demand: Demand, kept: Mapping[Node, Reservation], now_s: float) -> float:
        """For how long at most a session could start now and be gone before its nodes are needed."""
        gaps_s = (
            kept[seat.node].from_s - now_s if seat.node in kept and not kept[seat.node].permits(seat, inf) else inf
            for seat in self._seats_for(demand)
            if self._has_room(seat)
        )
        longest_s = nlargest(demand.nodes, gaps_s)
        return longest_s[-1] if len(longest_s) == demand.nodes else 0.0

    def _has_room(self, seat: Seat) -> bool:
        return seat.fits(*self._free[seat.node])

    def _by_time(self, demand: Demand, now_s: float) -> Iterator[tuple[Node, Reservation]]:
        """The nodes in the order in which they will have room; what is overdue ends now."""
        rooms = [(seat.node, self._room_for(seat)) for seat in self._seats_for(demand)]
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

    def _taken(self, places: Iterable[Seat], until_s: float) -> Seats:
        seats = tuple(replace(place, until_s=until_s) for place in places)
        for seat in seats:
            self._seats[seat.node].append(seat)
            self._move(seat, -1)
        return seats

    def _move(self, seat: Seat, sign: int) -> None:
        cpus, gpus = self._free[seat.node]
        self._rooms[seat.node].clear()
        self._free[seat.node] = (round(cpus + sign * seat.cpus, 4), gpus + sign * seat.gpus)


def reserved(demand: Demand, soonest: Iterator[tuple[Node, Reservation]]) -> dict[Node, Reservation]:
    """The nodes that have room soonest, each kept until the last of them has; none where they are too few."""
    found = dict(islice(soonest, demand.nodes))
    from_s = max((room.from_s for room in found.values()), default=0.0)
    return {node: replace(room, from_s=from_s) for node, room in found.items()} if len(found) == demand.nodes else {}


def seat_on(node: Node, demand: Demand) -> Seat:
    """What it takes of a node. `engine.cpus` 0 = all CPUs; with GPUs, as large a share of them as of the GPUs."""
    return Seat(node, demand.cpus_of(node), demand.gpus)
