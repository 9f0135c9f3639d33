"""Owns what NVML tells of the GPUs of a node. Does not own when it is asked, or what is made of it.

What a device does not tell is None. `pynvml` is imported only where a GPU was assigned.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from storage.rows import TelemetryRow


@dataclass(frozen=True)
class Gpu:
    """One assigned GPU, by its NVML handle. `errors`: the set in which its critical errors are collected, once watched."""

    name: str
    handle: Any
    errors: Any = None


@dataclass(frozen=True)
class Tenant:
    """A process that computes on a GPU, by its pid as the driver tells it: in a container it may be that of the host."""

    pid: int
    memory_bytes: int | None


def open_gpus(devices: Sequence[str]) -> list[Gpu]:
    """The devices given by index or UUID; none where there is no driver."""
    if not devices:
        return []
    import pynvml

    try:
        pynvml.nvmlInit()
        return [Gpu(f"gpu{device}", _handle(pynvml, device)) for device in devices]
    except pynvml.NVMLError:
        return []


def watch_errors(gpu: Gpu) -> Gpu:
    """The same GPU, its Xid errors collected from now on, where its driver can do that."""
    import pynvml

    def register() -> Any:
        errors = pynvml.nvmlEventSetCreate()
        pynvml.nvmlDeviceRegisterEvents(gpu.handle, pynvml.nvmlEventTypeXidCriticalError, errors)
        return errors

    return Gpu(gpu.name, gpu.handle, told(register))


def forget_errors(gpu: Gpu) -> None:
    import pynvml

    if gpu.errors is not None:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlEventSetFree(gpu.errors)


def sample_gpu(gpu: Gpu, t_ns: int) -> TelemetryRow:
    """What changes from one tenth of a second to the next, and memory errors: what adds up, a short cell needs twice."""
    import pynvml as nvml

    handle = gpu.handle
    milliwatts = told(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
    millijoules = told(lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle))
    percent = told(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    return TelemetryRow(
        cell_id="",
        attempt=0,
        t_ns=t_ns,
        device=gpu.name,
        utilisation=None if percent is None else percent / 100,
        memory_bytes=used_bytes(gpu),
        power_w=None if milliwatts is None else milliwatts / 1000,
        clock_mhz=told(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        energy_j=None if millijoules is None else millijoules / 1000,
        throttle_reasons=told(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
        ecc_corrected=memory_errors(gpu, nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
        ecc_uncorrected=memory_errors(gpu, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
    )


def health_of(gpu: Gpu, ours: Collection[int]) -> dict[str, Any]:
    """What changes seldom, as columns of its row: temperature, a critical error, tenants beside `ours`."""
    import pynvml as nvml

    return {
        "temperature_c": told(lambda: float(nvml.nvmlDeviceGetTemperature(gpu.handle, nvml.NVML_TEMPERATURE_GPU))),
        "xid": None if gpu.errors is None else told(lambda: int(nvml.nvmlEventSetWait_v2(gpu.errors, 0).eventData)),
        **_others(tenants_of(gpu), ours),
    }


def memory_errors(gpu: Gpu, kind: int) -> int | None:
    """Of that kind, since its driver was loaded."""
    import pynvml as nvml

    count: int | None = told(lambda: nvml.nvmlDeviceGetTotalEccErrors(gpu.handle, kind, nvml.NVML_VOLATILE_ECC))
    return count


def tenants_of(gpu: Gpu) -> list[Tenant] | None:
    """The processes that compute on it."""
    import pynvml

    found = told(lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(gpu.handle))
    return None if found is None else [Tenant(item.pid, item.usedGpuMemory) for item in found]


def used_bytes(gpu: Gpu) -> int | None:
    import pynvml

    used: int | None = told(lambda: pynvml.nvmlDeviceGetMemoryInfo(gpu.handle).used)
    return used


def told(read: Callable[[], Any]) -> Any:
    """What it answers; None when the device or its driver does not have that."""
    import pynvml

    try:
        return read()
    except pynvml.NVMLError:
        return None


def _others(tenants: Sequence[Tenant] | None, ours: Collection[int]) -> dict[str, int | None]:
    """Unknown where none of the pids is ours: then these are pids of the host, and ours cannot be told from them."""
    if tenants is None or (tenants and not any(tenant.pid in ours for tenant in tenants)):
        return {"other_processes": None, "other_memory_bytes": None}
    others = [tenant for tenant in tenants if tenant.pid not in ours]
    return {"other_processes": len(others), "other_memory_bytes": sum(tenant.memory_bytes or 0 for tenant in others)}


def _handle(pynvml: Any, device: str) -> Any:
    if device.isdigit():
        return pynvml.nvmlDeviceGetHandleByIndex(int(device))
    return pynvml.nvmlDeviceGetHandleByUUID(device)
