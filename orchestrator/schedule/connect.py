"""Owns the connection to Ray: one of our own, which leaves nothing behind, or one that exists. Does not own its use."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import ray
from ray._private import ray_constants

from jobs.engines.lifeline import GRACE_S, Lifeline, end_tree
from jobs.errors import BadInput, RayDidNotStart
from orchestrator.settings import Cluster, Kind

MARKER = "SPECSWEEP_DRIVER"
OBJECT_STORE_BYTES = 100 * 2**20  # results of cells pass through and go
KNOCK_S = 5.0
TRIES = 3  # on a loaded machine Ray's own limit for its start, 30 s, is sometimes too short
PRIVATE = {
    "SPT_NOENV": "1",  # a process that writes its title over its environment would lose the marker
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",  # a session without GPUs sees none
    "RAY_DEDUP_LOGS": "0",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "5",  # a signal to the process group may end its server before us
}


def connected(cluster: Cluster) -> AbstractContextManager[Path | None]:
    """Ray, for the length of the context. Yields the folder for files of sessions: None where they are on other machines.

    Raises `BadInput` when there is no cluster at the address.
    """
    return _existing(cluster) if cluster.kind is Kind.ray else _own(cluster)


@contextmanager
def _own(cluster: Cluster) -> Iterator[Path]:
    """A Ray on 127.0.0.1 with a folder, a token and a lifeline of its own: a SIGKILL of this process leaves none of them."""
    folder = Path(tempfile.mkdtemp(prefix="sweep-", dir="/tmp"))  # short: Unix sockets have about 100 characters
    marker = (MARKER, secrets.token_hex(8))
    private = {**PRIVATE, marker[0]: marker[1], "RAY_AUTH_TOKEN": secrets.token_hex(32)}  # else Ray writes one into the home
    with _environment(private), Lifeline(marker, [folder]):
        try:
            _start(cluster, folder, marker)
            yield folder
        finally:
            ray.shutdown()
            end_tree(marker, grace_s=GRACE_S)
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _environment(added: Mapping[str, str]) -> Iterator[None]:
    """What Ray's processes inherit; afterwards all is as before, what Ray itself set too."""
    before = dict(os.environ)
    os.environ.update(added)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _start(cluster: Cluster, folder: Path, marker: tuple[str, str]) -> None:
    # Ray swaps 127.0.0.1 for an address that others reach, unless it is told that it is to be no cluster, as it is on macOS
    ray_constants.ENABLE_RAY_CLUSTER = False
    for left in reversed(range(TRIES)):
        try:
            ray.init(
                "local",  # never joins a stray cluster
                num_cpus=cluster.num_cpus,
                num_gpus=cluster.num_gpus,
                namespace=cluster.namespace,
                include_dashboard=False,
                log_to_driver=False,
                logging_level="error",
                object_store_memory=OBJECT_STORE_BYTES,
                _node_ip_address="127.0.0.1",
                _temp_dir=str(folder),
            )
            return
        except Exception as failure:  # Ray's start-up raises bare ones
            ray.shutdown()
            end_tree(marker, grace_s=0.0)  # what it started and did not wait for would slow the next try down
            if not left:
                raise RayDidNotStart(f"Ray must start on this machine: {_line(failure)} Run the command again.") from failure


@contextmanager
def _existing(cluster: Cluster) -> Iterator[None]:
    try:
        _knock(cluster.address)
        ray.init(cluster.address, namespace=cluster.namespace, log_to_driver=False, logging_level="error")
    except Exception as failure:  # ConnectionError, RuntimeError and others, by version
        raise BadInput(
            f"`cluster.address` must lead to a Ray cluster: got {cluster.address!r} ({_line(failure)}) "
            "Start one with `ray start --head`, or use cluster=local."
        ) from failure
    try:
        yield None
    finally:
        ray.shutdown()


def _knock(address: str) -> None:
    """Raise `OSError` where nobody listens: Ray itself would try for minutes. "auto" is Ray's to find."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=KNOCK_S).close()


def _line(failure: Exception) -> str:
    return " ".join(str(failure).split())[:300] or type(failure).__name__
