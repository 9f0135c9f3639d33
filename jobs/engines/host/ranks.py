"""Owns how the processes of the simulated engine meet over several nodes, and that none goes on without the others.

Does not own what rank 0 then serves. Standard library only. A rank shows the session's secret name, or it is not let in.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
import threading
import time
from collections.abc import Mapping

LOST = 71  # exit code of rank 0 when a rank is gone
ALONE = 72  # of a rank when rank 0 is gone
GREETING_S = 5.0
RETRY_S = 0.1

log = logging.getLogger(__name__)


def gather(authority: str, secret: str, nodes: int) -> None:
    """As rank 0: return when the others have come. From then on this process ends when one of them does."""
    came: dict[int, socket.socket] = {}
    with socket.create_server(address_of(authority)) as listener:
        while len(came) < nodes - 1:
            guest, _ = listener.accept()
            rank = greeted(guest, secret)
            if rank is None:
                guest.close()
            else:
                came[rank] = guest
                log.info("rank %d has come", rank)
    threading.Thread(target=_end_with, args=(came,), name="ranks", daemon=True).start()


def join(authority: str, secret: str, rank: int) -> None:
    """As another rank: stay with rank 0, which may come later, until it is gone; never returns."""
    with _patiently_connected(authority) as home:
        home.sendall(f"{secret} {rank}\n".encode())
        log.info("rank %d is with rank 0", rank)
        home.recv(1)  # nothing is ever sent
    log.error("rank 0 is gone")
    raise SystemExit(ALONE)


def address_of(authority: str) -> tuple[str, int]:
    host, _, port = authority.rpartition(":")
    return host.strip("[]"), int(port)


def greeted(guest: socket.socket, secret: str) -> int | None:
    """Which rank it is; None = a stranger."""
    guest.settimeout(GREETING_S)
    try:
        said, _, rank = guest.makefile("rb").readline(1000).decode(errors="replace").strip().partition(" ")
    except OSError:
        return None
    guest.settimeout(None)
    return int(rank) if said == secret and rank.isdecimal() else None


def _patiently_connected(authority: str) -> socket.socket:
    while True:
        try:
            home = socket.create_connection(address_of(authority), timeout=GREETING_S)
        except OSError:
            time.sleep(RETRY_S)  # the session ends this process when rank 0 does not come
        else:
            home.settimeout(None)
            return home


def _end_with(came: Mapping[int, socket.socket]) -> None:
    with selectors.DefaultSelector() as selector:
        for rank, guest in came.items():
            selector.register(guest, selectors.EVENT_READ, rank)
        (key, _), *_ = selector.select()  # they say nothing more: what comes is their end
    log.error("rank %d is gone", key.data)
    os._exit(LOST)
