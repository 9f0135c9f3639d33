"""A session sees its own GPUs and no others, and gets them empty. NVIDIA's library is a stand-in: there is no GPU here."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_nvml import Device, FakeNvml

from jobs.control import SessionControl
from jobs.engines import ENGINES, engine_named
from jobs.engines.base import Launch, Site
from jobs.engines.process import MARKER, engine_environment
from jobs.errors import GpuTaken
from jobs.gpus import open_gpus
from jobs.hygiene import device_environment, wait_until_free
from jobs.spec import Deployment, Draft, Engine, Model
from jobs.starting import wait_for_gpus

GIB = 2**30


@pytest.fixture
def process() -> Iterator[Callable[..., int]]:
    """Starts a sleeping process, of an engine or not; its pid."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*, is_engine: bool) -> int:
        env = {**os.environ, **({MARKER: "specsweep-of-before"} if is_engine else {})}
        code = "print('up', flush=True); import time; time.sleep(60)"
        popen = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE)
        started.append(popen)
        assert popen.stdout is not None
        popen.stdout.readline()
        return popen.pid

    yield start
    for popen in started:
        popen.kill()
        popen.communicate()


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml({"0": Device(), "1": Device()})
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


def waited_s(limit_s: float) -> float:
    began = time.monotonic()
    wait_until_free(("0", "1"), lambda: False, limit_s)
    return time.monotonic() - began


def test_what_an_earlier_session_left_is_waited_for_then_refused_with_its_pid(
    nvml: FakeNvml, process: Callable[..., int]
) -> None:
    pid = process(is_engine=True)
    nvml.devices["1"].processes = [(pid, 3 * GIB)]
    with pytest.raises(GpuTaken, match=rf"gpu1 must be free .* process {pid} of an earlier session still holds 3.0 GiB"):
        wait_until_free(("0", "1"), lambda: False, 0.5)


def test_a_session_starts_as_soon_as_the_memory_is_back(nvml: FakeNvml, process: Callable[..., int]) -> None:
    nvml.devices["0"].processes = [(process(is_engine=True), GIB)]
    threading.Timer(0.5, lambda: setattr(nvml.devices["0"], "processes", ())).start()
    assert 0.3 < waited_s(20) < 10


@pytest.mark.parametrize(
    ("device", "least_s", "most_s"),
    [
        pytest.param(Device(used=GIB // 2), 0, 0.4, id="an empty one at once"),
        pytest.param(
            Device(used=9 * GIB), 0.5, 5, id="memory that nobody owns up to is waited for, and is no reason to fail"
        ),
        pytest.param(Device(used=9 * GIB, processes=[(1, 9 * GIB)]), 0, 0.4, id="other people's is not waited for"),
        pytest.param(Device(used=9 * GIB, processes=[(4_000_000, None)]), 0, 0.4, id="nor a pid of the host's"),
    ],
)
def test_what_is_waited_for(nvml: FakeNvml, device: Device, least_s: float, most_s: float) -> None:
    nvml.devices["0"] = device
    assert least_s <= waited_s(0.5) < most_s


@pytest.mark.parametrize(
    ("gone_after_s", "told"),
    [pytest.param(0.3, 0, id="a session's of before"), pytest.param(9.0, 2 * GIB, id="a neighbour's, who stays")],
)
def test_what_is_used_before_an_engine_starts_is_told_as_it_is_after_the_wait(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gone_after_s: float, told: int
) -> None:
    monkeypatch.setattr("jobs.hygiene.LIMIT_S", 1.5)
    device = nvml.devices["0"]
    device.told |= {"name": "H100", "uuid": "GPU-1"}
    device.used = 2 * GIB
    leaving = threading.Timer(gone_after_s, lambda: setattr(device, "used", 0))
    leaving.start()
    (facts,) = wait_for_gpus(Site(1, "nonce", tmp_path, None, tmp_path, ("0",)), SessionControl())
    leaving.cancel()
    assert facts["used_bytes"] == told


def test_a_stop_ends_the_wait(nvml: FakeNvml, process: Callable[..., int]) -> None:
    nvml.devices["0"].processes = [(process(is_engine=True), GIB)]
    wait_until_free(("0",), lambda: True, 60)


def test_without_a_driver_there_is_nothing_to_wait_for(nvml: FakeNvml) -> None:
    nvml.devices.clear()
    assert open_gpus(("0",)) == []
    assert waited_s(60) < 30


def launched(name: str, site: Site, device: str) -> dict[str, str]:
    """What the engine's process would have in its environment, on a worker to which Ray has given all GPUs but one."""
    deployment = Deployment(Model(path=str(site.model_dir)), Engine(name=name, device=device, batch=4), Draft())
    how = engine_named(name).launch(deployment, site)
    assert isinstance(how, Launch)
    added = {**how.env, **device_environment(site.gpus)}
    inherited = {"CUDA_VISIBLE_DEVICES": "0,1,2", "HIP_VISIBLE_DEVICES": "0,1,2", "ROCR_VISIBLE_DEVICES": "0,1,2,3"}
    return engine_environment(added, (MARKER, "x"), site.scratch, inherited)


@pytest.mark.parametrize(
    ("gpus", "cuda", "hip"),
    [
        pytest.param(("2", "3"), "2,3", "2,3", id="its own"),
        pytest.param(("GPU-4c1", "MIG-77"), "GPU-4c1,MIG-77", "GPU-4c1,MIG-77", id="by UUID"),
        pytest.param((), "", "-1", id="none"),
    ],
)
@pytest.mark.parametrize("name", [name for name in ENGINES if name != "attached"])
def test_an_engine_sees_exactly_the_gpus_of_its_session(
    name: str, gpus: tuple[str, ...], cuda: str, hip: str, tmp_path: Path
) -> None:
    for file in ("config.json", "model.gguf"):
        (tmp_path / file).touch()
    site = Site(1, "nonce", tmp_path, None, tmp_path, gpus)
    seen = launched(name, site, "cuda" if gpus else "cpu")
    assert (seen["CUDA_VISIBLE_DEVICES"], seen["HIP_VISIBLE_DEVICES"]) == (cuda, hip)
    assert (seen["CUDA_DEVICE_ORDER"], seen["ROCR_VISIBLE_DEVICES"]) == ("PCI_BUS_ID", "0,1,2,3")
