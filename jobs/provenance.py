"""Owns what a session was measured on: host, GPUs, library versions, our own commit. Does not own the engine's facts."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

PROJECT_ROOT = Path(__file__).resolve().parent.parent
GIT_LIMIT_S = 30.0
LIBRARIES = ("ray", "hydra-core", "pyarrow", "duckdb", "numpy", "transformers", "tokenizers")


def local_path(text: str | Path) -> Path:
    """The path that a user gave: `~` is their home, and what is relative is of the project, wherever one stands.

    A home that is not there stays as it was written: then nothing is found, and it is the caller who says so.
    """
    return PROJECT_ROOT / os.path.expanduser(text)  # noqa: PTH111 (pathlib's raises)


def node_name() -> str:
    return platform.node()


def host_facts() -> dict[str, Any]:
    """CPU, memory and operating system of this node."""
    return {
        "cpu": cpu_name(),
        "cpus": os.cpu_count(),
        "cores": psutil.cpu_count(logical=False),
        "memory_bytes": psutil.virtual_memory().total,
        "os": platform.platform(),
        "machine": platform.machine(),
    }


@lru_cache
def cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def worker_versions() -> dict[str, str]:
    """Versions of what measures: Python and our libraries."""
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def gpu_facts(devices: Sequence[str]) -> list[dict[str, Any]]:
    """Name, UUID, memory and driver of the assigned GPUs, and what is used of them now; [] where there is none."""
    from jobs.gpus import open_gpus

    gpus = open_gpus(devices)
    if not gpus:
        return []
    import pynvml

    try:
        driver = pynvml.nvmlSystemGetDriverVersion()
        return [
            {
                "device": gpu.name,
                "name": pynvml.nvmlDeviceGetName(gpu.handle),
                "uuid": pynvml.nvmlDeviceGetUUID(gpu.handle),
                "memory_bytes": pynvml.nvmlDeviceGetMemoryInfo(gpu.handle).total,
                "used_bytes": pynvml.nvmlDeviceGetMemoryInfo(gpu.handle).used,  # before our engine starts: by others
                "driver": driver,
            }
            for gpu in gpus
        ]
    except pynvml.NVMLError as fault:
        return [{"device": gpu.name, "error": str(fault)} for gpu in gpus]


@lru_cache
def git_state() -> tuple[str, bool | None]:
    """(commit, whether the working tree differs from it); ("", None) outside a clone or without git."""
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return os.environ.get("SPECSWEEP_COMMIT", ""), None  # an image has no clone, and says so itself
    changes = _git("status", "--porcelain", "--untracked-files=no")
    return commit, None if changes is None else bool(changes)


def _git(*words: str) -> str | None:
    git = shutil.which("git")
    if git is None or not (PROJECT_ROOT / ".git").exists():
        return None
    command = [git, "-C", str(PROJECT_ROOT), *words]
    with contextlib.suppress(subprocess.TimeoutExpired):
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=GIT_LIMIT_S)
        return done.stdout.strip() if done.returncode == 0 else None
    return None
