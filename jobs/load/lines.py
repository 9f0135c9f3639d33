"""Owns the TCP connections to the engine: opening, sending, keeping, closing. Does not own what is sent, or reading.

One line carries one request at a time. Ended ones are kept for the next request (HTTP keep-alive) where both sides agree.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httptools

from jobs.load.agenda import Turn
from jobs.load.clock import ask_for_stamps

READABLE, WRITABLE = select.POLLIN, select.POLLOUT
CONNECT_TIMEOUT_S = 2.0
READ_BYTES = 65_536
MOST_AT_ONCE = 64  # events that are handled before anything else gets its turn


class Line:
    """A connection; also what the HTTP parser calls. The parser only says where a response ends: bodies are parsed later."""

    __slots__ = (
        *("feed", "fileno", "parser", "reads", "recvmsg", "sock", "turn", "unsent"),
        *("is_ended", "is_persistent", "is_stuck", "is_used"),
    )

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.fileno = sock.fileno()
        self.recvmsg: Any = sock.recvmsg
        self.parser: Any = httptools.HttpResponseParser(self)
        self.feed: Any = self.parser.feed_data
        self.turn: Turn | None = None
        self.reads: list[Any] = []  # those of the turn
        self.unsent = memoryview(b"")
        self.is_ended = False  # the response is whole
        self.is_persistent = False  # both sides agree that it may carry another request
        self.is_used = False  # it carried a request before
        self.is_stuck = False  # the kernel did not take the whole request at once

    def take(self, turn: Turn) -> None:
        """Put a turn on this line."""
        self.turn = turn
        turn.n_tries += 1
        turn.reads = self.reads = []
        self.unsent = memoryview(turn.request)
        self.is_ended = False

    @property
    def is_keepable(self) -> bool:
        return self.is_ended and self.is_persistent and not self.unsent

    @property
    def answered_by_closing(self) -> bool:
        """A response that announces neither a length nor chunks ends with the connection."""
        head, found, _ = b"".join(data for _, _, data in self.reads).lower().partition(b"\r\n\r\n")
        return bool(found) and b"\ncontent-length:" not in head and b"\ntransfer-encoding:" not in head

    def on_message_complete(self) -> None:
        self.is_ended = self.parser.get_status_code() >= 200  # 1xx announces another response
        self.is_persistent = self.parser.should_keep_alive()  # the parser knows only now


class Lines:
    """The connections of a client by file descriptor: `listening` for an answer, or `others` (idle, connecting, sending)."""

    def __init__(self, poller: Any, host: str, port: int) -> None:
        self.poller = poller
        self.addresses: list[tuple[int, Any]] = []  # family and address, the best first
        self.flaw = ""  # why no line can be opened at all
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            self.addresses = [(family, address) for family, _, _, _, address in found]
        except (socket.gaierror, UnicodeError) as error:
            self.flaw = f"the name {host} was not resolved: {getattr(error, 'strerror', None) or error}"
        self.listening: dict[int, Line] = {}
        self.others: dict[int, Line] = {}
        self.idle: list[Line] = []
        self.has_stamps = True

    def open_ahead(self, count: int) -> None:
        """Connect before the clock starts; what fails then fails again, as a row, when it is needed."""
        with suppress(OSError):
            self.prefer_reachable()
            for _ in range(count):
                self.idle.append(self.open(CONNECT_TIMEOUT_S))

    def prefer_reachable(self) -> None:
        """Put the first address that answers first: a name may have one that nobody listens on, of the other IP version."""
        for entry in self.addresses if len(self.addresses) > 1 else ():
            family, address = entry
            with suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as sock:
                sock.settimeout(CONNECT_TIMEOUT_S)
                sock.connect(address)
                self.addresses = [entry]
                return

    def open(self, timeout_s: float) -> Line:
        """A new line; with a timeout of 0 its connection is still being made. `OSError` when it is refused at once."""
        if self.flaw:
            raise OSError(self.flaw)
        family, address = self.addresses[0]
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.has_stamps &= ask_for_stamps(sock)
            sock.settimeout(timeout_s)
            with suppress(BlockingIOError):
                sock.connect(address)
            sock.settimeout(0.0)
        except OSError:
            sock.close()
            raise
        line = Line(sock)
        self.others[line.fileno] = line
        self.poller.register(line.fileno, READABLE)
        return line

    def place(self, turn: Turn) -> Line:
        """A line for a turn: an idle one, or a new one, as a second try always gets. `OSError` when refused at once."""
        while self.idle and turn.n_tries == 0:
            line = self.idle.pop()
            line.take(turn)
            try:
                self.push(line)
            except OSError:
                self.drop(line)  # the server had closed it
            else:
                return line
        line = self.open(0.0)
        line.take(turn)
        self.await_room(line)
        return line

    def push(self, line: Line) -> None:
        """Hand the kernel what it takes of the request; a line that sent all of it listens. `OSError` when it is broken."""
        assert line.turn is not None
        now = time.monotonic_ns()
        with suppress(BlockingIOError):
            line.unsent = line.unsent[line.sock.send(line.unsent) :]
        if line.unsent:
            self.await_room(line)
        else:
            self.listen(line, now)

    def await_room(self, line: Line) -> None:
        """Be told when the kernel takes more of the request."""
        if not line.is_stuck:
            self.poller.modify(line.fileno, READABLE | WRITABLE)
            line.is_stuck = True

    def listen(self, line: Line, t_sent: int) -> None:
        """All was sent, or the server answers before.

        `t_sent` is the time before the last call: to be interrupted after it can only make an answer look later than it was.
        """
        assert line.turn is not None
        line.turn.t_sent = t_sent
        self.listening[line.fileno] = self.others.pop(line.fileno)
        if line.is_stuck:
            self.poller.modify(line.fileno, READABLE)
            line.is_stuck = False

    def attend(self, line: Line, mask: int) -> None:
        """Something happened on a line that does not listen. `OSError` when it is broken."""
        if line.turn is None:
            self.drop(line)  # the server closed it while it was idle, or spoke without being asked
        elif error := line.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(error, os.strerror(error))
        elif mask & READABLE and is_readable(line.sock):
            self.listen(line, time.monotonic_ns())
        else:
            self.push(line)

    def part(self, line: Line, *, keep: bool) -> None:
        """Take the turn from a line, and keep the line for the next one or close it."""
        line.turn = None
        if keep and line.is_keepable:
            line.is_used = True
            self.others[line.fileno] = self.listening.pop(line.fileno)
            self.idle.append(line)
        else:
            self.drop(line)

    def drop(self, line: Line) -> None:
        """Close a line, and break its cycle with the parser: the client runs without a garbage collector."""
        self.listening.pop(line.fileno, None)
        self.others.pop(line.fileno, None)
        if line in self.idle:
            self.idle.remove(line)
        self.poller.unregister(line.fileno)
        line.sock.close()
        line.parser = line.feed = line.recvmsg = None
        line.unsent = memoryview(b"")


def poll_of(poller: Any) -> Callable[[float], list[tuple[int, int]]]:
    """Poll for some seconds, for a bounded number of events where that can be said."""
    if hasattr(select, "epoll"):
        return lambda seconds: poller.poll(seconds, MOST_AT_ONCE)
    return lambda seconds: poller.poll(seconds * 1e3)


def is_readable(sock: socket.socket) -> bool:
    """Whether there is something to read: an event may be meant for a socket that had this number before."""
    try:
        sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    return True
