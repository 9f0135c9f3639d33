"""Owns the kernel's arrival stamps and how they map to the monotonic clock. Does not own which of them is believed.

The kernel stamps a packet when it arrives, so that a client which is late to read does not shift the time. Its stamps are
wall clock. Linux steers the rates of the wall clock and of the monotonic clock alike, so that their difference is constant
until somebody sets the wall clock: a changed difference *is* a step. Standard library only.
"""

from __future__ import annotations

import socket
import struct
import sys
import time

SO_TIMESTAMPNS = 35  # asm-generic/socket.h; Python has no name for it
TIMESPEC = struct.Struct("@qq")
NO_STAMP = bytes(TIMESPEC.size)
STAMP_BYTES = socket.CMSG_SPACE(TIMESPEC.size)
STEP_NS = 20_000  # a difference that changed by more is a step: samples are good to about 1 µs
SAMPLE_NS = 3_000  # a sample that took longer was interrupted
SAMPLES = 20


def ask_for_stamps(sock: socket.socket) -> bool:
    """Let the kernel stamp what arrives on this socket; False where it cannot."""
    if not sys.platform.startswith("linux") or sys.maxsize < 2**32:
        return False
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    except OSError:
        return False
    return True


def wall_minus_monotonic_ns() -> int:
    """The difference of the two clocks: the tightest of a few samples, so that being interrupted does not shift it."""
    best = SAMPLE_NS * 1_000_000
    offset = 0
    for _ in range(SAMPLES):
        before = time.monotonic_ns()
        wall = time.time_ns()
        took = time.monotonic_ns() - before
        if took < best:
            best, offset = took, wall - before - took // 2
        if took < SAMPLE_NS:
            break
    return offset


def raw_stamp(ancillary: list[tuple[int, int, bytes]]) -> bytes:
    """The timespec among the ancillary data of a read; zeros when there is none."""
    return ancillary[0][2] if ancillary and len(ancillary[0][2]) == TIMESPEC.size else NO_STAMP


def wall_ns(raw: bytes) -> int:
    """A raw stamp as nanoseconds of the wall clock; 0 = none."""
    seconds, nanoseconds = TIMESPEC.unpack(raw)
    return int(seconds * 1_000_000_000 + nanoseconds)
