"""What the devices of a node did while a cell ran."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from jobs.telemetry import Gpu, Telemetry, open_gpus, sample_gpu, tree_memory_bytes


def test_the_engines_memory_counts_its_children_too() -> None:
    import psutil

    alone = tree_memory_bytes(psutil.Process())
    child = subprocess.Popen(
        [sys.executable, "-c", "x = bytearray(50_000_000); print('up', flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with child:
        assert child.stdout is not None
        child.stdout.readline()
        together = tree_memory_bytes(psutil.Process())

    assert alone is not None
    assert together is not None
    assert together > alone + 40_000_000


def test_samples_carry_the_cell_and_rising_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.telemetry.CPU_PERIOD_S", 0.02)

    with Telemetry(os.getpid(), ()) as telemetry:
        time.sleep(0.1)
        t_zero_ns = time.monotonic_ns()
        time.sleep(0.2)
    rows = telemetry.take("a-cell", 2, t_zero_ns)

    assert len(rows) >= 2
    assert all(0 <= row.t_ns < 10**9 for row in rows)
    assert {(row.cell_id, row.attempt, row.device) for row in rows} == {("a-cell", 2, "cpu")}
    assert [row.t_ns for row in rows] == sorted({row.t_ns for row in rows})
    assert all(row.memory_bytes and row.utilisation is not None for row in rows)


def test_a_node_without_a_driver_has_no_gpu_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoDriver(Exception):
        pass

    def refuse() -> None:
        raise NoDriver

    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(NVMLError=NoDriver, nvmlInit=refuse))

    assert open_gpus(("0", "1")) == []
    assert open_gpus(()) == []


def test_what_a_gpu_does_not_tell_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    class NotSupportedError(Exception):
        pass

    def refuse(*_: object) -> None:
        raise NotSupportedError

    nvml = SimpleNamespace(
        NVMLError=NotSupportedError,
        NVML_CLOCK_SM=1,
        nvmlDeviceGetPowerUsage=refuse,
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=40),
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(used=7),
        nvmlDeviceGetClockInfo=lambda handle, kind: 1980,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)

    row = sample_gpu(Gpu("gpu3", object()), 5)

    assert (row.device, row.t_ns, row.power_w, row.utilisation, row.memory_bytes, row.clock_mhz) == (
        "gpu3",
        5,
        None,
        0.4,
        7,
        1980,
    )
