"""Owns sweeps as KubeRay jobs: one RayJob manifest, written as YAML. Does not own the images, the volume or the operator."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import yaml

from jobs.errors import BadInput
from jobs.submit.programs import hand_to
from jobs.submit.sweep_command import ROOT, sweep_command

SOURCE = "/opt/specsweep"  # where the images of docker/ keep the project
RESULTS = "/results"
KUBERNETES_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?")
BUCKET = re.compile(r"(s3|gs)://[^/]+.*")
PLANNED = re.compile(r"^ *\d+  \S+ (\w+) .*?(?:, on each of (\d+) nodes)?(?:, (\d+) GPUs?)?$", re.MULTILINE)
"""A session in what mode=plan prints."""


@dataclass(frozen=True)
class Pods:
    """What to ask Kubernetes for. `workers` is engine → image; each is a group of `replicas` pods, marked for its engine."""

    name: str
    namespace: str
    head_image: str
    workers: Mapping[str, str] = field(default_factory=dict)
    gpus: Mapping[str, int] = field(default_factory=dict)  # engine → GPUs of each pod
    replicas: int = 1
    cpus: int = 0  # of each worker pod, as is `memory`; 0 and "" leave them to the cluster
    memory: str = ""
    results_claim: str = ""  # a PersistentVolumeClaim, or else
    results: str = ""  # a bucket: s3://...
    secrets: Sequence[str] = ()  # whose keys become the environment of every pod (HF_TOKEN, keys of a bucket)
    service_account: str = ""  # of the pods: how clouds give them a bucket without a key


def check_pods(overrides: Sequence[str], pods: Pods) -> None:
    """`BadInput` for what can be refused without the sweep's plan, which takes seconds: names, and where results go."""
    for name in (pods.name, *map(_group, pods.workers)):
        if not KUBERNETES_NAME.fullmatch(name):
            raise BadInput(f"A name in Kubernetes must be small letters, digits and `-`: got {name!r}.")
    if bool(pods.results_claim) == bool(pods.results):
        raise BadInput("Results must go to one place: give --results-claim CLAIM or --results s3://BUCKET/FOLDER.")
    check_results(overrides, pods)


def rayjob(overrides: Sequence[str], pods: Pods) -> dict[str, Any]:
    """The RayJob: its cluster asks for a token, and goes when the sweep has ended; the results stay. Pure."""
    command = sweep_command(overrides, script=f"{SOURCE}/sweep.py", results=pods.results or RESULTS)
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


def groups_of(pairs: Sequence[tuple[str, str]], root: Path = ROOT) -> dict[str, str]:
    """Engine → image; `BadInput` for an engine that there is not, or twice."""
    engines = sorted({yaml.safe_load(path.read_text())["name"] for path in root.glob("conf/engine/*.yaml")})
    groups: dict[str, str] = {}
    for engine, image in pairs:
        if engine not in engines:
            raise BadInput(f"`--worker` must name an engine: got {engine!r}. There are {', '.join(engines)}.")
        if engine in groups:
            raise BadInput(f"`--worker` must name each engine once: got {engine} twice. --replicas gives it more pods.")
        groups[engine] = image
    return groups


def check_results(overrides: Sequence[str], pods: Pods) -> None:
    """`BadInput` for results that would go with the head's pod: neither in a bucket nor on the claim that is mounted."""
    if pods.results and not BUCKET.fullmatch(pods.results):
        raise BadInput(
            f"`--results` must be a bucket, as s3://BUCKET/FOLDER or gs://BUCKET/FOLDER: got {pods.results!r}. "
            "A folder goes with its pod; --results-claim keeps one."
        )
    for folder in filter(None, map(_run_dir, overrides)):
        if pods.results_claim and not _is_mounted(folder):
            raise BadInput(f"`run.dir` must lie in {RESULTS}, where --results-claim is: got {folder}. Leave it out.")
        if pods.results and not BUCKET.fullmatch(folder):
            raise BadInput(f"`run.dir` must be a bucket, as --results is: got {folder}. Leave it out.")


def _run_dir(override: str) -> str:
    """What an override says about the results' folder, "" where it says nothing."""
    name, _, value = override.lstrip("+").partition("=")
    return value.strip("'\"") if name == "run.dir" else ""


def _is_mounted(folder: str) -> bool:
    path = PurePosixPath(folder)
    return path.is_relative_to(RESULTS) and ".." not in path.parts


