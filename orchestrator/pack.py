"""Owns how a plan is packed onto a cluster: in which order its sessions start, and which are split. Pure.

A simulation with the very ledger that admits says how long each way would take. One engine start per deployment is the rule;
a long session is split only where its parts' extra starts cost less GPU time than the cluster would idle away without them.
Does not own durations (`expected`) or what really happens.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from math import ceil

from jobs.spec import SessionSpec
from orchestrator.expected import Expectation
from orchestrator.ledger import Ledger, Node, Seats, Waiting
from orchestrator.shortage import Demand, demand_of

STRETCHES = (1.0, 1.25, 1.6, 2.0, 3.0)  # of the time that the work takes when it is spread evenly: lengths to split at
MOST_SIMULATED = 2_000  # sessions; with more there is no end at which much could idle, and one order is as good as another

ORDERS: tuple[Callable[[SessionSpec], float], ...] = (
    lambda spec: -spec.expected_s,
    lambda spec: -spec.expected_s * max(1, spec.deployment.gpus),
    lambda spec: -spec.deployment.gpus * 1e9 - spec.expected_s,
)
"""Longest first; most GPU time first; widest first. Stable: equals stay in the grid's order."""


@dataclass(frozen=True)
class Packed:
    """A plan for a cluster. `makespan_s`: until its last session ends; no schedule can take less than `lower_bound_s`."""

    sessions: list[SessionSpec]
    makespan_s: float
    lower_bound_s: float


def pack(plan: Sequence[SessionSpec], nodes: Sequence[Node], expectation: Expectation) -> Packed:
    """The plan in the order, and with the splits, that cost least: GPU time of the cluster until the end."""
    if len(plan) > MOST_SIMULATED:
        return _packed(plan, nodes)
    whole = [_packed(sorted(plan, key=order), nodes) for order in ORDERS]
    best = min(whole, key=lambda candidate: candidate.makespan_s)  # the first of equals, here and below
    order = ORDERS[whole.index(best)]
    parted = [_packed(sorted(parts, key=order), nodes) for parts in _splits(plan, nodes, expectation)]
    return min([best, *parted], key=lambda candidate: round(_cost_s(candidate, nodes), 6))


def _packed(plan: Sequence[SessionSpec], nodes: Sequence[Node]) -> Packed:
    return Packed(list(plan), simulate(plan, nodes), lower_bound_s(plan, nodes))


def _cost_s(packed: Packed, nodes: Sequence[Node]) -> float:
    """Node-seconds: the cluster until the end, and what the sessions use of it, in which extra starts are."""
    used_s = sum(seconds * _share(demand, nodes) for demand, seconds in _seconds(packed.sessions).items())
    return packed.makespan_s * len(nodes) + used_s


def simulate(plan: Sequence[SessionSpec], nodes: Sequence[Node]) -> float:
    """When its last session ends, if all take as long as expected; what fits nowhere is left out."""
    ledger, waiting = Ledger(nodes), Waiting(plan)
    running: list[tuple[float, int, Seats]] = []
    now_s, started = 0.0, 0
    while True:
        while found := ledger.next(waiting, now_s):
            started += 1
            heappush(running, (found[1][0].until_s, started, found[1]))
        if not running:
            return now_s
        now_s, _, seats = heappop(running)
        ledger.release(seats)


def lower_bound_s(plan: Sequence[SessionSpec], nodes: Sequence[Node]) -> float:
    """The longest session, or all work spread evenly over the nodes that can do it: no schedule of them is shorter."""
    return max([spec.expected_s for spec in plan] + [even_s(plan, nodes)], default=0.0)


def even_s(plan: Sequence[SessionSpec], nodes: Sequence[Node]) -> float:
    """The work of a pool over what the pool has, of the pool that has most to do."""
    work: dict[tuple[frozenset[Node], bool], float] = {}
    for demand, seconds in _seconds(plan).items():
        if places := frozenset(_places(demand, nodes)):
            amount = demand.gpus * demand.nodes or _share(demand, nodes)
            key = (places, bool(demand.gpus))
            work[key] = work.get(key, 0.0) + seconds * amount
    return max((seconds / _capacity(places, of_gpus) for (places, of_gpus), seconds in work.items()), default=0.0)


def _seconds(plan: Iterable[SessionSpec]) -> dict[Demand, float]:
    total: dict[Demand, float] = defaultdict(float)
    for spec in plan:
        total[demand_of(spec.deployment)] += spec.expected_s
    return total


def _places(demand: Demand, nodes: Iterable[Node]) -> list[Node]:
    """The nodes that it could be on; none where they are too few."""
    found = [node for node in nodes if demand.lack_on(node) is None]
    return found if len(found) >= demand.nodes else []


def _capacity(places: frozenset[Node], of_gpus: bool) -> float:
    return sum(node.gpus for node in places) if of_gpus else len(places)


def _share(demand: Demand, nodes: Iterable[Node]) -> float:
    """How many nodes it takes; less than one where it takes the smallest part of one that it can."""
    places = _places(demand, nodes)
    parts = (max(demand.cpus_of(node) / node.cpus, demand.gpus / (node.gpus or 1)) for node in places)
    return demand.nodes * min(parts, default=0.0)


def _splits(plan: Sequence[SessionSpec], nodes: Sequence[Node], expectation: Expectation) -> Iterator[list[SessionSpec]]:
    even = even_s(plan, nodes)
    for stretch in STRETCHES:
        if any(_n_parts(spec, even * stretch) > 1 for spec in plan):
            yield [part for spec in plan for part in split(spec, _n_parts(spec, even * stretch), expectation)]


def _n_parts(spec: SessionSpec, most_s: float) -> int:
    return min(len(spec.orders), ceil(spec.expected_s / most_s)) if most_s > 0 else 1


def split(spec: SessionSpec, n_parts: int, expectation: Expectation) -> list[SessionSpec]:
    """Parts of about equal length, each with its own start; cells stay in their order, so that repeats stay together."""
    if n_parts < 2:
        return [spec]
    start_s = expectation.start_s(spec.deployment.id)
    lengths = [expectation.cell_s(order.cell) for order in spec.orders]
    groups: list[list[int]] = [[] for _ in range(n_parts)]
    spent = 0.0
    for position, length in enumerate(lengths):
        middle = (spent + length / 2) / (sum(lengths) or 1.0)
        groups[min(int(middle * n_parts), n_parts - 1)].append(position)
        spent += length
    return [
        replace(
            spec,
            session_id=spec.session_id if number == 0 else f"{spec.session_id}.{number}",
            orders=tuple(spec.orders[position] for position in group),
            expected_s=start_s + sum(lengths[position] for position in group),
        )
        for number, group in enumerate(group for group in groups if group)
    ]
