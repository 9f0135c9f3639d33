"""Owns a Ray cluster of several nodes with pretended GPUs on this machine, and what may be killed in it.

Does not own sweeps, or what the kills are for. Everything listens on 127.0.0.1, needs a token, and goes when the owner dies.
The cluster is held by a process of its own (`benchmarks.soak.hold`): Ray reads its settings once in a process's life.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from jobs.engines.lifeline import Lifeline, end_tree
from jobs.engines.process import MARKER as ENGINE

ROOT = Path(__file__).resolve().parents[2]
OWNER = "SPECSWEEP_PRETENDED"


class Pretended:
    """A head that runs nothing, and nodes that can be lost. A node is known by the process id of its raylet."""

    def __init__(self, holder: subprocess.Popen[str], environment: dict[str, str]) -> None:
        self._holder = holder
        self.environment = environment  # for the sweeps that are started: it has the token
        self.address = ""
        self.nodes: list[int] = []
        self._take()

    def add_node(self) -> None:
        self._ask("add")

    def lose_node(self, raylet: int) -> None:
        """As a machine is lost: SIGKILL for its raylet, and what ran there ends as it can."""
        self._ask("lose", raylet)

    def kill_head(self) -> None:
        """The head's processes die at once, and the cluster with them: there is no second copy of its state."""
        self._ask("kill_head")

    def node_of(self, process: psutil.Process) -> int | None:
        """The node whose raylet is an ancestor of the process."""
        with suppress(psutil.Error):
            return next((parent.pid for parent in process.parents() if parent.pid in self.nodes), None)
        return None

    def _ask(self, *words: Any) -> None:
        assert self._holder.stdin is not None
        self._holder.stdin.write(json.dumps(words) + "\n")
        self._holder.stdin.flush()
        self._take()

    def _take(self) -> None:
        assert self._holder.stdout is not None
        line = self._holder.stdout.readline()
        if not line:
            raise RuntimeError("The pretended cluster must start, and go on: its holder ended.")
        told = json.loads(line)
        self.address, self.nodes = told["address"], told["nodes"]


@contextmanager
def pretended(
    n_nodes: int, *, cpus: int = 2, gpus: int = 0, added: Mapping[str, str] | None = None, is_apart: bool = False
) -> Iterator[Pretended]:
    """`is_apart`: each node has a loopback address of its own."""
    folder = Path(tempfile.mkdtemp(prefix="soak-", dir="/tmp"))  # short: Unix sockets have about 100 characters
    (folder / "ray").mkdir()
    marker = (OWNER, secrets.token_hex(8))
    environment = {
        **os.environ,
        **(added or {}),
        marker[0]: marker[1],
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TMPDIR": str(folder),  # Ray also notes the address of its newest cluster there
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # else Ray swaps 127.0.0.1 for an address that others reach
        "SPT_NOENV": "1",  # a process that writes its title over its environment would lose the marker
        "RAY_gcs_rpc_server_reconnect_timeout_s": "5",  # how long all wait for a head that is gone
        "RAY_raylet_start_wait_time_s": "60",  # on a loaded machine its own limit is sometimes too short
    }
    command = [sys.executable, "-m", "benchmarks.soak.hold", *map(str, (n_nodes, cpus, gpus, int(is_apart)))]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with Lifeline(marker, [folder]), subprocess.Popen(command, cwd=ROOT, env=environment, **pipes) as holder:
        try:
            yield Pretended(holder, {name: text for name, text in environment.items() if name != OWNER})
        finally:
            end_tree(marker, grace_s=0.0)
            shutil.rmtree(folder, ignore_errors=True)


def engines_of(invocations: Sequence[str] | set[str]) -> list[psutil.Process]:
    """The living processes of engines that these runs of the command started, the oldest first."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            nonce = process.environ().get(ENGINE, "")
            if any(f"-{name}-" in nonce for name in invocations) and process.status() != psutil.STATUS_ZOMBIE:
                found.append((process.create_time(), process.pid, process))
    return [process for *_, process in sorted(found, key=lambda item: item[:2])]


def roots(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Those whose parent is not among them: the engines, without their children."""
    pids = {process.pid for process in processes}
    found = []
    for process in processes:
        with suppress(psutil.Error):
            found += [process] if process.ppid() not in pids else []
    return found


def orphans_after(invocations: Sequence[str] | set[str], within_s: float) -> list[psutil.Process]:
    """Processes of engines that are still there after a while."""
    deadline = time.monotonic() + within_s
    while (left := engines_of(invocations)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return left


def kill(process: psutil.Process | None) -> bool:
    """SIGKILL; whether it was still there."""
    with suppress(psutil.Error):
        if process is not None:
            process.send_signal(signal.SIGKILL)
            return True
    return False
