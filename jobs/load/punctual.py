"""Owns what makes the client process punctual, as far as the platform lets it. Does not own the loop. Only standard library.

It takes no more CPU time than its share, because the engine beside it is what is measured: no real-time priority. Shorter
slices (`sched_setattr`, Linux 6.12) were tried and are worse: a burst of answers is then handled in many small pieces.
"""

from __future__ import annotations

import gc
import os
from contextlib import suppress
from pathlib import Path

TIMER_SLACK_NS = "1000"


def be_punctual(cpus: tuple[int, ...]) -> None:
    """Its own CPUs, a fine timer, no garbage collector (nothing in the client makes cycles)."""
    gc.disable()
    with suppress(OSError, AttributeError):
        if cpus:
            os.sched_setaffinity(0, cpus)
    with suppress(OSError):
        Path("/proc/self/timerslack_ns").write_text(TIMER_SLACK_NS)
