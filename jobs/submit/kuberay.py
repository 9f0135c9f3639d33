"""Owns sweeps as KubeRay jobs: one RayJob manifest, written as YAML. Does not own the images, the volume or the operator."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import yaml

from jobs.errors import BadInput
from jobs.submit.sweep_command import sweep_command

SOURCE = "/opt/specsweep"  # where the images of docker/ keep the project
RESULTS = "/results"
KUBERNETES_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?")


@dataclass(frozen=True)
class Pods:
    """What to ask Kubernetes for. `workers` is engine → image; each is a group of `replicas` pods with `gpus` GPUs each."""

    name: str
    namespace: str
    head_image: str
    results_claim: str
    workers: Mapping[str, str] = field(default_factory=dict)
    replicas: int = 1
    gpus: int = 0
    token_secret: str = ""  # a Secret whose keys become the environment of every pod (HF_TOKEN)


def rayjob(overrides: Sequence[str], pods: Pods) -> dict[str, Any]:
    """The RayJob: its cluster asks for a token, and goes when the sweep has ended; the results stay on the claim. Pure."""
    for name in (pods.name, *pods.workers):
        if not KUBERNETES_NAME.fullmatch(name):
            raise BadInput(f"A name in Kubernetes must be small letters, digits and `-`: got {name!r}.")
    command = sweep_command(overrides, script=f"{SOURCE}/sweep.py", results=RESULTS)
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": pods.name, "namespace": pods.namespace},
        "spec": {
            "entrypoint": shlex.join(command),
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": 600,
            "backoffLimit": 0,
            "rayClusterSpec": _cluster(pods),
        },
    }


def _cluster(pods: Pods) -> dict[str, Any]:
    return {
        "rayVersion": version("ray"),
        "authOptions": {"mode": "token"},
        "headGroupSpec": {"rayStartParams": {"num-cpus": "0"}, "template": _pod("head", pods.head_image, pods, gpus=0)},
        "workerGroupSpecs": [_worker_group(engine, image, pods) for engine, image in pods.workers.items()],
    }


def _worker_group(engine: str, image: str, pods: Pods) -> dict[str, Any]:
    return {
        "groupName": engine,
        "replicas": pods.replicas,
        "minReplicas": pods.replicas,
        "maxReplicas": pods.replicas,
        "rayStartParams": {},
        "template": _pod(engine, image, pods, gpus=pods.gpus),
    }


def _pod(name: str, image: str, pods: Pods, *, gpus: int) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": f"ray-{name}",
        "image": image,
        "volumeMounts": [{"name": "results", "mountPath": RESULTS}],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    if gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": gpus}}
    if pods.token_secret:
        container["envFrom"] = [{"secretRef": {"name": pods.token_secret}}]
    return {
        "spec": {
            "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "fsGroup": 1000},
            "containers": [container],
            "volumes": [{"name": "results", "persistentVolumeClaim": {"claimName": pods.results_claim}}],
        }
    }


def manifest(job: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(job), sort_keys=False)
