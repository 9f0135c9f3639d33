"""Owns the floor of the benchmark: `sink.c`, built where there is a C compiler, and what it cost. Does not own scenarios."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


def floor(port: int, streams: int, requests: int, tokens: int) -> tuple[float, float] | None:
    """Seconds of CPU and of time that reading and discarding took; None without a C compiler or off Linux (epoll)."""
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        return None
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "sink"
        subprocess.run([compiler, "-O2", "-o", program, Path(__file__).with_name("sink.c")], check=True)
        argv = [str(program), *map(str, (port, streams, requests, tokens))]
        told = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True).stdout
    cpu_s, wall_s = map(float, told.split())
    return cpu_s, wall_s
