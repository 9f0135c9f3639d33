"""Pools, types of GPUs, order, waiting and lost nodes on a real Ray of several nodes, whose GPUs are pretended."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import psutil
import pytest
import ray
from ray.cluster_utils import Cluster as RayCluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from jobs.engines.process import MARKER
from jobs.errors import BadInput
from jobs.session import Event
from jobs.spec import SessionSpec
from orchestrator.config import compose
from orchestrator.expected import Size, expect
from orchestrator.grid import expand
from orchestrator.plan import make_plan
from orchestrator.schedule import Scheduler, connected, nodes_of, sessions
from orchestrator.settings import Cluster, Kind, Limits
from storage.rows import FAILED, OK, CellResult, History, SessionRow

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

INVOCATION = "cluster"
TINY = [
    *("engine=simulated", "engine.device=cuda", "engine.cpus=0.5", "workload.limit=3", "workload.output_limit=8"),
    *("engine.args.step_ms=2", "load.warmup=0", "baseline=''"),
]
STORE = 80 * 2**20


class Fleet:
    """A head without CPUs, one node with 8 H100, one with 4 A100, and one for another engine."""

    def __init__(self) -> None:
        self.ray = RayCluster()
        self.start(num_cpus=0, include_dashboard=False)
        self.h100 = self.add(8, {"accelerator_type:H100": 1, "engine_simulated": 1})
        self.a100 = self.add(4, {"accelerator_type:A100": 1, "engine_simulated": 1})
        self.other = self.add(0, {"engine_llama_cpp": 1})

    def add(self, gpus: int, resources: dict[str, int]) -> Any:
        return self.start(num_cpus=8, num_gpus=gpus, resources=resources)

    def start(self, **what: Any) -> Any:
        """A node; on a loaded machine Ray's own limit for its start, 30 s, is sometimes too short."""
        for _ in range(5):
            with suppress(Exception):  # Ray's start-up raises bare ones
                return self.ray.add_node(**what, object_store_memory=STORE)
        return self.ray.add_node(**what, object_store_memory=STORE)

    def lose_a100(self) -> None:
        self.ray.remove_node(self.a100, allow_graceful=False)

    def regain_a100(self) -> None:
        self.a100 = self.add(4, {"accelerator_type:A100": 1, "engine_simulated": 1})


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    started = {"RAY_USAGE_STATS_ENABLED": "0"}
    os.environ.update(started)
    found = Fleet()
    with connected(Cluster(kind=Kind.ray, address=found.ray.address)) as scratch:
        assert scratch is None
        yield found
    found.ray.shutdown()
    for name in started:
        os.environ.pop(name)


def planned(*overrides: str) -> list[SessionSpec]:
    """A session for each deployment, in the order of the grid."""
    sweep = compose([*TINY, *overrides])
    assert sweep is not None
    cells = expand(sweep.points, sweep.grid)
    return make_plan(cells, History(), Limits(), INVOCATION, expect(cells, History(), lambda workload: Size(1, 1, 0)))


class Seen:
    """What a scheduler did: a context manager around it."""

    def __init__(self, **cluster: Any) -> None:
        self.said: list[str] = []
        self.started: list[SessionSpec] = []
        self.nodes: dict[str, str] = {}  # session → the node's GPU type
        self.visible: dict[str, str] = {}  # session → what its engine sees
        self.events: list[Event] = []
        self.scheduler = Scheduler(lambda: 0, self.watch, None, Cluster(**cluster), self.said.append)

    def watch(self, spec: SessionSpec, progress: object) -> None:
        if spec not in self.started:
            self.started.append(spec)

    def run(self, plan: list[SessionSpec], on_event: Callable[[Event], None] = lambda event: None) -> Seen:
        with self.scheduler:
            for event in self.scheduler.run(plan):
                self.events.append(event)
                self.look()
                on_event(event)
        return self

    def look(self) -> None:
        for running in self.scheduler._running:
            self.nodes[running.spec.session_id] = running.seats[0].node.gpu_type
        for process in psutil.process_iter():
            try:
                env = process.environ()
            except psutil.Error:
                continue
            for running in self.scheduler._running:
                if running.spec.session_id in env.get(MARKER, ""):
                    self.visible[running.spec.session_id] = env.get("CUDA_VISIBLE_DEVICES", "all")

    @property
    def measured(self) -> set[str]:
        return {
            event.cell.deployment_id for event in self.events if isinstance(event, CellResult) and event.cell.status == OK
        }

    @property
    def failed(self) -> list[str]:
        return [event.error_kind for event in self.events if isinstance(event, SessionRow) and event.status == FAILED]


def test_ray_tells_types_and_pools(fleet: Fleet) -> None:
    nodes = {(node.gpus, node.gpu_type, node.engines) for node in nodes_of(Cluster()) if node.cpus}
    assert nodes == {
        (8, "H100", frozenset({"simulated"})),
        (4, "A100", frozenset({"simulated"})),
        (0, "", frozenset({"llama_cpp"})),
    }
    by_label = nodes_of(Cluster(marks={"vllm": "accelerator_type:H100", "simulated": "no=such"}))
    assert {node.engines for node in by_label if node.gpu_type == "H100"} == {frozenset({"vllm"})}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        pytest.param(["engine.tp=16"], "engine.tp=16 takes 16 GPUs, and the largest node has 8", id="more than a node has"),
        pytest.param(["engine.gpu_type=B200"], "the GPUs of the cluster are: 4 A100, 8 H100", id="a type that is not there"),
        pytest.param(["engine.gpu_type=a100", "engine.tp=8"], "largest node has 4 A100", id="more than that type has"),
    ],
)
def test_the_impossible_is_told_before_anything_starts(fleet: Fleet, overrides: list[str], message: str) -> None:
    seen = Seen()
    with pytest.raises(BadInput, match=message):
        seen.scheduler.refuse_impossible(planned(*overrides))


