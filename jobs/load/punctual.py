"""Owns what makes the client process punctual, as far as the platform lets it. Does not own the loop. Only standard library.

It asks for promptness, never for more CPU time than its share: the engine beside it is what is measured.
"""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import struct
from contextlib import suppress
from pathlib import Path

SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
"""Number of the system call; Python has no name for it."""
SCHED_ATTR = struct.Struct("@IIQiIQQQ")  # size, policy, flags, nice, priority, runtime, deadline, period
SLICE_NS = 100_000  # the shortest that Linux grants
TIMER_SLACK_NS = "1000"


def be_punctual(cpus: tuple[int, ...]) -> None:
    """Its own CPUs, short slices, a fine timer, no garbage collector (nothing in the client makes cycles)."""
    gc.disable()
    with suppress(OSError, AttributeError):
        if cpus:
            os.sched_setaffinity(0, cpus)
    with suppress(OSError):
        Path("/proc/self/timerslack_ns").write_text(TIMER_SLACK_NS)
    ask_for_short_slices()


def ask_for_short_slices() -> None:
    """Since Linux 6.12 a process may ask for short slices, and in turn runs sooner when it wakes among busy ones.

    Older kernels take the request and change nothing; it needs no privilege.
    """
    if platform.system() == "Linux" and platform.machine() in SCHED_SETATTR:
        attributes = SCHED_ATTR.pack(SCHED_ATTR.size, 0, 0, os.nice(0), 0, SLICE_NS, 0, 0)
        ctypes.CDLL(None).syscall(SCHED_SETATTR[platform.machine()], 0, attributes, 0)
