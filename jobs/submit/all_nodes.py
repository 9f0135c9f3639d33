"""Owns the wait for the nodes of a Ray cluster that is being started: `python -m jobs.submit.all_nodes NODES SECONDS`.

Does not own their start. RAY_ADDRESS says where they meet. Exit code 0, or 2 with one line.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from jobs.errors import BadInput
from storage.command import run_command

POLL_S = 1.0


def main(argv: Sequence[str]) -> int:
    n_nodes, limit_s = int(argv[0]), float(argv[1])
    return run_command(lambda: wait_for_nodes(os.environ["RAY_ADDRESS"], n_nodes, limit_s))


def wait_for_nodes(address: str, n_nodes: int, limit_s: float) -> int:
    """Return 0 when so many nodes live there; `BadInput` when the time is up."""
    import ray  # what asks for help does not pay for it

    deadline = time.monotonic() + limit_s
    alive = 0
    while alive < n_nodes and time.monotonic() < deadline:
        time.sleep(POLL_S)
        with suppress(Exception):  # while there is no head; Ray's start-up raises bare ones, by version
            ray.init(address, ignore_reinit_error=True, log_to_driver=False, logging_level="error")
            alive = sum(node["Alive"] for node in ray.nodes())
    ray.shutdown()
    if alive >= n_nodes:
        return 0
    raise BadInput(
        f"Ray must start on every node: got {alive} of {n_nodes} at {address} after {limit_s:g} s. "
        "Look at what `ray start` said above."
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
