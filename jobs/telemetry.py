"""Owns what devices did while a cell ran: when they are asked, and the rows of it.

Does not own what a GPU tells (`gpus`), or judgements about it: those are views.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType

import psutil

from jobs.gpus import forget_errors, health_of, open_gpus, sample_gpu, watch_errors
from storage.rows import TelemetryRow

GPU_PERIOD_S = 0.1
MOST_SAMPLES = 100_000  # that wait to be taken: 20 minutes with 8 GPUs; then the oldest go
SLOW_PERIOD_S = 1.0  # a walk over the engine's process tree costs milliseconds: not ten times a second


class Telemetry:
    """Samples in a thread of its own from entering to leaving; take them while it runs or afterwards."""

    def __init__(self, engine_pid: int | None, gpus: Sequence[str]) -> None:
        self._engine = None if engine_pid is None else running_process(engine_pid)
        self._gpus = [watch_errors(gpu) for gpu in open_gpus(gpus)]
        self._samples: deque[TelemetryRow] = deque(maxlen=MOST_SAMPLES)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)

    def __enter__(self) -> Telemetry:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()
        for gpu in self._gpus:
            forget_errors(gpu)

    @property
    def n_samples(self) -> int:
        """That wait to be taken."""
        return len(self._samples)

    def take(self, cell_id: str, attempt: int, t_zero_ns: int) -> list[TelemetryRow]:
        """The samples that nobody took, since the cell's start: `t_zero_ns` on this machine's monotonic clock."""
        waiting = [self._samples.popleft() for _ in range(self.n_samples)]  # while the thread goes on appending
        return [
            replace(sample, cell_id=cell_id, attempt=attempt, t_ns=sample.t_ns - t_zero_ns)
            for sample in waiting
            if sample.t_ns >= t_zero_ns
        ]

    def _run(self) -> None:
        psutil.cpu_percent()  # the first call of a thread only begins to count
        period_s = GPU_PERIOD_S if self._gpus else SLOW_PERIOD_S
        due_s, next_slow_s, is_last = time.monotonic(), 0.0, False
        while not is_last:  # the last look is at the end: what kills an engine, an Xid or a memory error, ends its cell
            due_s = next_look_s(due_s, time.monotonic(), period_s)
            is_last = self._stop.wait(due_s - time.monotonic())
            t_ns = time.monotonic_ns()
            is_slow = due_s >= next_slow_s
            self._samples.extend(self._sample_gpus(t_ns, is_slow or is_last))
            if is_slow and not is_last:
                next_slow_s = due_s + SLOW_PERIOD_S
                self._samples.append(self._sample_cpu(t_ns))

    def _sample_gpus(self, t_ns: int, is_slow: bool) -> list[TelemetryRow]:
        ours = pids_of(self._engine) if is_slow and self._gpus and self._engine else set()
        rows = [(gpu, sample_gpu(gpu, t_ns)) for gpu in self._gpus]
        return [replace(row, **health_of(gpu, ours)) if is_slow else row for gpu, row in rows]

    def _sample_cpu(self, t_ns: int) -> TelemetryRow:
        return TelemetryRow(
            cell_id="",
            attempt=0,
            t_ns=t_ns,
            device="cpu",
            utilisation=psutil.cpu_percent() / 100,
            memory_bytes=tree_memory_bytes(self._engine) if self._engine else None,
        )


def next_look_s(due_s: float, now_s: float, period_s: float) -> float:
    """A period after the last one was due, however long that took; what was missed is left out, so that there is a rest."""
    return due_s + period_s * max(1, math.ceil((now_s - due_s) / period_s))


def running_process(pid: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid)
    except psutil.Error:
        return None


def pids_of(root: psutil.Process) -> set[int]:
    """A process and its descendants."""
    with contextlib.suppress(psutil.Error):
        return {root.pid, *(child.pid for child in root.children(recursive=True))}
    return set()


def tree_memory_bytes(root: psutil.Process) -> int | None:
    """Resident bytes of a process and its descendants; None when it is gone."""
    total = 0
    try:
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                total += process.memory_info().rss
    except psutil.Error:
        return None
    return total or None
