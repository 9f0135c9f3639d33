"""Owns the schema of a sweep's configuration: the parts of a cell (from `jobs.spec`) and what surrounds them.

What a cluster must be is refused as it is made, with `BadInput`. Does not own composition (config), the meaning of an axis
(grid), or the values of a site (conf/).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from jobs.engines import ENGINES
from jobs.errors import BadInput
from jobs.spec import Draft, Engine, Load, Model, Sampling, Workload

PARTS: dict[str, type] = {
    "model": Model,
    "engine": Engine,
    "draft": Draft,
    "workload": Workload,
    "sampling": Sampling,
    "load": Load,
}
"""What a cell is made of: folder of conf/ (and section of the configuration) → its schema."""

AUTO = "auto"
ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")
MOST_NODES = 10_000  # of a pool: they are laid out one by one


def check_address(address: str, name: str = "`cluster.address`") -> None:
    """`BadInput` for what is no address of a Ray: it would import a scheme as a module. Asks nobody.

    `ray://` is refused: Ray's client carries no streams, and those are how results come.
    """
    found = ADDRESS.fullmatch(address)
    if not found or not 1 <= int(found[1]) <= 65535:
        raise BadInput(
            f"{name} must be auto or HOST:PORT, as a node of the cluster has it: got {address!r}. An IPv6 address stands in "
            "brackets. From outside of the cluster, send the sweep there: python -m jobs.submit ray."
        )


class Mode(Enum):
    plan = "plan"  # print what would run
    run = "run"


class Kind(Enum):
    local = "local"  # Ray inside this process, gone with it
    ray = "ray"  # a Ray cluster that exists


@dataclass
class Pool:
    """Nodes that are alike, of a cluster that is still to come: Kubernetes starts them, Slurm allocates them."""

    nodes: int = 1
    cpus: float = 1.0  # of each
    gpus: int = 0  # of each
    gpu_type: str = ""  # as `engine.gpu_type`
    engines: list[str] = field(default_factory=list)  # that these nodes have; [] = all

    def check(self, name: str) -> None:
        """`BadInput` for what no pool of this name can be."""
        _refuse(f"{name}.nodes", self.nodes, 1 <= self.nodes <= MOST_NODES, f"from 1 to {MOST_NODES}")
        _refuse(f"{name}.cpus", self.cpus, 0 < self.cpus < math.inf, "above 0 and finite")
        _refuse(f"{name}.gpus", self.gpus, self.gpus >= 0, "at least 0")
        _refuse_unknown_engines(f"{name}.engines", self.engines)


@dataclass
class Cluster:
    """Where sessions run."""

    kind: Kind = Kind.local
    address: str = "auto"  # of an existing cluster: "auto" (as RAY_ADDRESS or this node says), "host:port"
    namespace: str = "specsweep"
    marks: dict[str, str] = field(default_factory=dict)
    """engine → what a node of its pool carries: a Ray resource, or a label as key=value. Those not named: engine_NAME."""
    pools: dict[str, Pool] = field(
        default_factory=dict
    )  # what the cluster will have, for plans and to wait for; {} = what it has
    node_wait_s: float = 600.0  # for a node that could hold what none can: the last one was lost, or it is still to come
    num_cpus: int | None = None  # local only: CPUs that sessions may take; null = all that this machine has
    num_gpus: int | None = None  # local only: GPUs that sessions may take; null = all that this machine has
    gpu_hour_price: float | None = (
        None  # of one GPU, in your currency: what money in the answers is counted with; null = none
    )

    def __post_init__(self) -> None:
        if self.address != AUTO:
            check_address(self.address)
        wait, price, cpus, gpus = self.node_wait_s, self.gpu_hour_price, self.num_cpus, self.num_gpus
        _refuse("cluster.node_wait_s", wait, 0 <= wait < math.inf, "at least 0 and finite")
        _refuse("cluster.gpu_hour_price", price, price is None or 0 <= price < math.inf, "at least 0 and finite, or null")
        _refuse("cluster.num_cpus", cpus, cpus is None or cpus >= 1, "at least 1, or null for all")
        _refuse("cluster.num_gpus", gpus, gpus is None or gpus >= 0, "at least 0, or null for all")
        _refuse_unknown_engines("cluster.marks", self.marks)
        for name, pool in self.pools.items():
            pool.check(f"cluster.pools.{name}")


def _refuse(key: str, value: object, holds: bool, words: str) -> None:
    if not holds:
        raise BadInput(f"`{key}` must be {words}: got {value!r}.")


def _refuse_unknown_engines(key: str, names: Iterable[str]) -> None:
    for name in names:
        if name not in ENGINES:
            raise BadInput(f"`{key}` must name engines: got {name!r}. Known: {', '.join(ENGINES)}. Use one of them.")


@dataclass
class Run:
    """The folder of the results: `dir/name`. An empty name means the grid's name, or "sweep" without a grid."""

    name: str = ""
    dir: str = "results"


class Goal(Enum):
    none = "none"  # measure every cell
    best_k = "best_k"  # the draft length that serves fastest
    crossover = "crossover"  # the concurrency at which a draft stops to pay
    max_goodput = "max_goodput"  # the draft and concurrency with the most requests a second within the limits on latency


class Metric(Enum):
    user_tps = "user_tps"  # what a user feels
    output_tps = "output_tps"  # what the hardware gives


@dataclass
class Search:
    """Measure only what answers one question, instead of every cell of the grid."""

    goal: Goal = Goal.none
    metric: Metric = Metric.user_tps  # of the speed-up that best_k and crossover are about
    coarse: int = 3  # loads that are looked at first, evenly spaced, both ends among them
    tolerance: float = 0.02  # a gain below this share is not worth a further cell


@dataclass
class Limits:
    """How often one run of the command tries what fails; the next run of the command starts to count anew."""

    max_attempts: int = 2  # tries at a cell
    max_starts: int = 2  # engine starts of a deployment that never got ready


@dataclass
class SweepConfig:
    """One sweep. `axes`: key → list of values; a key without a dot is a folder of conf/, with a dot a field."""

    mode: Mode = Mode.run
    run: Run = field(default_factory=Run)
    cluster: Cluster = field(default_factory=Cluster)
    limits: Limits = field(default_factory=Limits)
    search: Search = field(default_factory=Search)
    model: Model = field(default_factory=Model)
    engine: Engine = field(default_factory=Engine)
    draft: Draft = field(default_factory=Draft)
    workload: Workload = field(default_factory=Workload)
    sampling: Sampling = field(default_factory=Sampling)
    load: Load = field(default_factory=Load)
    axes: dict[str, Any] = field(default_factory=dict)
    thresholds: dict[str, float] = field(
        default_factory=dict
    )  # of verdicts: column of the view `thresholds` → another limit
    exclude: list[dict[str, Any]] = field(default_factory=list)  # partial matches of cells; a value may be a list of values
    repeats: int = 1
    baseline: str = "none"  # what each speculative cell is paired with: "none" (no speculation), "" = add no baselines
