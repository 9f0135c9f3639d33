"""Owns how TensorRT-LLM is started over several nodes: a session has a Ray of its own, with a node of it beside each rank.

Its orchestrator `ray` starts a worker for each GPU of that Ray, and needs nobody to start processes elsewhere, as MPI does.
Nothing of it touches the Ray that runs the sweep: neither address, nor ports, token, folder or interpreter. Pure. Does not
own what a rank runs there (`tensorrt_llm_rank`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from jobs.engines.base import Launch, Meeting, Site
from jobs.engines.own_host import PROJECT, interpreter
from jobs.spec import Engine

RANK = PROJECT / "jobs/engines/tensorrt_llm_rank/specsweep_rank.py"
STORE_BYTES = 256 << 20  # Ray carries the start of the workers; requests and tokens go another way


def over_nodes(engine: Engine, site: Site, server: Launch, words: Sequence[str]) -> Launch:
    """What a rank runs in place of this server, whose words `python` is given."""
    meeting = site.meeting
    if meeting is None:
        return server
    python = interpreter(engine.python) if engine.python else "python3"
    first = ("--", *words) if meeting.rank == 0 else ()
    return replace(
        server,
        argv=(python, str(RANK), *node_words(engine, site, meeting), *first),
        env={**server.env, **environment_of(meeting)},
    )


def node_words(engine: Engine, site: Site, meeting: Meeting) -> Iterator[str]:
    """Of `ray start`: rank 0 goes on to the server, the others stay with their node."""
    if meeting.rank == 0:
        yield from ("--head", f"--port={meeting.port}", f"--ray-client-server-port={meeting.spare_port}")  # else 10001
        yield "--include-dashboard=false"
    else:
        yield from (f"--address={meeting.authority}", "--block")
    gpus = engine.devices // engine.nodes
    yield f"--node-ip-address={meeting.own_address}"
    yield from (f"--{port}-port=0" for port in ("min-worker", "max-worker", "dashboard-agent-listen"))  # free ones
    yield from (f"--num-gpus={gpus}", f"--num-cpus={gpus}")  # a place of a worker takes one of each
    yield from (f"--object-store-memory={STORE_BYTES}", f"--temp-dir={site.scratch / 'ray'}", "--disable-usage-stats")


def environment_of(meeting: Meeting) -> Mapping[str, str]:
    """TensorRT-LLM joins "any Ray that is there": RAY_ADDRESS says which, and only this session has the token."""
    return {
        "PYTHONPATH": str(RANK.parent),
        "RAY_ADDRESS": meeting.authority,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": meeting.secret,
        "RAY_raylet_start_wait_time_s": "120",  # on a busy machine its own limits are too short
        "RAY_NUM_REDIS_GET_RETRIES": "90",  # of two seconds each: for the node of rank 0, by the others
    }


def options_over_nodes(engine: Engine) -> dict[str, Any]:
    """Of the options file."""
    if engine.nodes == 1:
        return {}
    return {"orchestrator_type": "ray", "gpus_per_node": engine.devices // engine.nodes}