def test_a_pool_without_nodes_is_told_before_anything_starts(fleet: Fleet) -> None:
    (spec,) = planned()
    elsewhere = replace(spec.deployment, engine=replace(spec.deployment.engine, name="sglang"))
    with pytest.raises(BadInput, match="no node is marked for it; marked are llama_cpp on 1, simulated on 2"):
        Seen().scheduler.refuse_impossible([replace(spec, deployment=elsewhere)])


def test_each_type_runs_on_its_own_node_and_sees_its_gpus_only(fleet: Fleet) -> None:
    plan = planned("axes.engine.gpu_type=[H100,A100]", "engine.tp=2")
    seen = Seen().run(plan)
    assert seen.measured == {spec.deployment.id for spec in plan}
    assert {spec.deployment.engine.gpu_type: seen.nodes[spec.session_id] for spec in plan} == {
        "H100": "H100",
        "A100": "A100",
    }
    assert {visible.count(",") for visible in seen.visible.values()} == {1}
    assert len(seen.visible) == 2


def test_a_session_that_takes_a_whole_node_is_not_starved(fleet: Fleet) -> None:
    narrow = planned("axes.engine.batch=[1,2,3,4]", "engine.tp=4", "engine.gpu_type=H100")
    (wide,) = planned("engine.tp=8")
    seen = Seen().run([*narrow[:2], wide, *narrow[2:]])
    order = [spec.session_id for spec in seen.started]
    assert order.index(wide.session_id) <= 2, "nobody who came after it started before it"
    assert len(seen.measured) == 5
    assert seen.nodes[wide.session_id] == "H100"


def tenant_of_a100() -> Any:
    """Another job's actor, which holds all GPUs of that node."""
    node = next(node for node in nodes_of(Cluster()) if node.gpu_type == "A100")

    class Tenant:
        def ready(self) -> bool:
            return True

    tenant = ray.remote(Tenant).options(num_gpus=4, scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False))
    actor = tenant.remote()
    assert ray.get(actor.ready.remote())
    return actor


def test_a_session_on_gpus_that_another_job_holds_moves_to_where_there_is_room(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "PLACE_LIMIT_S", 1.0)  # shorter than a worker takes: it moves once
    actor = tenant_of_a100()
    try:
        seen = Seen().run(planned("engine.tp=1"))
    finally:
        ray.kill(actor)
    assert "another job of this cluster has the 1 GPUs" in seen.said[0]
    assert (len(seen.measured), seen.failed) == (1, [])
    assert list(seen.nodes.values()) == ["H100"], "it was meant for the fuller node first"


def test_who_else_holds_the_gpus_is_said_and_waited_for(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "PLACE_LIMIT_S", 1.0)
    actor = tenant_of_a100()
    seen = Seen()
    said = seen.said.append
    seen.scheduler._say = lambda text: (said(text), ray.kill(actor))
    seen.run(planned("engine.gpu_type=A100"))
    assert len(seen.measured) == 1
    assert "another job of this cluster has the 1 GPUs" in seen.said[0]


def test_an_environment_that_cannot_be_made_fails_its_session(fleet: Fleet) -> None:
    seen = Seen().run(planned("engine.runtime_env={conda: no_such_environment_anywhere}"))
    assert seen.failed == ["environment_failed"]
    assert seen.measured == set()
    (row,) = (event for event in seen.events if isinstance(event, SessionRow))
    assert row.error.startswith("`engine.runtime_env` must give an environment: ValueError: Could not find Conda executable")


def test_the_last_node_of_a_type_is_lost_and_comes_back(fleet: Fleet) -> None:
    plan = planned("axes.engine.batch=[1,2]", "engine.tp=4", "engine.gpu_type=A100", "engine.args.step_ms=30", "repeats=2")
    seen = Seen(node_wait_s=120.0)
    said = seen.said.append

    def say(text: str) -> None:
        said(text)
        if "Waiting at most" in text:
            fleet.regain_a100()

    def lose_once(event: Event) -> None:
        if isinstance(event, SessionRow) and not seen.failed and len(seen.started) == 1:
            fleet.lose_a100()

    seen.scheduler._say = say
    seen.run(plan, lose_once)
    assert seen.failed == ["worker_died"]
    assert (
        "for a node: a session must fit on one node: got engine.gpu_type=A100, and the GPUs of the cluster" in seen.said[0]
    )
    assert seen.said[1:] == ["There is a node again for what waited."]
    assert seen.measured == {seen.started[1].deployment.id}


def test_a_node_that_does_not_come_back_strands_its_sessions_and_no_others(fleet: Fleet) -> None:
    plan = planned("axes.engine.gpu_type=[A100,H100]")
    fleet.lose_a100()
    seen = Seen(node_wait_s=1.0).run(plan)
    by_type = {spec.deployment.engine.gpu_type: spec.deployment.id for spec in plan}
    assert seen.measured == {by_type["H100"]}
    assert set(seen.scheduler.stranded) == {by_type["A100"]}
    assert "no node came within 1 s (cluster.node_wait_s)" in seen.scheduler.stranded[by_type["A100"]]
