"""Owns how an HTTP proxy is asked for a connection (CONNECT). Does not own what goes over it.

Credentials may stand before the proxy's address; no text made here repeats them. Standard library only, for the client.
"""

from __future__ import annotations

import base64
import select
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes, urlsplit

READABLE, WRITABLE = select.POLLIN, select.POLLOUT
MOST_HEAD_BYTES = 65_536
MOST_QUOTED = 200


@dataclass(frozen=True)
class Proxy:
    """An HTTP proxy, and what it is told to be let through."""

    host: str
    port: int
    authorization: str = ""

    def __repr__(self) -> str:
        return f"Proxy({self.authority})"

    @classmethod
    def of(cls, text: str) -> Proxy:
        """`[http://][user:password@]host:port`, user and password percent-encoded. `OSError` for anything else."""
        try:
            parts = urlsplit(text if "://" in text else f"http://{text}")
            host, port = parts.hostname, parts.port
        except ValueError:
            host = port = None
        if not host or not port or parts.scheme != "http" or parts.path.strip("/"):
            raise OSError("the proxy must be the host:port of an HTTP proxy: it is something else")
        account = parts.netloc.rpartition("@")[0]
        told = base64.b64encode(unquote_to_bytes(account)).decode() if account else ""
        return cls(host, port, f"Basic {told}" if told else "")

    @property
    def authority(self) -> str:
        return authority_of(self.host, self.port)

    def request(self, authority: str) -> bytes:
        """Ask for a connection to host:port."""
        authorization = f"Proxy-Authorization: {self.authorization}\r\n" if self.authorization else ""
        return f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n{authorization}\r\n".encode("latin-1")


def pass_through(sock: socket.socket, proxy: Proxy, authority: str) -> Iterator[int]:
    """Ask, and hear the answer; yields what to wait for. `OSError` when it is refused, with the proxy's status line."""
    unsent, head = memoryview(proxy.request(authority)), b""
    while unsent:
        with suppress(BlockingIOError):
            unsent = unsent[sock.send(unsent) :]
        if unsent:
            yield WRITABLE
    while b"\r\n\r\n" not in head and len(head) < MOST_HEAD_BYTES:
        try:
            data = sock.recv(MOST_HEAD_BYTES)
        except BlockingIOError:
            yield READABLE
            continue
        if not data:
            raise OSError("the proxy closed the connection without an answer")
        head += data  # nothing of the server can follow: it does not speak first
    status_line = head.partition(b"\r\n")[0].decode("latin-1")[:MOST_QUOTED]
    if not is_yes(status_line):
        raise OSError(f"the proxy refused the connection: {status_line}")


def authority_of(host: str, port: int) -> str:
    """host:port as URLs have it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_yes(status_line: str) -> bool:
    """Whether an HTTP status line says 2xx."""
    version, _, rest = status_line.partition(" ")
    return version.startswith("HTTP/1.") and rest[:1] == "2"
