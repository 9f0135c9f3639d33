"""Owns the messages between the driving worker and its load clients, and their framing. Does not own what is done with them.

A message is a tuple that begins with its name; `marshal` carries it, because both ends are the same interpreter on one
machine, and it is the cheapest. Standard library only: the client imports it.

worker → client
    ("plan", fields of `Plan`)                        first of all
    ("send", index, turn, has_more, t_due, request)   a turn, ready for the socket; `t_due` < 0 = as soon as a slot is free
    ("release", index)                                no further turn of that conversation will come
    ("open",)                                         all first turns are there: open the connections
    ("start", t_zero)                                 the clock starts: monotonic nanoseconds

client → worker
    ("ready",)                                        connections are open
    ("tick", done, reads)                             about once a second; both since the start
    ("reply", *fields of `Reply`)                     a turn ended
    ("end", fields of `Confession`)                   every conversation ended; the last message
"""

from __future__ import annotations

import marshal
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

LENGTH = struct.Struct("<I")
Message = tuple[Any, ...]
TIMED_OUT = "timed out after"
"""How the error of a turn begins that was not answered within `load.request_timeout_s`."""


class Plan(NamedTuple):
    """What a client must know before the first request."""

    host: str
    port: int
    streams: int  # most conversations at once; 0 = no limit (open loop)
    request_timeout_ns: int
    cpus: tuple[int, ...]  # to run on; () = any
    tls: bool = False
    proxy: str = ""  # may hold credentials
    ca_file: str = ""  # "" = what the system trusts


class Reply(NamedTuple):
    """One turn as it was seen, unparsed. All times are monotonic nanoseconds."""

    conversation: int
    turn: int
    t_due: int
    t_sent: int  # 0 = never sent
    error: str  # "" = an HTTP response was read to its end
    clock_offset: int  # wall clock − monotonic clock; -1 = the wall clock jumped, or there are no kernel stamps
    read_at: bytes  # int64 a read: when the client had it
    kernel_at: bytes  # two int64 a read: seconds and nanoseconds of the wall clock; zeros = the kernel gave none
    sizes: bytes  # int64 a read: bytes
    data: bytes


class Confession(NamedTuple):
    """What the client says of itself at the end."""

    has_kernel_stamps: bool
    clock_stepped: bool
    loop_lag_ns_max: int  # longest time that a batch of events took
    cpu_ns: int  # CPU time from the start to the end


def pack(message: Message) -> bytes:
    """The message as it goes over the wire."""
    body = marshal.dumps(message)
    return LENGTH.pack(len(body)) + body


class Unpacker:
    """Messages from the bytes of a stream, however they are cut."""

    def __init__(self) -> None:
        self.rest = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """The messages that `data` completes."""
        self.rest += data
        start = 0
        while len(self.rest) >= start + LENGTH.size:
            (length,) = LENGTH.unpack_from(self.rest, start)
            end = start + LENGTH.size + length
            if len(self.rest) < end:
                break
            yield marshal.loads(bytes(self.rest[start + LENGTH.size : end]))
            start = end
        del self.rest[:start]
