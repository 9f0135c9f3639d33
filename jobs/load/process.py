"""Owns the load client as a child process: start, talk, end. Does not own what is said.

The client dies with this process: its end of the socket closes, whatever way this process goes.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

from jobs.errors import CellFailed
from jobs.load.wire import Message, Plan, Unpacker, pack

ROOT = Path(__file__).parents[2]
PATIENCE_S = 5.0
ENOUGH_CPUS = 4  # below, a pinned client would stand in the engine's way more often than it would be alone


class ClientProcess:
    """One load client; close it in a `finally`."""

    def __init__(self, plan: Plan) -> None:
        self.pipe, theirs = socket.socketpair()
        self.log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `close`
        with theirs:
            self.child = subprocess.Popen(
                [sys.executable, "-m", "jobs.load.client", str(theirs.fileno())],
                cwd=ROOT,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self.log,
                stderr=self.log,
            )
        self.unpacker = Unpacker()
        self.say(("plan", *plan))

    def fileno(self) -> int:
        """For selectors."""
        return self.pipe.fileno()

    def say(self, *messages: Message) -> None:
        """Send messages; `CellFailed` when the client is gone."""
        try:
            self.pipe.sendall(b"".join(pack(message) for message in messages))
        except OSError:
            raise self.death() from None

    def hear(self) -> list[Message]:
        """The messages that have come, at least a part of one; `CellFailed` when the client is gone."""
        try:
            data = self.pipe.recv(1 << 20)
        except OSError:
            raise self.death() from None
        if not data:
            raise self.death()
        return list(self.unpacker.feed(data))

    def death(self) -> CellFailed:
        """Why the client is gone: the last line that it wrote."""
        code = self.child.wait(PATIENCE_S)
        self.log.seek(0)
        lines = self.log.read().decode(errors="replace").strip().splitlines()
        return CellFailed(
            f"the load client must live as long as its cell: it ended with code {code}. {lines[-1] if lines else ''}"
        )

    def close(self) -> None:
        """End it, and free everything."""
        self.pipe.close()
        try:
            self.child.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
        self.log.close()


def cpus_of_clients(count: int) -> list[tuple[int, ...]]:
    """The CPUs of each of `count` clients: one each, from the end, where there are enough; else any.

    The engine can use every CPU. Where there are many, its threads move out of the way of a pinned client; where there are
    few, the scheduler finds a free one for the client sooner than a pin would.
    """
    if not hasattr(os, "sched_getaffinity"):
        return [()] * count
    mine = sorted(os.sched_getaffinity(0))
    if len(mine) < ENOUGH_CPUS + count:
        return [()] * count
    return [(cpu,) for cpu in mine[-count:]]
