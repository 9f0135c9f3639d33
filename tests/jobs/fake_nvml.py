"""A stand-in for `pynvml`, with the functions that we call. NVIDIA's library is the border of the process. No test."""

# ruff: noqa: N802, N815 - the names are theirs

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    pass


@dataclass
class Device:
    """One GPU. What is not in `told` it does not support."""

    told: dict[str, Any] = field(default_factory=dict)
    processes: Sequence[tuple[int, int | None]] = ()  # pid, bytes
    used: int = 0
    xids: list[int] = field(default_factory=list)


class FakeNvml(SimpleNamespace):
    """In `sys.modules` as pynvml."""

    NVMLError = NVMLError
    NVML_CLOCK_SM = 1
    NVML_TEMPERATURE_GPU = 0
    NVML_MEMORY_ERROR_TYPE_CORRECTED = 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    nvmlEventTypeXidCriticalError = 8

    def __init__(self, devices: Mapping[str, Device]) -> None:
        super().__init__()
        self.devices = dict(devices)
        self.open_sets = 0

    def nvmlInit(self) -> None:
        if not self.devices:
            raise NVMLError("no driver")

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Device:
        return self._device(str(index))

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Device:
        return self._device(uuid)

    def nvmlDeviceGetPowerUsage(self, device: Device) -> int:
        return self._told(device, "milliwatts")

    def nvmlDeviceGetTotalEnergyConsumption(self, device: Device) -> int:
        return self._told(device, "millijoules")

    def nvmlDeviceGetUtilizationRates(self, device: Device) -> SimpleNamespace:
        return SimpleNamespace(gpu=self._told(device, "percent"))

    def nvmlDeviceGetMemoryInfo(self, device: Device) -> SimpleNamespace:
        return SimpleNamespace(used=device.used, total=80 * 2**30)

    def nvmlDeviceGetClockInfo(self, device: Device, kind: int) -> int:
        return self._told(device, "megahertz")

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, device: Device) -> int:
        return self._told(device, "throttle_reasons")

    def nvmlDeviceGetTemperature(self, device: Device, sensor: int) -> int:
        return self._told(device, "celsius")

    def nvmlDeviceGetTotalEccErrors(self, device: Device, kind: int, counter: int) -> int:
        return self._told(device, "ecc")[kind]

    def nvmlDeviceGetComputeRunningProcesses(self, device: Device) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=held) for pid, held in device.processes]

    def nvmlDeviceGetName(self, device: Device) -> str:
        return self._told(device, "name")

    def nvmlDeviceGetUUID(self, device: Device) -> str:
        return self._told(device, "uuid")

    def nvmlSystemGetDriverVersion(self) -> str:
        return "570.86"

    def nvmlEventSetCreate(self) -> list[Device]:
        self.open_sets += 1
        return []

    def nvmlDeviceRegisterEvents(self, device: Device, kinds: int, watched: list[Device]) -> None:
        assert kinds == self.nvmlEventTypeXidCriticalError
        watched.append(device)

    def nvmlEventSetWait_v2(self, watched: list[Device], timeout_ms: int) -> SimpleNamespace:
        if not watched[0].xids:
            raise NVMLError("timeout")
        return SimpleNamespace(eventData=watched[0].xids.pop(0))

    def nvmlEventSetFree(self, watched: list[Device]) -> None:
        self.open_sets -= 1

    def _device(self, name: str) -> Device:
        if name not in self.devices:
            raise NVMLError("not found")
        return self.devices[name]

    def _told(self, device: Device, name: str) -> Any:
        if name not in device.told:
            raise NVMLError("not supported")
        return device.told[name]
