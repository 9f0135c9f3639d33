"""Owns what stands in for `tensorrt_llm.commands.serve` over several nodes: a worker on each GPU, as the engine has it.

As in `tensorrt_llm/executor/ray`: any Ray that is there is joined; workers get all of this process's environment; a place
has a node's GPUs or those of a stage, the first is beside this process; a worker's device is where its GPU stands in
CUDA_VISIBLE_DEVICES. Then it speaks as `trtllm-serve` does (`dialect_server`). When a worker ends, so does this process.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from typing import Any

import ray
from dialect_server import Server
from dialect_voices import flags_of
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from yaml import safe_load

NODE_LOCAL = ("RAY_RAYLET_PID", "RAY_NODE_IP_ADDRESS")


@ray.remote
class Worker:
    def where(self) -> dict[str, Any]:
        gpu = str(ray.get_gpu_ids()[0])
        visible = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
        address = ray.util.get_node_ip_address()
        return {"node": address, "gpu": gpu, "device": visible.index(gpu), "visible": visible, "tmp": os.environ["TMPDIR"]}

    def live(self) -> None:
        threading.Event().wait()


def start_workers(options: dict[str, Any]) -> list[Any]:
    os.environ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"] = "1"
    env_vars = {name: value for name, value in os.environ.items() if name not in NODE_LOCAL}
    ray.init(address="auto", include_dashboard=False, namespace="trtllm", runtime_env={"env_vars": env_vars})
    tp, world = options["tensor_parallel_size"], options["tensor_parallel_size"] * options["pipeline_parallel_size"]
    size = min(tp, int(ray.nodes()[0]["Resources"]["GPU"]))
    bundles = [{"GPU": size, "CPU": size} for _ in range(world // size)]
    bundles[0][f"node:{ray.util.get_node_ip_address()}"] = 0.01
    group = placement_group(bundles, strategy="PACK")
    return [
        Worker.options(  # type: ignore[attr-defined]
            num_gpus=1,
            max_concurrency=2,
            runtime_env={"env_vars": env_vars},
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, rank // size),
        ).remote()
        for rank in range(world)
    ]


def end_with(workers: list[Any]) -> None:
    ray.wait([worker.live.remote() for worker in workers])
    os._exit(70)


def main(argv: list[str]) -> None:
    options = safe_load(open(flags_of(argv)["config"]).read())  # noqa: SIM115, PTH123
    assert options["orchestrator_type"] == "ray"
    workers = start_workers(options)
    for rank, told in enumerate(ray.get([worker.where.remote() for worker in workers])):
        sys.stdout.write(f"worker {rank}: {told}\n")
    threading.Thread(target=end_with, args=(workers,), daemon=True).start()
    asyncio.run(Server("tensorrt_llm", argv).serve())


if __name__ == "__main__":
    main(sys.argv[1:])