class Largest(NamedTuple):
    """The most that a session of an engine takes."""

    nodes: int = 1
    gpus: int = 0  # of each


def largest_of_the_grid(overrides: Sequence[str], root: Path = ROOT) -> dict[str, Largest]:
    """Engine → what its sessions take, as the sweep's own plan says. Starts nothing but that."""
    chosen = {override.lstrip("+").partition("=")[0] for override in overrides}
    where = [] if "cluster" in chosen else ["cluster=ray_to_come"]
    asked = [override for override in overrides if not _run_dir(override)]
    with tempfile.TemporaryDirectory() as nothing_measured:  # what this machine has measured is not on the cluster
        command = [sys.executable, "sweep.py", *where, *asked, f"run.dir={nothing_measured}", "mode=plan"]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    found: dict[str, Largest] = {}
    for engine, nodes, gpus in PLANNED.findall(done.stdout):
        most = found.get(engine, Largest())
        found[engine] = Largest(max(most.nodes, int(nodes or 1)), max(most.gpus, int(gpus or 0)))
    if not found:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise BadInput(f"The sweep must have a plan, for the GPUs of each pod: {said[-1] if said else 'it said nothing'}")
    return found


def checked_gpus(found: Mapping[str, Largest], workers: Mapping[str, str], replicas: int) -> dict[str, int]:
    """The GPUs of each group's pods; `BadInput` for an engine that has no group, or fewer pods than a session takes."""
    if missing := sorted(set(found) - set(workers)):
        raise BadInput(
            f"Each engine of the grid must have a group of pods: {missing[0]} has none. Add --worker {missing[0]}=IMAGE."
        )
    if wide := [(most.nodes, engine) for engine, most in found.items() if most.nodes > replicas]:
        nodes, engine = max(wide)
        raise BadInput(
            f"`--replicas` must be enough for each session: got {replicas}, and one of {engine} is on {nodes} nodes "
            f"(engine.nodes). Give --replicas {nodes} or more."
        )
    return {engine: found.get(engine, Largest()).gpus for engine in workers}


def apply_manifest(text: str) -> str:
    """Hand it to kubectl; what that says."""
    if not shutil.which("kubectl"):
        raise BadInput("--apply needs `kubectl`, which is not on PATH. Without --apply, the manifest is printed.")
    return hand_to(["kubectl", "apply", "-f", "-"], text)


def _group(engine: str) -> str:
    return engine.replace("_", "-")


def _cluster(pods: Pods) -> dict[str, Any]:
    return {
        "rayVersion": version("ray"),
        "authOptions": {"mode": "token"},
        "headGroupSpec": {"rayStartParams": {"num-cpus": "0"}, "template": _pod("head", pods.head_image, pods, {})},
        "workerGroupSpecs": [_worker_group(engine, image, pods) for engine, image in pods.workers.items()],
    }


def _worker_group(engine: str, image: str, pods: Pods) -> dict[str, Any]:
    limits = {"cpu": pods.cpus, "memory": pods.memory, "nvidia.com/gpu": pods.gpus.get(engine, 0)}
    return {
        "groupName": _group(engine),
        "replicas": pods.replicas,
        "minReplicas": pods.replicas,
        "maxReplicas": pods.replicas,
        # KubeRay puts it into a shell's command as it is: hence the quotes within
        "rayStartParams": {"resources": shlex.quote(json.dumps({f"engine_{engine}": 1}))},
        "template": _pod(_group(engine), image, pods, {name: amount for name, amount in limits.items() if amount}),
    }


def _pod(name: str, image: str, pods: Pods, limits: Mapping[str, Any]) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": f"ray-{name}",
        "image": image,
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    unprivileged = {"runAsNonRoot": True, "runAsUser": 1000, "fsGroup": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
    spec: dict[str, Any] = {"securityContext": unprivileged, "containers": [container]}
    if limits:
        container["resources"] = {"limits": dict(limits)}
    if pods.secrets:
        container["envFrom"] = [{"secretRef": {"name": secret}} for secret in pods.secrets]
    if pods.results_claim:
        container["volumeMounts"] = [{"name": "results", "mountPath": RESULTS}]
        spec["volumes"] = [{"name": "results", "persistentVolumeClaim": {"claimName": pods.results_claim}}]
    if pods.service_account:
        spec["serviceAccountName"] = pods.service_account
    else:
        spec["automountServiceAccountToken"] = False
    return {"spec": spec}


def manifest(job: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(job), sort_keys=False)
