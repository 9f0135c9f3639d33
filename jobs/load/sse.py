"""Owns the grammar of server-sent events. Does not own HTTP, times, or what is in an event."""

from __future__ import annotations

from typing import NamedTuple

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Event(NamedTuple):
    """The data of one event, and how many bytes of the body had to arrive for it to be whole."""

    end: int
    data: bytes


def events_of(body: bytes) -> list[Event]:
    """The events of a whole body (WHATWG HTML, 9.2.6). Comments, other fields and an unfinished last event are left out.

    Lines end in CRLF, LF or CR (as `bytes.splitlines` has it); the data lines of an event are joined by LF.
    """
    events: list[Event] = []
    data: list[bytes] = []
    end = len(BYTE_ORDER_MARK) if body.startswith(BYTE_ORDER_MARK) else 0
    for line in body[end:].splitlines(keepends=True):
        end += len(line)
        if line[:5] == b"data:":
            if line[-1:] in b"\r\n":  # else the body ends inside this line
                data.append(line[6 if line[5:6] == b" " else 5 :].rstrip(b"\r\n"))
        elif line in (b"\n", b"\r\n", b"\r"):
            if data:
                events.append(Event(end, b"\n".join(data)))
                data = []
        elif line.rstrip(b"\r\n") == b"data":
            data.append(b"")
    return events
