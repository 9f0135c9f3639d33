"""TensorRT-LLM over several nodes: each rank's command line, and real ranks on a Ray of their own with a stand-in for the
engine, which joins that Ray and places its workers as the engine does."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import venv
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from jobs.control import SessionControl
from jobs.engines.base import Launch, Meeting, Site
from jobs.engines.options import known_of
from jobs.engines.own_host import PROJECT
from jobs.engines.process import MARKER
from jobs.engines.tensorrt_llm import TensorrtLlmEngine
from jobs.errors import BadInput, Unsupported
from jobs.rank import RankOrder, run_rank
from jobs.session import Event, SessionLog, SessionSite, run_session
from jobs.spec import Cell, CellOrder, Deployment, Draft, Engine, Load, Model, Sampling, SessionSpec, Workload
from storage.rows import FAILED, OK, CellResult, SessionRow
from tests.jobs.stand_ins.environment import python_with_stand_ins
from tests.jobs.test_spread import LocalRanks

NAME = "trtllm-ranks"
ADDRESSES = ("127.0.0.2", "127.0.0.3")  # loopback, and as different as two machines
GPUS = (("0", "1"), ("2", "3"))
ENGINE = Engine("tensorrt_llm", tp=4, nodes=2, device="cuda", batch=2, start_timeout_s=400)
MODEL = Model("bytes", "jobs/workloads/data/bytes")
MEETING = Meeting("10.0.0.1", 7000, 7001, own_address="10.0.0.1", secret="s3cret")
SITE = Site(4711, "nonce-1", Path("/models/tiny"), None, Path("/scratch"), ("4", "5"))


def launch(engine: Engine, meeting: Meeting | None) -> Launch:
    deployment = Deployment(MODEL, engine, Draft())
    TensorrtLlmEngine().check(deployment)
    return TensorrtLlmEngine().launch(deployment, replace(SITE, meeting=meeting))


def test_rank_0_starts_a_ray_and_the_server_on_it_and_the_others_join() -> None:
    first, second = (launch(ENGINE, replace(MEETING, rank=rank, own_address=f"10.0.0.{rank + 1}")) for rank in (0, 1))
    shape = (
        *("--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0", "--num-gpus=2", "--num-cpus=2"),
        *("--object-store-memory=268435456", "--temp-dir=/scratch/ray", "--disable-usage-stats"),
    )
    assert first.argv[0] == second.argv[0] == "python3"
    head, server = first.argv[2:15], first.argv[16:]
    assert first.argv[15] == "--"
    assert head[:3] == ("--head", "--port=7000", "--ray-client-server-port=7001")  # no port that another session has too
    assert head[3:] == ("--include-dashboard=false", "--node-ip-address=10.0.0.1", *shape)
    assert server == ("-m", "tensorrt_llm.commands.serve", *launch(replace(ENGINE, nodes=1), None).argv[1:])
    assert second.argv[2:] == ("--address=10.0.0.1:7000", "--block", "--node-ip-address=10.0.0.2", *shape)
    assert first.env == second.env
    assert (first.env["RAY_ADDRESS"], first.env["RAY_AUTH_MODE"], first.env["RAY_AUTH_TOKEN"]) == (
        "10.0.0.1:7000",
        "token",
        "s3cret",
    )
    assert "s3cret" not in f"{first.argv} {second.argv} {MEETING}"


def test_its_options_file_says_so_in_its_own_terms() -> None:
    told = yaml.safe_load(launch(ENGINE, MEETING).files["options.yaml"])
    known = known_of("tensorrt_llm").sections["TorchLlmArgs"]
    said = {name: told[name] for name in ("orchestrator_type", "gpus_per_node")}
    assert said == {"orchestrator_type": "ray", "gpus_per_node": 2}
    assert all(known[name].takes(value) for name, value in said.items())
    alone = yaml.safe_load(launch(replace(ENGINE, nodes=1), None).files["options.yaml"])
    assert {"orchestrator_type", "gpus_per_node"} & set(alone) == set()


def test_the_environment_of_the_engine_is_the_one_that_has_ray() -> None:
    own = launch(replace(ENGINE, python="envs/trt/bin/python"), MEETING)
    assert own.argv[0] == str(PROJECT / "envs/trt/bin/python")


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        pytest.param({"tp": 4, "pp": 3}, "must cut no stage unevenly: got 2 nodes of 6 GPUs", id="a stage and a half"),
        pytest.param({"dp": 2}, r"`engine\.dp` must be 1 for tensorrt_llm", id="copies"),
    ],
)
def test_what_it_has_not_over_several_nodes(engine: dict[str, Any], message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        launch(replace(ENGINE, **engine), MEETING)


@pytest.mark.parametrize("nodes", [1, 2])
def test_no_argument_makes_it_join_another_ray(nodes: int) -> None:
    with pytest.raises(BadInput, match=r"`engine\.args\.orchestrator_type` must be left to SpecSweep: use engine\.nodes"):
        launch(replace(ENGINE, nodes=nodes, args={"orchestrator_type": "ray"}), None)


class Ranks(LocalRanks):
    """Each at an address of its own, with GPUs of its own."""

    def _run(self, order: RankOrder, control: SessionControl) -> None:
        rank = order.meeting.rank
        order = replace(order, meeting=replace(order.meeting, own_address=ADDRESSES[rank]))
        end = run_rank(order, GPUS[rank], control)
        self.logs[end.rank] = end.log
        self.ends.put(end)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return python_with_stand_ins(tmp_path_factory.mktemp("engine"))


@pytest.fixture
def no_process_is_left() -> Iterator[None]:
    yield
    assert ours() == []


def ours() -> list[tuple[int, str]]:
    """What is left of the session: the processes of its private Ray too."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARKER, "").startswith(f"specsweep-{NAME}"):
                found.append((process.pid, " ".join(process.cmdline())))
        except psutil.Error:
            continue
    return found


