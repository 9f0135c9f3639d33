"""Owns what is known of where sessions will run before Ray runs there: enough to refuse what could never be held, no guess.

Does not own admission (ledger), nor what Ray then finds, which decides.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from jobs.models import locate
from jobs.spec import Deployment
from orchestrator.ledger import Ledger, Node
from orchestrator.settings import Cluster, Kind

GPU_DEVICES = ("nvidia[0-9]*", "kfd", "dri", "dxg")
"""Files under /dev, one of which every GPU driver on Linux makes: NVIDIA, AMD, Intel and others, WSL."""


def refuse_impossible_here(cluster: Cluster, deployments: Iterable[Deployment], devices: Path = Path("/dev")) -> None:
    """`BadInput` for what a Ray of our own could never hold, where that is known: nothing has been started or written."""
    if cluster.kind is Kind.local and (node := this_machine(cluster, devices)):
        Ledger([node]).refuse_impossible(_of_any_type(item) for item in deployments)


def this_machine(cluster: Cluster, devices: Path = Path("/dev")) -> Node | None:
    """As a Ray of our own would have it; None = only Ray can tell how many GPUs there are."""
    gpus = cluster.num_gpus if cluster.num_gpus is not None else _gpus(devices)
    return None if gpus is None else Node("", "here", cluster.num_cpus or os.cpu_count() or 1, gpus)


def nodes_to_come(cluster: Cluster) -> list[Node]:
    """The nodes of `cluster.pools`."""
    return [
        Node(
            f"{name}-{number}",
            f"{name}-{number}",
            pool.cpus,
            pool.gpus,
            pool.gpu_type.upper(),
            frozenset(pool.engines) if pool.engines else None,
        )
        for name, pool in cluster.pools.items()
        for number in range(pool.nodes)
    ]


def _of_any_type(deployment: Deployment) -> Deployment:
    """The type of a GPU is for Ray to find."""
    return replace(deployment, engine=replace(deployment.engine, gpu_type=""))


def refuse_absent_models(cluster: Cluster, deployments: Sequence[Deployment]) -> None:
    """`BadInput` for a model that is not on this machine, where the sessions will run on it. Fetches nothing."""
    if cluster.kind is not Kind.local:
        return
    named = {(item.model.path, item.model.revision, "model.path") for item in deployments}
    named |= {
        (item.draft.model, item.draft.revision, "draft.model")
        for item in deployments
        if item.draft.model and not item.engine.url
    }
    for path, revision, key in sorted(named):
        locate(path, revision, key)


def _gpus(devices: Path) -> int | None:
    """0 where there is no driver of one; None = there may be some."""
    has_driver = any(True for pattern in GPU_DEVICES for _ in devices.glob(pattern))
    return None if has_driver or sys.platform != "linux" else 0
