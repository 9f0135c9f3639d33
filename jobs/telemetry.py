"""Owns what devices did while a cell ran: GPU power, memory, utilisation and clock; the node's CPU, the engine's memory.

Does not own judgements about it: those are views. A device that does not tell something gives None.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

import psutil

from storage.rows import TelemetryRow

GPU_PERIOD_S = 0.1
MOST_SAMPLES = 100_000  # that wait to be taken: 20 minutes with 8 GPUs; then the oldest go
CPU_PERIOD_S = 1.0  # a walk over the engine's process tree costs milliseconds: not ten times a second


@dataclass(frozen=True)
class Gpu:
    """One assigned GPU, by its NVML handle."""

    name: str
    handle: Any


class Telemetry:
    """Samples in a thread of its own from entering to leaving; take them while it runs or afterwards."""

    def __init__(self, engine_pid: int | None, gpus: Sequence[str]) -> None:
        self._engine = None if engine_pid is None else running_process(engine_pid)
        self._gpus = open_gpus(gpus)
        self._samples: deque[TelemetryRow] = deque(maxlen=MOST_SAMPLES)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)

    def __enter__(self) -> Telemetry:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()

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
        next_cpu_s = time.monotonic() + CPU_PERIOD_S
        period_s = GPU_PERIOD_S if self._gpus else CPU_PERIOD_S
        while not self._stop.wait(period_s):
            t_ns = time.monotonic_ns()
            self._samples.extend(sample_gpu(gpu, t_ns) for gpu in self._gpus)
            if t_ns / 1e9 >= next_cpu_s:
                next_cpu_s = t_ns / 1e9 + CPU_PERIOD_S
                self._samples.append(self._sample_cpu(t_ns))

    def _sample_cpu(self, t_ns: int) -> TelemetryRow:
        return TelemetryRow(
            cell_id="",
            attempt=0,
            t_ns=t_ns,
            device="cpu",
            utilisation=psutil.cpu_percent() / 100,
            memory_bytes=tree_memory_bytes(self._engine) if self._engine else None,
        )


def running_process(pid: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid)
    except psutil.Error:
        return None


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


def open_gpus(devices: Sequence[str]) -> list[Gpu]:
    """NVML handles of devices given by index or UUID; none where there is no driver."""
    if not devices:
        return []
    import pynvml  # only where a GPU was assigned

    try:
        pynvml.nvmlInit()
        return [Gpu(f"gpu{device}", _handle(pynvml, device)) for device in devices]
    except pynvml.NVMLError:
        return []


def sample_gpu(gpu: Gpu, t_ns: int) -> TelemetryRow:
    import pynvml

    def told(read: Any) -> Any:
        try:
            return read()
        except pynvml.NVMLError:
            return None

    milliwatts = told(lambda: pynvml.nvmlDeviceGetPowerUsage(gpu.handle))
    percent = told(lambda: pynvml.nvmlDeviceGetUtilizationRates(gpu.handle).gpu)
    return TelemetryRow(
        cell_id="",
        attempt=0,
        t_ns=t_ns,
        device=gpu.name,
        utilisation=None if percent is None else percent / 100,
        memory_bytes=told(lambda: pynvml.nvmlDeviceGetMemoryInfo(gpu.handle).used),
        power_w=None if milliwatts is None else milliwatts / 1000,
        clock_mhz=told(lambda: pynvml.nvmlDeviceGetClockInfo(gpu.handle, pynvml.NVML_CLOCK_SM)),
    )


def _handle(pynvml: Any, device: str) -> Any:
    if device.isdigit():
        return pynvml.nvmlDeviceGetHandleByIndex(int(device))
    return pynvml.nvmlDeviceGetHandleByUUID(device)
