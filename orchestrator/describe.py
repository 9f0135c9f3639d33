"""Owns how a plan is told to a person: what would run, how long, and what that costs. Pure. Does not own the plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from jobs.spec import Cell, SessionSpec
from orchestrator.expected import Expectation
from orchestrator.labels import deployment_labels
from orchestrator.pace import told_forecast
from orchestrator.pack import Packed
from orchestrator.progress import words_of
from orchestrator.shortage import Node, mixed_types, shortage


def describe(
    name: str,
    cells: Sequence[Cell],
    plan: Sequence[SessionSpec],
    expectation: Expectation,
    nodes: Sequence[Node] = (),
    packed: Packed | None = None,
    why_no_nodes: str = "",
) -> str:
    """The plan of a run as text: cells, sessions, engine starts, GPU-hours; how long it takes on these nodes, and what they
    cannot hold."""
    left = sum(len(session.orders) for session in plan)
    head = f"{name}: {counted(len(cells), 'cell')}, {len(cells) - left} measured, {left} to measure"
    if not plan:
        return f"{head}. Nothing to do: everything is already measured."
    sessions = packed.sessions if packed else plan
    there = (
        _there(plan, nodes, packed)
        if packed
        else [f"how long it takes together is not known: {why_no_nodes}"] * bool(why_no_nodes)
    )
    costs = _costs(sessions, expectation)
    return "\n".join([head, *costs, *there, *_queues(plan), *_starved(plan, expectation), "", *_sessions(sessions)])


def counted(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _costs(plan: Sequence[SessionSpec], expectation: Expectation) -> Iterator[str]:
    total_s = sum(session.expected_s for session in plan)
    n = len(plan)
    yield f"{counted(n, 'session')}, {counted(n, 'engine start')}, about {words_of(total_s)} if they run one by one"
    yield f"expected from {expectation.source}"
    if gpu_s := sum(session.expected_s * session.deployment.gpus for session in plan):
        yield f"{gpu_s / 3600:.2f} GPU-hours"


def _there(plan: Sequence[SessionSpec], nodes: Sequence[Node], packed: Packed) -> Iterator[str]:
    """On these nodes: alike ones counted together."""
    alike = Counter(f"{node.cpus:g} CPUs, {node.gpus:g} {node.gpu_type or 'GPUs'}" for node in nodes)
    cluster = "; ".join(f"{counted(n, 'node')} of {kind}" for kind, n in alike.items())
    yield f"on {cluster}: {told_forecast(packed)}"
    if mixed := mixed_types((spec.deployment for spec in plan), nodes):
        yield mixed
    yield from {f"cannot run there: {said}" for spec in plan if (said := shortage(spec.deployment, nodes))}


def _queues(plan: Sequence[SessionSpec]) -> Iterator[str]:
    cells = [order.cell for session in plan for order in session.orders]
    if queued := sum(c.load.kind == "closed" and c.load.concurrency > c.deployment.engine.batch for c in cells):
        yield f"{counted(queued, 'cell')} with load.concurrency above engine.batch: they queue, and TTFT shows it"


def _starved(plan: Sequence[SessionSpec], expectation: Expectation) -> Iterator[str]:
    """What can be told to become invalid before it is measured."""
    closed = [order.cell for session in plan for order in session.orders if order.cell.load.kind == "closed"]
    if starved := sum(expectation.size_of(cell.workload).n_conversations < cell.load.concurrency for cell in closed):
        yield (
            f"{counted(starved, 'cell')} with fewer prompts than load.concurrency: they will be invalid (too_few_requests). "
            "Raise workload.limit, best to several times the concurrency"
        )


def _sessions(plan: Sequence[SessionSpec]) -> Iterator[str]:
    labels = deployment_labels(session.deployment for session in plan)
    for number, session in enumerate(plan, 1):
        nodes = session.deployment.engine.nodes
        over = f", on each of {nodes} nodes" if nodes > 1 else ""
        gpus = f", {counted(session.deployment.gpus_a_node, 'GPU')}" if session.deployment.gpus else ""
        size = f"{counted(len(session.orders), 'cell')}, about {words_of(session.expected_s)}{over}{gpus}"
        yield f"{number:4}  {labels[session.deployment.id]}: {size}"
