"""What is foreseen of a run is told before it, what was reached after it, and where it is meanwhile."""

from __future__ import annotations

import io
import sys
from dataclasses import replace

import pytest
from grids import cell
from rich.console import Console

from jobs.control import SessionProgress
from jobs.errors import BadInput
from jobs.session import SessionSite, in_its_environment
from jobs.session import new_row as new_session_row
from jobs.spec import CellOrder, SessionSpec
from orchestrator import progress
from orchestrator.config import compose
from orchestrator.describe import describe
from orchestrator.expected import Expectation, Size
from orchestrator.grid import expand
from orchestrator.here import nodes_to_come
from orchestrator.ledger import Node
from orchestrator.pace import Pace, told_forecast
from orchestrator.pack import Packed, pack
from orchestrator.progress import View

FORESEEN = Expectation(lambda workload: Size(1, 1, 0), any_start_s=10.0)
NODES = [Node(str(n), str(n), cpus=8, gpus=8, gpu_type="H100") for n in range(2)]


def session(name: str, tp: int, expected_s: float) -> SessionSpec:
    which = cell(device="cuda", tp=tp)
    return SessionSpec(name, "now", which.deployment, (CellOrder(which, 1),), expected_s)


def test_a_plan_tells_how_long_it_takes_there_and_what_it_cannot_hold() -> None:
    plan = [session("a", 8, 60.0), session("b", 8, 40.0), session("c", 8, 30.0), session("big", 16, 99.0)]
    packed = pack(plan[:3], NODES, FORESEEN)
    text = describe("night", [], plan, FORESEEN, NODES, packed)
    assert "on 2 nodes of 8 CPUs, 8 H100: about 70 s, and no order could take less than 65 s" in text
    assert "cannot run there: a session must fit on one node: got engine.tp=16 takes 16 GPUs" in text


def test_a_plan_for_nodes_that_nobody_knows_says_so() -> None:
    text = describe("night", [], [session("a", 8, 60.0)], FORESEEN, [], None, "no Ray there")
    assert "how long it takes together is not known: no Ray there" in text


def test_what_was_reached_is_told_beside_what_was_foreseen(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("orchestrator.pace.time.monotonic", lambda: now[0])
    plan = [session("a", 8, 60.0), session("b", 8, 40.0)]
    pace = Pace(Packed(plan, 60.0, 60.0), NODES)
    again = session("c", 8, 5.0)
    pace.add(Packed([again], 5.0, 5.0))
    for spec, took_s in zip([*plan, again], (50.0, 40.0, 10.0), strict=True):
        row = new_session_row(spec, SessionSite())
        pace.see(row)  # ready
        pace.see(replace(row, ended_s=took_s))
    now[0] += 75.0
    assert pace.lower_bound_s == 50.0
    assert pace.told() == "75 s; foreseen were 60 s, 1.50 times the least that these sessions could take"
    assert told_forecast(Packed(plan, 60.0, 50.0)) == "about 60 s, and no order could take less than 50 s"


def test_without_a_terminal_a_line_says_where_everything_is_while_nothing_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    out = io.StringIO()
    spec = session("a", 8, 60.0)
    view = View([order.cell for order in spec.orders], {spec.orders[0].cell.id: 50.0}, Console(file=out))
    for _ in range(5):
        now[0] += 45.0
        view.watch(spec, SessionProgress("starting"))
    lines = out.getvalue().splitlines()
    assert len(lines) == 2
    assert "0 of 1 cells measured, 0 failed, about 50 s to go; sessions: 1 starting" in lines[0]


@pytest.mark.parametrize(
    ("override", "found"),
    [
        pytest.param(
            "cluster.pools.gpu={nodes: 2, cpus: 96, gpus: 8, gpu_type: h100, engines: [vllm]}",
            [Node(f"gpu-{n}", f"gpu-{n}", 96, 8, "H100", frozenset({"vllm"})) for n in range(2)],
            id="a pool",
        ),
        pytest.param("cluster.pools.my-pool={cpus: 4}", [Node("my-pool-0", "my-pool-0", 4, 0)], id="a name with a dash"),
        pytest.param("cluster.pools.my-pool.cpus=4", [Node("my-pool-0", "my-pool-0", 4, 0)], id="a field"),
        pytest.param("cluster.pools={cpu: {cpus: 4}}", [Node("cpu-0", "cpu-0", 4, 0)], id="by its defaults"),
        pytest.param("cluster.node_wait_s=5", [], id="none"),
    ],
)
def test_nodes_to_come_are_read_from_the_configuration(override: str, found: list[Node]) -> None:
    sweep = compose(["cluster=ray", override])
    assert sweep is not None
    assert nodes_to_come(sweep.cluster) == found


def test_marks_and_types_are_read_from_the_command_line() -> None:
    sweep = compose(
        ["engine=simulated", "cluster=ray", 'cluster.marks.simulated="pool=a"', "axes.engine.gpu_type=[h100,H100,A100]"]
    )
    assert sweep is not None
    assert sweep.cluster.marks == {"simulated": "pool=a"}
    cells = expand(sweep.points, sweep.grid)
    assert [item.deployment.engine.gpu_type for item in cells] == ["H100", "A100"]


def test_only_what_makes_an_environment_is_a_runtime_env() -> None:
    sweep = compose(["engine=simulated", "engine.runtime_env={py_executable: /x}"])
    assert sweep is not None
    with pytest.raises(BadInput, match=r"`engine.runtime_env` must be Ray's uv, pip, conda, image_uri: got {'py_exec"):
        expand(sweep.points, sweep.grid)


@pytest.mark.parametrize(
    ("engine", "is_workers"),
    [
        pytest.param({"runtime_env": {"uv": ["x"]}}, True, id="Ray's"),
        pytest.param({"runtime_env": {"uv": ["x"]}, "python": "/its/own"}, False, id="its own beside Ray's"),
        pytest.param({}, False, id="the adapter's"),
    ],
)
def test_with_a_runtime_env_the_engine_runs_on_the_workers_interpreter(engine: dict, is_workers: bool) -> None:
    asked = cell(**engine).deployment
    found = in_its_environment(asked)
    assert found.engine.python == (sys.executable if is_workers else asked.engine.python)
    assert found.id == asked.id == cell().deployment.id
