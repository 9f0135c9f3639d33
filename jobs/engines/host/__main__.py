"""Owns the command `python -m jobs.engines.host`: load a backend, then serve it on loopback. Does not own either.

A backend is a module of this package with `load(config) -> Backend`, where config is a deployment as JSON:
{"model": {...}, "engine": {...}, "draft": {...} (fields of `jobs.spec`), "model_dir": PATH, "draft_dir": PATH or null}.
What `load` raises ends the process with its traceback in the engine's log.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
from importlib import import_module
from pathlib import Path
from typing import Any

import uvicorn

from jobs.engines.host import NAME
from jobs.engines.host.app import make_app
from jobs.engines.host.ranks import gather, join

BACKENDS = {
    "transformers": "jobs.engines.host.transformers_backend",
    "simulated": "jobs.engines.host.simulated",
}
"""name → its module; imported only when asked for, since each needs libraries that the other's environment lacks."""

KEEP_ALIVE_S = 3600  # a client's idle connection (a user who thinks) must not be closed under its next request


def main() -> None:
    args = parse_args()
    name = os.environ[NAME]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    config = read_config(args.config)
    if args.rank:
        join(args.meet, name, args.rank)
    backend = import_module(BACKENDS[args.backend]).load(config)
    if args.meet:
        gather(args.meet, name, config["engine"]["nodes"])
    uvicorn.run(
        make_app(backend, name),
        host="127.0.0.1",
        port=args.port,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=1,
    )


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m jobs.engines.host", description="Serve one of our own engines on loopback"
    )
    parser.add_argument("--backend", choices=sorted(BACKENDS), required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--config", required=True, help="the deployment as JSON, or a file that holds it")
    parser.add_argument("--meet", default="", help="over several nodes: ADDRESS:PORT at which rank 0 waits for the others")
    parser.add_argument("--rank", type=int, default=0, help="which of several processes this is: 0 serves")
    args = parser.parse_args()
    if not os.environ.get(NAME):
        parser.error(f"{NAME} must hold the name to serve under, which is the key too: got nothing. Set it to one of yours.")
    return args


def read_config(text: str) -> dict[str, Any]:
    """The configuration that this text is, or that the file of this name holds."""
    config: dict[str, Any] = json.loads(text if text.lstrip().startswith("{") else Path(text).read_text(encoding="utf-8"))
    return config


if __name__ == "__main__":
    main()
