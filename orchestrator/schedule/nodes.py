"""Owns the cluster as Ray tells it: its living nodes, what they have, which engines they are for. Does not own admission.

A node is marked for an engine by a Ray resource, `engine_vllm`, or by what `cluster.marks` says. Where no node is marked,
any node is for any engine. Where one is, or was, an engine runs on the nodes that are marked for it and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ray

from jobs.engines import ENGINES
from orchestrator.ledger import Node
from orchestrator.settings import Cluster

TYPE_LABEL = "ray.io/accelerator-type"
TYPE_RESOURCE = "accelerator_type:"


class Fleet:
    """The nodes of the cluster that Ray is connected to."""

    def __init__(self, cluster: Cluster) -> None:
        self._marks = {name: cluster.marks.get(name) or f"engine_{name}" for name in ENGINES}
        self._is_marked = bool(cluster.marks)

    def nodes(self) -> list[Node]:
        """Those that live now."""
        alive = [item for item in ray.nodes() if item["Alive"]]
        engines = [frozenset(name for name, mark in self._marks.items() if carries(item, mark)) for item in alive]
        self._is_marked = self._is_marked or any(engines)  # the last marked node may be lost: no other takes its place
        return [node_of(item, found if self._is_marked else None) for item, found in zip(alive, engines, strict=True)]


def nodes_of(cluster: Cluster) -> list[Node]:
    """Of the cluster that Ray is connected to, once."""
    return Fleet(cluster).nodes()


def node_of(item: Mapping[str, Any], engines: frozenset[str] | None) -> Node:
    has = item["Resources"]
    return Node(
        item["NodeID"], item["NodeManagerHostname"], has.get("CPU", 0.0), has.get("GPU", 0.0), gpu_type_of(item), engines
    )


def carries(item: Mapping[str, Any], mark: str) -> bool:
    """Whether a node has a resource of that name, or a label where the mark is key=value."""
    key, is_label, value = mark.partition("=")
    labels = item.get("Labels") or {}
    return labels.get(key) == value if is_label else mark in item["Resources"]


def gpu_type_of(item: Mapping[str, Any]) -> str:
    """Ray finds it on NVIDIA's, AMD's and Intel's devices, or was told it when the node started."""
    resources = [name.removeprefix(TYPE_RESOURCE) for name in item["Resources"] if name.startswith(TYPE_RESOURCE)]
    return str((item.get("Labels") or {}).get(TYPE_LABEL) or next(iter(resources), "")).upper()