def spec_with(python: str, **workload: Any) -> SessionSpec:
    deployment = Deployment(MODEL, replace(ENGINE, python=python), Draft(method="mtp", k=3))
    cell = Cell(deployment, Workload(limit=2, **workload), Sampling(), Load(warmup=0))
    return SessionSpec(NAME, "now", deployment, (CellOrder(cell, 1),), 0.0)


def session(spec: SessionSpec) -> Iterator[Event]:
    return run_session(spec, SessionSite(gpus=GPUS[0], address=ADDRESSES[0], ranks=Ranks(spec.deployment)), SessionControl())


@pytest.mark.ray
@pytest.mark.timeout(600)  # two raylets: seconds on a free machine, minutes on one that is not
@pytest.mark.usefixtures("no_process_is_left")
def test_a_worker_on_each_gpu_of_each_rank_and_on_no_other(python: str) -> None:
    events = list(session(spec_with(python, output_limit=40)))
    logs = {event.session_id: event.text for event in events if isinstance(event, SessionLog)}
    assert [event.cell.status for event in events if isinstance(event, CellResult)] == [OK], logs
    told = [yaml.safe_load(line) for line in re.findall(r"^worker \d: (.*)$", logs[NAME], re.MULTILINE)]
    seen = sorted((worker["node"], worker["gpu"], worker["device"], tuple(worker["visible"])) for worker in told)
    assert seen == [(ADDRESSES[rank], gpu, GPUS[rank].index(gpu), GPUS[rank]) for rank in (0, 1) for gpu in GPUS[rank]]
    assert len({(worker["node"], worker["tmp"]) for worker in told}) == 2
    assert not any(Path(worker["tmp"]).exists() for worker in told)
    assert list(logs) == [NAME, f"{NAME}.rank1"]


@pytest.mark.ray
@pytest.mark.timeout(600)  # two raylets: seconds on a free machine, minutes on one that is not
@pytest.mark.usefixtures("no_process_is_left")
@pytest.mark.parametrize("what", ["its process", "its raylet"])
def test_a_rank_that_is_lost_ends_the_session_and_all_of_its_ray(python: str, what: str) -> None:
    events: list[Event] = []
    for event in session(spec_with(python, output_limit=20_000, ignore_eos=True)):
        events.append(event)
        if isinstance(event, SessionRow) and event.ended_s is None:
            threading.Timer(0.5, end_rank_1, args=(what,)).start()
    (failed,) = [event.cell for event in events if isinstance(event, CellResult)] or [events[0]]
    assert (failed.status, failed.error_kind) == (FAILED, "engine_died")
    assert re.search(r"rank 1 on \S+ ended with (SIGKILL|exit code 1)", failed.error)


def end_rank_1(what: str) -> None:
    word = "--block" if what == "its process" else "raylet/raylet"
    (pid,) = [pid for pid, words in ours() if word in words and ADDRESSES[1] in words]
    os.kill(pid, signal.SIGKILL)


def test_an_environment_without_ray_says_so(tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", symlinks=True)
    rank = launch(ENGINE, MEETING).argv[1]
    ended = subprocess.run([tmp_path / "bare/bin/python", rank], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert re.fullmatch(r"TensorRT-LLM over several nodes needs Ray in its environment: \S+ has none\. .*\n", ended.stderr)
