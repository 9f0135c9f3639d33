"""Owns what a session needs of its nodes, and the words for what a cluster does not have. Pure.

Does not own what is taken at the moment (`ledger`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from jobs.engines import engine_named
from jobs.spec import Deployment

ENGINE, GPU_TYPE, GPUS, CPUS = range(4)


@dataclass(frozen=True)
class Node:
    """A node of the cluster and all that it has."""

    id: str
    name: str
    cpus: float
    gpus: float
    gpu_type: str = ""  # in capitals; "" = not known
    engines: frozenset[str] | None = None  # that it has; None = any

    def __hash__(self) -> int:  # the ledger looks nodes up all the time
        return hash(self.id)


@dataclass(frozen=True)
class Demand:
    """What a session takes, and where: sessions with the same demand are the same to the ledger."""

    engine: str  # "" = any node will do: the engine runs elsewhere
    gpus: int  # of each node
    gpu_type: str
    cpus: float  # of each node, as `engine.cpus`: 0 = as many as go with the GPUs, or all
    nodes: int = 1

    def cpus_of(self, node: Node) -> float:
        if self.cpus:
            return self.cpus
        share = self.gpus / node.gpus if self.gpus and node.gpus else 1.0
        return int(node.cpus * min(share, 1.0) * 10_000) / 10_000  # the precision that Ray accepts

    def lack_on(self, node: Node) -> int | None:
        """The first thing that the node has not, were it empty; None = it could hold this."""
        if self.engine and node.engines is not None and self.engine not in node.engines:
            return ENGINE
        if self.gpu_type and node.gpu_type != self.gpu_type:
            return GPU_TYPE
        if self.gpus > node.gpus:
            return GPUS
        return None if 0 < self.cpus_of(node) <= node.cpus else CPUS


def demand_of(deployment: Deployment) -> Demand:
    engine = deployment.engine
    gpus = deployment.gpus_a_node
    return Demand("" if engine.url else engine.name, gpus, engine.gpu_type if gpus else "", engine.cpus, engine.nodes)


def shortage(deployment: Deployment, nodes: Sequence[Node]) -> str:
    """Why these nodes could never hold it, in one line; "" = they can."""
    demand = demand_of(deployment)
    lacks = [demand.lack_on(node) for node in nodes]
    if fit := [node for node, lack in zip(nodes, lacks, strict=True) if lack is None]:
        got, remedy = _unlike(deployment, fit) or _too_few_nodes(deployment, fit)
    else:
        nearest = max((lack for lack in lacks if lack is not None), default=CPUS)  # who came furthest says what is missing
        close = [node for node, lack in zip(nodes, lacks, strict=True) if lack == nearest]
        got, remedy = _WORDS[nearest](deployment, close)
    where = "one node" if demand.nodes == 1 else f"its {demand.nodes} nodes"
    return f"a session must fit on {where}: got {got} (of {len(nodes)} nodes). {remedy}" if got else ""


def mixed_types(deployments: Iterable[Deployment], nodes: Sequence[Node]) -> str:
    """A warning where a session that names no type could get one or another; "" = none could."""
    for demand in {demand_of(item) for item in deployments}:
        types = sorted({node.gpu_type for node in nodes if demand.gpus and demand.lack_on(node) is None})
        if len(types) > 1:
            return (
                f"The GPUs are of several types, and a draft may be measured on another one than its baseline. "
                f"Name one, or sweep over them: axes.engine.gpu_type=[{','.join(types)}]"
            )
    return ""


def _no_engine(deployment: Deployment, nodes: Sequence[Node]) -> tuple[str, str]:
    name = deployment.engine.name
    there = Counter(engine for node in nodes for engine in node.engines or ())
    has = ", ".join(f"{engine} on {n}" for engine, n in sorted(there.items())) or "none on any"
    return (
        f"engine.name={name}, and no node is marked for it; marked are {has}",
        f"Start a node with the resource engine_{name}, or with what `cluster.marks.{name}` says.",
    )


def _no_gpu_type(deployment: Deployment, nodes: Sequence[Node]) -> tuple[str, str]:
    there: dict[str, float] = {kind: 0.0 for kind in sorted({node.gpu_type for node in nodes if node.gpus})}
    for node in nodes:
        if node.gpus:
            there[node.gpu_type] += node.gpus
    has = ", ".join(f"{n:g} {kind or 'of unknown type'}" for kind, n in there.items()) or "none"
    return (
        f"engine.gpu_type={deployment.engine.gpu_type}, and the GPUs of the cluster are: {has}",
        "Name one of these types, or choose another cluster.",
    )


def _too_few_gpus(deployment: Deployment, nodes: Sequence[Node]) -> tuple[str, str]:
    engine, most = deployment.engine, max(node.gpus for node in nodes)
    names = ("tp", "pp", "dp", "nodes")
    shape = [f"engine.{name}={n}" for name in names if (n := getattr(engine, name)) > 1 or name == "tp"]
    kind = f" {engine.gpu_type}" if engine.gpu_type else ""
    each = " of each node" if engine.nodes > 1 else ""
    return (
        f"{' '.join(shape)} takes {deployment.gpus_a_node} GPUs{each}, and the largest node has {most:g}{kind}",
        _remedy(deployment, nodes) if most else "Choose another cluster, or engine.device=cpu.",
    )


def _remedy(deployment: Deployment, nodes: Sequence[Node]) -> str:
    """More nodes, where the engine can and the cluster has them."""
    engine = deployment.engine
    if engine_named(engine.name).over_nodes.refusal:
        return f"Lower engine.tp, or choose another cluster: {engine.name} is not started over several nodes."
    for more in range(engine.nodes + 1, len(nodes) + 1):
        wider = replace(deployment, engine=replace(engine, nodes=more))
        if engine.devices % more == 0 and not shortage(wider, nodes):
            return f"Set engine.nodes={more}, or lower engine.tp."
    return "Lower engine.tp, or choose another cluster: this one has not that many over several nodes either."


def _unlike(deployment: Deployment, fit: Sequence[Node]) -> tuple[str, str] | None:
    """An engine over several nodes has GPUs of one type, or what is measured is those of the slower ones."""
    types = sorted({node.gpu_type for node in fit if deployment.gpus})
    if deployment.engine.nodes == 1 or len(types) < 2:
        return None
    return (
        f"engine.nodes={deployment.engine.nodes}, and GPUs of the types {', '.join(kind or 'unknown' for kind in types)}",
        "Name one, as engine.gpu_type=TYPE: an engine over several nodes takes GPUs of one type.",
    )


def _too_few_nodes(deployment: Deployment, fit: Sequence[Node]) -> tuple[str, str]:
    """Nothing where they are enough."""
    engine = deployment.engine
    if len(fit) >= engine.nodes:
        return "", ""
    gpus = f" with {deployment.gpus_a_node} GPUs each" if deployment.gpus else ""
    return (
        f"engine.nodes={engine.nodes}{gpus}, and such nodes are {len(fit)}",
        "Lower engine.nodes, or choose another cluster.",
    )


def _too_few_cpus(deployment: Deployment, nodes: Sequence[Node]) -> tuple[str, str]:
    most = max((node.cpus for node in nodes), default=0)
    return (
        f"engine.cpus={deployment.engine.cpus:g}, and the largest node has {most:g} CPUs",
        "Lower engine.cpus, or choose another cluster.",
    )


_WORDS: Sequence[Callable[[Deployment, Sequence[Node]], tuple[str, str]]] = (
    _no_engine,
    _no_gpu_type,
    _too_few_gpus,
    _too_few_cpus,
)
