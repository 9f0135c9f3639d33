"""Owns one rank of TensorRT-LLM over several nodes: a node of a Ray of its own and, as rank 0, the server on it.

Runs in TensorRT-LLM's environment, not in ours: `python specsweep_rank.py WORDS-OF-RAY-START [-- WORDS-OF-PYTHON]`. Does not
own what these are (`jobs.engines.tensorrt_llm_ray`), or the end: Ray's processes are for whoever started this one to end.
"""

import json
import os
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

NODES_OWN = ("CUDA_", "HIP_", "ROCR_", "NCCL_", "GLOO_", "TMPDIR", "SPECSWEEP_SESSION")
RETRY_S = 0.5


def main(words: list[str]) -> None:
    if find_spec("ray") is None:
        sys.exit(
            f"TensorRT-LLM over several nodes needs Ray in its environment: {sys.executable} has none. "
            "Install `ray[default]` there, in the version that its release names."
        )
    split = words.index("--") if "--" in words else len(words)
    ray, server = [sys.executable, "-m", "ray.scripts.scripts", "start", *words[:split]], words[split + 1 :]
    Path(os.environ["TMPDIR"], "ray").mkdir(exist_ok=True)  # older versions of Ray make it on rank 0 only
    if not server:
        wait_for_head(os.environ["RAY_ADDRESS"])
        os.execve(sys.executable, ray, environment_of_node())
    if code := subprocess.run(ray, env=environment_of_node(), check=False).returncode:
        sys.exit(code)
    os.execv(sys.executable, [sys.executable, *server])


def environment_of_node() -> dict[str, str]:
    """Ray's processes, and those that they start, have a note of what is this node's own; the server has none to hand on."""
    own = {name: value for name, value in os.environ.items() if name.startswith(NODES_OWN)}
    return {**os.environ, "SPECSWEEP_NODE": json.dumps(own)}


def wait_for_head(address: str) -> None:
    """Rank 0's Ray may come later; the session ends this process when it does not come."""
    host, _, port = address.rpartition(":")
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
        except OSError:
            time.sleep(RETRY_S)
        else:
            return


if __name__ == "__main__":
    main(sys.argv[1:])
