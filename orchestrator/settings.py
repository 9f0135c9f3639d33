"""Owns the schema of a sweep's configuration: the parts of a cell (from `jobs.spec`) and what surrounds them.

Does not own composition (config), the meaning of an axis (grid), or the values of a site (conf/).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

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


@dataclass
class Cluster:
    """Where sessions run."""

    kind: Kind = Kind.local
    address: str = (
        "auto"  # of an existing cluster: "auto" (as RAY_ADDRESS or this node says), "host:port", "ray://host:port"
    )
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
