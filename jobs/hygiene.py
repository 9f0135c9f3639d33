"""Owns the GPUs of a session before its engine starts: it sees exactly those, and nothing of a session before is left there.

Does not own what happens on them afterwards (`telemetry`). Other people's processes are told, never waited for or touched.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import psutil

from jobs.engines.process import MARKER
from jobs.errors import GpuTaken
from jobs.gpus import Gpu, Tenant, open_gpus, tenants_of, used_bytes

LIMIT_S = 30.0  # a killed engine's memory is back within seconds
POLL_S = 0.2
AT_REST_BYTES = 2**30  # what a driver itself, or a display, may hold of an idle GPU


def device_environment(gpus: Sequence[str]) -> dict[str, str]:
    """What shows an engine its GPUs and no others, by whichever library it looks; without GPUs, none.

    NVML and Ray count in the order of the PCI bus, CUDA by itself the fastest first: one order for all. ROCR_VISIBLE_DEVICES
    stays as the node has it: HIP counts among what that leaves.
    """
    return {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(gpus),
        "HIP_VISIBLE_DEVICES": ",".join(gpus) or "-1",  # HIP takes "" for all
    }


def wait_until_free(devices: Sequence[str], should_stop: Callable[[], bool], limit_s: float | None = None) -> None:
    """Return once the last session's memory is back; `GpuTaken` with the culprit's pid after a while.

    Memory that nobody owns up to is waited for too, and then left to the engine: it may be another container's.
    """
    gpus = open_gpus(devices)
    deadline = time.monotonic() + (LIMIT_S if limit_s is None else limit_s)
    while any(_is_held(gpu) for gpu in gpus) and not should_stop():
        if time.monotonic() > deadline:
            refuse_leftovers(gpus)
            return
        time.sleep(POLL_S)


def refuse_leftovers(gpus: Sequence[Gpu]) -> None:
    for gpu in gpus:
        for tenant in _ours(gpu):
            held = "unknown memory" if tenant.memory_bytes is None else f"{tenant.memory_bytes / 2**30:.1f} GiB"
            raise GpuTaken(
                f"{gpu.name} must be free when a session starts: process {tenant.pid} of an earlier session still holds "
                f"{held} of it. End that process (kill -9 {tenant.pid}); if it is stuck, restart the node."
            )


def _is_held(gpu: Gpu) -> bool:
    """By a session of ours, or by nobody who can be seen."""
    if next(_ours(gpu), None):
        return True
    return not tenants_of(gpu) and (used_bytes(gpu) or 0) > AT_REST_BYTES


def _ours(gpu: Gpu) -> Iterator[Tenant]:
    """Engines of sessions, this user's: each carries the marker."""
    for tenant in tenants_of(gpu) or ():
        try:
            if MARKER in psutil.Process(tenant.pid).environ():
                yield tenant
        except psutil.Error:
            continue  # gone, another user's, or a pid of the host
