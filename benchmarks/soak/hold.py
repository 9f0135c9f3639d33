"""Owns the pretended cluster's life: `python -m benchmarks.soak.hold NODES CPUS GPUS APART`; a line in, a line out.

Does not own what is asked of it (`pretended`). It ends with its input.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from itertools import count, repeat
from typing import Any

import psutil
import ray._private.utils
from ray._private import ray_constants
from ray.cluster_utils import Cluster

STORE_BYTES = 80 * 2**20
TRIES = 3  # on a loaded machine Ray's own limit for its start is sometimes too short


class Held:
    def __init__(self, cpus: int, gpus: int, is_apart: bool) -> None:
        ray._private.utils.get_dashboard_dependency_error = lambda: (
            ImportError()
        )  # lighter agents: a raylet waits 15 s for its own
        self.shape = {"object_store_memory": STORE_BYTES, "node_ip_address": "127.0.0.1"}
        self.size = {"num_cpus": cpus, "num_gpus": gpus}
        self.hosts = (f"127.0.0.{number}" for number in (count(2) if is_apart else repeat(1)))
        head = {**self.shape, "num_cpus": 0, "num_gpus": 0, "include_dashboard": False}
        self.cluster = _patiently(lambda: Cluster(initialize_head=True, head_node_args=head))
        self.nodes: dict[int, Any] = {}  # process id of the raylet → node

    def add(self) -> None:
        where = {**self.shape, **self.size, "node_ip_address": next(self.hosts)}
        node = _patiently(lambda: self.cluster.add_node(**where))
        (raylet,) = node.all_processes[ray_constants.PROCESS_TYPE_RAYLET]
        self.nodes[raylet.process.pid] = node

    def lose(self, raylet: int) -> None:
        self.cluster.remove_node(self.nodes.pop(raylet), allow_graceful=False)

    def kill_head(self) -> None:
        self.cluster.head_node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)

    def told(self) -> str:
        return json.dumps({"address": str(self.cluster.address), "nodes": list(self.nodes)})


def _patiently(start: Callable[[], Any]) -> Any:
    for left in reversed(range(TRIES)):
        before = set(psutil.Process().children(recursive=True))
        try:
            return start()
        except Exception:  # Ray's start-up raises bare ones
            if not left:
                raise
            for process in set(psutil.Process().children(recursive=True)) - before:  # else they would slow the next try down
                with suppress(psutil.Error):
                    process.kill()
    return None


def main(n_nodes: int, cpus: int, gpus: int, is_apart: int) -> None:
    answers = sys.stdout
    with redirect_stdout(sys.stderr):
        held = Held(cpus, gpus, bool(is_apart))
        for _ in range(n_nodes):
            held.add()
        print(held.told(), file=answers, flush=True)
        for line in sys.stdin:
            what, *about = json.loads(line)
            getattr(held, what)(*about)
            print(held.told(), file=answers, flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
