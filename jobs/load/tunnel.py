"""Owns lines to an engine that is attached from afar: through a proxy, over TLS, or both. Does not own either protocol.

The slower path. A line that is being opened takes several steps, each of which may have to wait: `opening` holds, by file
descriptor, the steps that are left. It may have its turn already; `t_sent` counts from when all steps are done.
"""

from __future__ import annotations

import os
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from jobs.load.clock import STAMP_BYTES
from jobs.load.lines import READ_BYTES, READABLE, WRITABLE, Line, Lines, poll_of
from jobs.load.proxy import Proxy, authority_of, pass_through
from jobs.load.sealed import Sealed, context_of, shake_hands
from jobs.load.wire import Plan

OPEN_TIMEOUT_S = 10.0  # for all that are opened ahead, side by side


class Tunnels(Lines):
    """Lines that must be opened in steps."""

    def __init__(self, poller: Any, plan: Plan) -> None:
        self.plan = plan
        self.proxy: Proxy | None = None
        self.context: ssl.SSLContext | None = None
        self.opening: dict[int, Iterator[int]] = {}
        flaw = ""
        try:
            self.proxy = Proxy.of(plan.proxy) if plan.proxy else None
            self.context = context_of(plan.ca_file) if plan.tls else None
            if self.context:  # a name that no certificate can bear fails here, and not after a socket was given away
                self.context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname=plan.host)
        except (OSError, ValueError) as error:
            flaw = str(error)
        super().__init__(poller, *(self.proxy.host, self.proxy.port) if self.proxy else (plan.host, plan.port))
        self.flaw = flaw or self.flaw
        self.has_stamps = not plan.tls

    def open_ahead(self, count: int) -> None:
        """Take all lines through their steps side by side, before the clock starts."""
        with suppress(OSError):
            self.prefer_reachable()
            for _ in range(count):
                self.open(0.0)
        poll, deadline = poll_of(self.poller), time.monotonic() + OPEN_TIMEOUT_S
        while self.opening and (left_s := deadline - time.monotonic()) > 0:
            for fd, mask in poll(left_s):
                if fd not in self.others:
                    return  # the worker speaks, or is gone; the loop goes on with what is under way
                self.attend(self.others[fd], mask)
        for fd in list(self.opening):
            self.drop(self.others[fd])

    def open(self, timeout_s: float) -> Line:
        """A new line at its first step."""
        line = super().open(timeout_s)
        self.opening[line.fileno] = self.steps(line)
        self.poller.modify(line.fileno, next(self.opening[line.fileno]))
        return line

    def steps(self, line: Line) -> Iterator[int]:
        """All that comes before the first request; yields what to wait for."""
        yield WRITABLE
        while not is_connected(line.sock):
            yield WRITABLE
        if self.proxy:
            yield from pass_through(line.sock, self.proxy, authority_of(self.plan.host, self.plan.port))
        if self.context:
            sock = self.context.wrap_socket(
                line.sock, do_handshake_on_connect=False, suppress_ragged_eofs=False, server_hostname=self.plan.host
            )
            line.sock = sealed = Sealed(sock, self.poller)  # type: ignore[assignment]  # all that a line uses of a socket
            line.recvmsg = sealed.recvmsg
            yield from shake_hands(sock)

    def await_room(self, line: Line) -> None:
        """A line that is being opened has no room, and waits for other things."""
        if line.fileno not in self.opening:
            super().await_room(line)

    def attend(self, line: Line, mask: int) -> None:
        """As for all lines; what breaks a line without a turn fails nobody."""
        try:
            self.see_to(line, mask)
        except OSError:
            if line.turn is not None:
                raise
            self.drop(line)

    def see_to(self, line: Line, mask: int) -> None:
        """The next step of a line that is being opened; else the server speaks before all was sent, or the kernel has room.

        TLS cannot peek. What comes may be its own, such as a session ticket; an answer must be kept, for it comes once.
        """
        if line.fileno in self.opening:
            self.go_on(line)
            return
        if mask & ~WRITABLE:
            with suppress(BlockingIOError):
                data, ancillary, _, _ = line.recvmsg(READ_BYTES, STAMP_BYTES)
                self.hear_early(line, data, ancillary)
                return
        if line.turn is not None:
            super().attend(line, WRITABLE)

    def hear_early(self, line: Line, data: bytes, ancillary: list[Any]) -> None:
        """The first read of an answer; on an idle line it can only be a farewell."""
        if line.turn is None:
            self.drop(line)
            return
        now = time.monotonic_ns()
        self.listen(line, now)
        line.reads.append((now, ancillary, data))
        line.feed(data)

    def go_on(self, line: Line) -> None:
        """Take the next steps; after the last one a line serves its turn, or idles."""
        wanted = next(self.opening[line.fileno], 0)
        self.poller.modify(line.fileno, wanted or READABLE)
        if wanted:
            return
        del self.opening[line.fileno]
        if line.turn is None:
            self.idle.append(line)
        else:
            self.push(line)

    def drop(self, line: Line) -> None:
        self.opening.pop(line.fileno, None)
        super().drop(line)


def is_connected(sock: socket.socket) -> bool:
    """Whether TCP is through; `OSError` when it failed."""
    if error := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
        raise OSError(error, os.strerror(error))
    try:
        sock.getpeername()
    except OSError:
        return False
    return True
