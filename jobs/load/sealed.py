"""Owns one TLS connection: its context, its handshake, its reads and writes. Does not own who speaks, or how it is reached.

Never blocks. Standard library only: the client imports it.
"""

from __future__ import annotations

import select
import ssl
from collections.abc import Iterator
from typing import Any

READABLE, WRITABLE = select.POLLIN, select.POLLOUT
CUT = "the server closed the connection without TLS's close_notify before its answer ended"


def context_of(ca_file: str) -> ssl.SSLContext:
    """Verifies certificate and name, by `ca_file` or else by the system's trust. `OSError` for a file that is none."""
    try:
        context = ssl.create_default_context(cafile=ca_file or None)
    except OSError as error:
        why = "it holds no certificate" if isinstance(error, ssl.SSLError) else (error.strerror or str(error)).lower()
        raise OSError(f"the CA file {ca_file} cannot be used: {why}") from None
    context.options |= ssl.OP_NO_RENEGOTIATION  # so that after the handshake a write never waits for a read
    return context


def shake_hands(sock: ssl.SSLSocket) -> Iterator[int]:
    """The handshake; yields what to wait for. `OSError` when it fails, saying why."""
    while True:
        try:
            sock.do_handshake()
        except ssl.SSLWantReadError:
            yield READABLE
        except ssl.SSLWantWriteError:
            yield WRITABLE
        except ssl.SSLCertVerificationError as error:
            raise OSError(f"the certificate was refused: {error.verify_message}") from None
        except OSError as error:
            raise OSError(f"the TLS handshake failed: {words(error)}") from None
        else:
            return


def words(error: OSError) -> str:
    """What went wrong, without the library's own decoration."""
    if isinstance(error, ssl.SSLEOFError):
        return "the server closed the connection"
    if isinstance(error, ssl.SSLError):
        return (error.reason or "unknown").lower().replace("_", " ")
    return (error.strerror or str(error)).lower()


class Sealed:
    """What a line uses of a socket, over TLS. What must wait is a `BlockingIOError`, as with a plain socket.

    A poller sees the bytes in the kernel, not those in the TLS object: a read leaves none there.
    """

    __slots__ = ("close", "getsockopt", "must_write", "poller", "sock")

    def __init__(self, sock: ssl.SSLSocket, poller: Any) -> None:
        self.sock, self.poller = sock, poller
        self.close, self.getsockopt = sock.close, sock.getsockopt
        self.must_write = False  # before it can read on

    def recvmsg(self, size: int, _ancillary: int) -> tuple[bytes, list[tuple[int, int, bytes]], int, None]:
        """Everything that was decrypted. No stamps: the kernel's are of records, not of what they hold."""
        if self.must_write:
            self.must_write = False
            self.poller.modify(self.sock.fileno(), READABLE)
        return self.read(size), [], 0, None

    def read(self, size: int) -> bytes:
        """What there is, at least one record; b"" when the server said that it closes."""
        try:
            data = self.sock.recv(size)
            while pending := self.sock.pending():
                data += self.sock.recv(pending)
        except ssl.SSLWantReadError:
            raise BlockingIOError from None  # half a record, or one of TLS's own, such as a session ticket
        except ssl.SSLWantWriteError:
            self.must_write = True  # to answer the server, which changes its key
            self.poller.modify(self.sock.fileno(), READABLE | WRITABLE)
            raise BlockingIOError from None
        except ssl.SSLEOFError:
            raise OSError(CUT) from None
        except ssl.SSLError as error:
            raise OSError(f"TLS failed: {words(error)}") from None
        return data

    def send(self, data: memoryview) -> int:
        """Send what is taken at once; the rest must be sent again unchanged."""
        try:
            return self.sock.send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None
        except ssl.SSLError as error:
            raise OSError(f"TLS failed: {words(error)}") from None
