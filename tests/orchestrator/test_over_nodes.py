"""An engine over several nodes, on a real Ray of three with pretended GPUs: measured, lost in parts, and nothing left."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from failing import LIMIT_S, Run, assert_true_end, end_drivers

from benchmarks.soak.pretended import Pretended, engines_of, kill, pretended
from storage.views import open_records
from tests.jobs.stand_ins.environment import python_with_stand_ins

pytestmark = [pytest.mark.ray, pytest.mark.timeout(2 * LIMIT_S)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Pretended]:
    with pretended(3, cpus=2, gpus=2, is_apart=True) as found:
        yield found


@pytest.fixture(autouse=True)
def no_driver_is_left() -> Iterator[None]:
    yield
    end_drivers()


def over_two_nodes(cluster: Pretended, folder: Path, *overrides: str) -> Run:
    """Four GPUs, two on each of two nodes."""
    where = ["cluster=ray", f"cluster.address={cluster.address}", "engine.device=cuda", "engine.cpus=1"]
    return Run(folder, [*where, "engine.tp=4", "engine.nodes=2", *overrides], cluster.environment)


def ranks(run: Run) -> dict[int, psutil.Process]:
    """The living processes of the engine, by rank."""
    run.note()
    found = {}
    for process in engines_of(run.invocations):
        words = process.cmdline()
        if "--rank" in words:
            found[int(words[words.index("--rank") + 1])] = process
    return found


def test_it_is_measured_and_each_rank_sees_the_gpus_of_its_node(cluster: Pretended, tmp_path: Path) -> None:
    run = over_two_nodes(cluster, tmp_path, "repeats=2")
    driver = run.start()
    run.wait(lambda: (len(ranks(run)) == 2 and run.measured()) or driver.poll() is not None)
    seen = {rank: process.environ()["CUDA_VISIBLE_DEVICES"] for rank, process in ranks(run).items()}
    nodes = {cluster.node_of(process) for process in ranks(run).values()}
    code, said = run.finish(driver)
    assert_true_end(code, said)
    run.assert_each_once(2)
    run.assert_nothing_left()
    assert {rank: visible.count(",") for rank, visible in seen.items()} == {0: 1, 1: 1}
    assert len(nodes) == 2
    (log,) = (tmp_path / "run" / "logs").glob("*.rank1.log")
    assert "rank 1 is with rank 0" in log.read_text()
    assert "rank 1 has come" in log.with_name(log.name.replace(".rank1", "")).read_text()


def test_a_rank_its_worker_and_its_node_cost_a_try_each_and_no_cell(cluster: Pretended, tmp_path: Path) -> None:
    run = over_two_nodes(cluster, tmp_path, "repeats=4", "limits.max_attempts=5")
    driver = run.start()
    for number, what in enumerate(("rank", "worker", "node")):
        run.wait(lambda: len(run.measured()) > number and len(ranks(run)) == 2)  # noqa: B023
        time.sleep(0.3)
        process = ranks(run)[1]
        if what == "node":
            cluster.lose_node(cluster.node_of(process) or 0)
        else:
            assert kill(process if what == "rank" else process.parent())
        run.wait(lambda: len(run.lost()) > number or driver.poll() is not None)  # noqa: B023
    code, said = run.finish(driver)
    assert_true_end(code, said)
    run.assert_each_once(4)
    run.assert_nothing_left()
    assert run.lost() == ["engine_died"] * 3
    cluster.add_node()
    with open_records([run.folder / "run"]) as runs:
        why = "\n".join(row[0] for row in runs.execute("SELECT error FROM recorded_cells WHERE error <> ''").fetchall())
    assert re.search(r"rank 1 on \S+ ended with SIGKILL", why)
    assert re.search(r"rank 1 was lost with its worker: ", why)


@pytest.mark.timeout(4 * LIMIT_S)
def test_tensorrt_llm_has_a_ray_of_its_own_that_goes_with_a_rank(cluster: Pretended, tmp_path: Path) -> None:
    """What stands in for it joins whatever Ray RAY_ADDRESS names, and takes a GPU of that for each worker."""
    python = python_with_stand_ins(tmp_path / "engine")
    how = ["engine=tensorrt_llm", f"engine.python={python}", "engine.batch=2", "model=bytes", "workload.output_limit=3000"]
    run = over_two_nodes(cluster, tmp_path, *how, "workload.ignore_eos=true", "repeats=2")
    driver = run.start()
    run.wait(lambda: run.measured() or driver.poll() is not None, 2 * LIMIT_S)  # six raylets on one machine
    (rank_1,) = [process for process in run.engines() if "--block" in process.cmdline()]
    assert kill(rank_1)
    code, said = run.finish(driver)
    assert_true_end(code, said)
    run.assert_each_once(2)
    run.assert_nothing_left()
    assert run.lost() == ["engine_died"]
    logs = [log.read_text() for log in (tmp_path / "run" / "logs").glob("*.log") if ".rank" not in log.name]
    assert [log.count("'visible': ['0', '1']") for log in logs] == [4, 4]


def test_the_plan_says_on_how_many_nodes_and_what_they_lack(cluster: Pretended, tmp_path: Path) -> None:
    for overrides, said in (
        (["engine.tp=4"], "on each of 2 nodes, 2 GPUs"),
        (["engine.tp=6", "engine.nodes=1"], "takes 6 GPUs, and the largest node has 2 .*Set engine.nodes=3"),
        (["engine.tp=8"], "takes 4 GPUs of each node, and the largest node has 2 .*not that many over several nodes either"),
    ):
        run = over_two_nodes(cluster, tmp_path, *overrides, "mode=plan")
        assert re.search(said, run.finish(run.start())[1]), overrides
