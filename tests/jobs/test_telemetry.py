"""What the devices of a node did while a cell ran."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
from fake_nvml import Device, FakeNvml

from jobs.gpus import health_of, open_gpus, sample_gpu
from jobs.telemetry import Telemetry, next_look_s, tree_memory_bytes


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
    monkeypatch.setattr("jobs.telemetry.SLOW_PERIOD_S", 0.02)

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


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml({"3": Device({"percent": 40, "megahertz": 1980}, used=7)})
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


def test_a_node_without_a_driver_has_no_gpu_samples(nvml: FakeNvml) -> None:
    nvml.devices.clear()
    assert open_gpus(("0", "1")) == []
    assert open_gpus(()) == []


def test_what_a_gpu_does_not_tell_is_none(nvml: FakeNvml) -> None:
    (gpu,) = open_gpus(("3",))
    row = sample_gpu(gpu, 5)
    assert (row.device, row.t_ns, row.utilisation, row.memory_bytes, row.clock_mhz) == ("gpu3", 5, 0.4, 7, 1980)
    assert (row.power_w, row.energy_j, row.throttle_reasons) == (None, None, None)
    health = health_of(gpu, set())
    assert {name for name, value in health.items() if value is not None} == {"other_processes", "other_memory_bytes"}


@pytest.mark.parametrize(
    ("processes", "others"),
    [
        pytest.param([], (0, 0), id="nobody"),
        pytest.param([(1, 100)], (0, 0), id="only us"),
        pytest.param([(1, 100), (2, 5), (3, None)], (2, 5), id="others beside us"),
        pytest.param([(7, 100)], (None, None), id="pids of another namespace, of which one may be ours"),
    ],
)
def test_other_tenants_are_counted_where_they_can_be_told_from_us(
    nvml: FakeNvml, processes: list[tuple[int, int | None]], others: tuple[int | None, int | None]
) -> None:
    nvml.devices["3"].processes = processes
    health = health_of(open_gpus(("3",))[0], {1})
    assert (health["other_processes"], health["other_memory_bytes"]) == others


def test_a_gpu_is_sampled_ten_times_a_second_and_its_health_once(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.telemetry.GPU_PERIOD_S", 0.02)
    monkeypatch.setattr("jobs.telemetry.SLOW_PERIOD_S", 0.2)
    device = nvml.devices["3"]
    device.told |= {"milliwatts": 700_000, "millijoules": 5_000, "throttle_reasons": 4, "celsius": 61, "ecc": (2, 1)}
    device.processes, device.xids = [(os.getpid(), 7), (1, 3)], [79]
    with Telemetry(os.getpid(), ("3",)) as telemetry:
        assert nvml.open_sets == 1
        wait_for_looks(telemetry, 25)
    assert nvml.open_sets == 0
    rows = [row for row in telemetry.take("a-cell", 1, 0) if row.device == "gpu3"]
    slow = [row for row in rows if row.temperature_c is not None]
    assert len(rows) > len(slow) >= 2
    assert {(row.power_w, row.energy_j, row.throttle_reasons, row.ecc_corrected, row.ecc_uncorrected) for row in rows} == {
        (700.0, 5.0, 4, 2, 1)
    }
    assert {(row.temperature_c, row.other_processes) for row in slow} == {(61, 1)}
    assert [row.xid for row in slow if row.xid] == [79]


@pytest.mark.parametrize(
    ("now_s", "next_s"),
    [
        pytest.param(10.0, 10.125, id="it took no time"),
        pytest.param(10.0625, 10.125, id="it took half a period: the rate is kept"),
        pytest.param(10.125, 10.125, id="it took a period: at once"),
        pytest.param(11.03, 11.125, id="it took long: what was missed is left out"),
    ],
)
def test_looks_keep_their_rate_though_they_take_time(now_s: float, next_s: float) -> None:
    assert next_look_s(10.0, now_s, 0.125) == next_s


def test_what_ends_an_engine_at_once_is_still_told_with_its_cell(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    """An Xid or a memory error kills the engine. What was looked at before the cell began is not of the cell."""
    monkeypatch.setattr("jobs.telemetry.GPU_PERIOD_S", 0.02)
    monkeypatch.setattr("jobs.telemetry.SLOW_PERIOD_S", 3600.0)
    device = nvml.devices["3"]
    device.told |= {"ecc": (0, 0), "millijoules": 1_000}
    with Telemetry(os.getpid(), ("3",)) as telemetry:
        wait_for_looks(telemetry, 2)
        t_zero_ns = time.monotonic_ns()
        wait_for_looks(telemetry, telemetry.n_samples + 2)  # the one under way may have begun before
        device.told |= {"ecc": (0, 1), "millijoules": 9_000}
        device.xids = [79]
    rows = telemetry.take("a-cell", 1, t_zero_ns)
    first, last = rows[0], rows[-1]
    assert (first.ecc_uncorrected, last.ecc_uncorrected) == (0, 1)
    assert (first.energy_j, last.energy_j, last.xid) == (1.0, 9.0, 79)


def wait_for_looks(telemetry: Telemetry, count: int) -> None:
    deadline_s = time.monotonic() + 30
    while telemetry.n_samples < count and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert telemetry.n_samples >= count
