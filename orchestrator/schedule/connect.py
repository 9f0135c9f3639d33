"""Owns the connection to Ray: one of our own, which leaves nothing behind, or one that exists. Does not own its use."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import ray
from ray._private import ray_constants
from ray._private.node import Node as RayNode
from ray._private.services import get_ray_address_from_environment
from ray._raylet import Config  # type: ignore[attr-defined]  # of Cython

from jobs.engines.lifeline import GRACE_S, Lifeline, end_tree
from jobs.errors import BadInput, RayDidNotStart
from jobs.submit.ray_address import TOKEN_PLACES, check_token, has_token
from orchestrator.settings import AUTO, Cluster, Kind, check_address

MARKER = "SPECSWEEP_DRIVER"
OBJECT_STORE_BYTES = 100 * 2**20  # results of cells pass through and go
KNOCK_S = 5.0
ANSWER_LIMIT_S = 30.0  # seconds of it are the import of Ray
ASK_CLUSTER = """
import sys
from ray._private.services import canonicalize_bootstrap_address
from ray._raylet import GcsClient
GcsClient(address=canonicalize_bootstrap_address(sys.argv[1]))
"""
TRIES = 3  # on a loaded machine Ray's own limit for its start, 30 s, is sometimes too short
PRIVATE = {
    "SPT_NOENV": "1",  # a process that writes its title over its environment would lose the marker
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",  # a session without GPUs sees none
    "RAY_DEDUP_LOGS": "0",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "5",  # a signal to the process group may end its server before us
}
OPEN, TOKEN = {"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_MODE": "token"}
ONLOOKERS: dict[str, Any] = {
    name: lambda *_, **__: None for name in ("start_api_server", "start_monitor", "start_log_monitor")
}
"""Processes for who looks on or adds machines, and their part in `ray.init`: half of what a start of Ray takes."""


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
            with patch.multiple(RayNode, create=True, **ONLOOKERS):
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
    with ExitStack() as settings:
        try:
            check_token()
            address = _address_of(cluster)
            _knock(address)
            settings.enter_context(_trusting(_trust_of(address)))
            ray.init(address, namespace=cluster.namespace, log_to_driver=False, logging_level="error")
        except BadInput:
            raise
        except Exception as failure:  # ConnectionError, RuntimeError and others, by version
            raise _no_cluster(cluster, _line(failure)) from failure
        try:
            yield None
        finally:
            ray.shutdown()


def _trust_of(address: str) -> dict[str, str]:
    """The setting in which that Ray answers us: without a token if it may be; workers of a cluster that has none die of one.

    Raises where no Ray answers in time, or not to our token.
    """
    if "RAY_AUTH_MODE" in os.environ or not has_token():
        _ask(address, {})
        return {}
    try:
        _ask(address, OPEN)
        return OPEN
    except BadInput:
        _ask(address, TOKEN)
        return TOKEN


@contextmanager
def _trusting(setting: Mapping[str, str]) -> Iterator[None]:
    try:
        with _environment(setting):
            Config.initialize("")  # it read the environment when it was imported
            yield
    finally:
        Config.initialize("")


def _address_of(cluster: Cluster) -> str:
    """The address; for "auto" the one that Ray would take. Raises `BadInput`, or what Ray does where it finds none."""
    if cluster.address != AUTO:
        check_address(cluster.address)
        return cluster.address
    told = os.environ.get("RAY_ADDRESS")
    if told and told != AUTO:
        check_address(told, "RAY_ADDRESS")  # Ray would import what stands before "://"
        return told
    return str(get_ray_address_from_environment(AUTO, None))


def _knock(address: str) -> None:
    """Raise `OSError` where nobody listens: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), timeout=KNOCK_S).close()


def _ask(address: str, setting: Mapping[str, str]) -> None:
    """In a process of its own: Ray waits for minutes, or aborts."""
    command, environment = [sys.executable, "-c", ASK_CLUSTER, address], {**os.environ, **setting}
    try:
        asked = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=ANSWER_LIMIT_S, check=False, env=environment
        )
    except subprocess.TimeoutExpired:
        raise ConnectionError(f"something listens there, and no Ray answered within {ANSWER_LIMIT_S:g} s.") from None
    if asked.returncode == 0:
        return
    told = asked.stderr.decode(errors="replace")
    if "authenticat" in told.lower():
        raise BadInput(
            f"the Ray cluster at {address} must be given its token: it refused ours, or got none. "
            f"Set the token of the cluster: {TOKEN_PLACES}."
        )
    why = [line for line in told.splitlines() if line.strip(" >")][-1:]
    raise ConnectionError(f"something listens there, and does not answer as Ray: {''.join(why).strip()[:200]}")


def _no_cluster(cluster: Cluster, why: str) -> BadInput:
    return BadInput(
        f"`cluster.address` must lead to a Ray cluster: got {cluster.address!r} ({why}) "
        "Start one with `ray start --head`, or use cluster=local."
    )


def _line(failure: Exception) -> str:
    return " ".join(str(failure).split())[:300] or type(failure).__name__
