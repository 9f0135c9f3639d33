"""What runs on a cluster and dies: engines, workers, nodes, the head, drivers. Killed for real, under several nodes of Ray.

After each: no cell lost, none measured twice, no process left, and what the command says is true. What storage and clocks do
is in test_failures_of_storage; the table in docs/cluster.md has every failure with its test.
"""

from __future__ import annotations

import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from failing import LIMIT_S, Run, as_another_machine, assert_true_end, end_drivers, on

from benchmarks.soak.pretended import Pretended, kill, pretended
from benchmarks.soak.run import LEVELS, Soak
from storage.views import open_records

pytestmark = [pytest.mark.ray, pytest.mark.timeout(2 * LIMIT_S), pytest.mark.usefixtures("no_driver_is_left")]


@pytest.fixture
def no_driver_is_left() -> Iterator[None]:
    """Whatever a test found wrong."""
    yield
    end_drivers()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Pretended]:
    """One for all: its start is what takes time."""
    with pretended(2, cpus=2, gpus=4) as found:
        yield found


def test_an_engine_a_worker_and_a_node_that_die_in_mid_cell_cost_a_try_each_and_no_cell(
    cluster: Pretended, tmp_path: Path
) -> None:
    deployments = "axes.engine.args.kv_capacity_tokens=[70000,71000,72000]"
    run = on(cluster, tmp_path, "engine.tp=4", deployments, "repeats=3", "limits.max_attempts=4")  # one session a node
    driver = run.start()
    for number, what in enumerate(("engine", "worker", "node")):
        run.wait(lambda: len(run.measured()) > number and run.answering())  # noqa: B023
        engine = run.answering()[-1]
        if what == "node":
            cluster.lose_node(cluster.node_of(engine) or 0)
            cluster.add_node()
        else:
            assert kill(engine if what == "engine" else engine.parent())
        run.wait(lambda: len(run.lost()) > number or driver.poll() is not None)  # noqa: B023
    code, said = run.finish(driver)
    assert_true_end(code, said)
    run.assert_each_once(9)
    run.assert_nothing_left()
    assert Counter(run.lost()) == {"engine_died": 1, "worker_died": 2}


@pytest.mark.model
def test_the_embedded_engine_and_its_worker_die_in_mid_cell_and_no_cell_is_lost(cluster: Pretended, tmp_path: Path) -> None:
    where = ["cluster=ray", f"cluster.address={cluster.address}", "engine=transformers", "engine.cpus=1"]
    run = Run(tmp_path, [*where, "repeats=6", "limits.max_attempts=3"], cluster.environment)
    driver = run.start()
    for number, what in enumerate(("engine", "worker")):
        run.wait(lambda: len(run.measured()) > number and run.answering())  # noqa: B023
        engine = run.answering()[0]
        assert kill(engine if what == "engine" else engine.parent())
        run.wait(lambda: len(run.lost()) > number or driver.poll() is not None)  # noqa: B023
    code, said = run.finish(driver)
    assert_true_end(code, said)
    run.assert_each_once(6)
    run.assert_nothing_left()
    assert run.lost() == ["engine_died", "worker_died"]


def test_an_engine_that_is_killed_while_it_stops_costs_nothing(cluster: Pretended, tmp_path: Path) -> None:
    """One that hears no TERM is there for as long as that is waited for."""
    run = on(cluster, tmp_path, "repeats=2", "engine.args.ignore_sigterm=true")
    driver = run.start()
    run.wait(lambda: len(run.measured()) == 2)
    time.sleep(1)
    (engine,) = run.engines()
    assert kill(engine)
    code, said = run.finish(driver)
    assert_true_end(code, said)
    run.assert_each_once(2)
    run.assert_nothing_left()
    with open_records([tmp_path / "run"]) as runs:
        ended = runs.execute("SELECT status, error_kind, ended_s IS NOT NULL FROM recorded_sessions").fetchall()
    assert (run.lost(), ended) == ([], [("ok", "", True)])


def test_memory_that_is_out_at_the_start_is_told_in_the_engines_words_and_the_others_run(
    cluster: Pretended, tmp_path: Path
) -> None:
    run = on(cluster, tmp_path, "axes.engine.args.out_of_memory_message=['','CUDA out of memory. Tried to allocate']")
    code, said = run.finish(run.start())
    assert_true_end(code, said, n_unmeasured=1)
    run.assert_each_once(1)
    run.assert_nothing_left()
    assert "did not start in 2 tries (limits.max_starts)" in said
    assert "CUDA out of memory. Tried to allocate" in said


def test_a_poison_cell_is_given_up_and_the_others_of_its_deployment_are_measured(cluster: Pretended, tmp_path: Path) -> None:
    run = on(cluster, tmp_path, "axes.workload.output_limit=[8,13,16]", "engine.args.crash_at_output_limit=13")
    code, said = run.finish(run.start())
    assert_true_end(code, said, n_unmeasured=1)
    run.assert_each_once(2)
    run.assert_nothing_left()
    assert run.lost() == ["engine_died"] * 2
    assert "engine_died" in (tmp_path / "run" / "report.md").read_text()


def test_an_engine_that_hangs_in_mid_cell_is_ended_and_the_cell_is_tried_again(cluster: Pretended, tmp_path: Path) -> None:
    """Each life of this engine answers two requests, which are one cell, and then stops as a whole."""
    hang = ["engine.args.hang_after_requests=2", "load.warmup=0", "load.request_timeout_s=5"]
    run = on(cluster, tmp_path, *hang, "repeats=2", "workload.output_limit=8")
    code, said = run.finish(run.start())
    assert_true_end(code, said)
    run.assert_each_once(2)
    run.assert_nothing_left()
    assert run.lost() == ["engine_hung"]


@pytest.mark.parametrize(
    ("n_presses", "told"),
    [pytest.param(1, "after the running cell", id="once"), pytest.param(2, "Stopping at once", id="twice")],
)
def test_ctrl_c_leaves_a_cluster_empty_and_what_was_measured(
    cluster: Pretended, tmp_path: Path, n_presses: int, told: str
) -> None:
    run = on(cluster, tmp_path, "repeats=20", "workload.output_limit=64", "load.warmup=0")
    driver = run.start()
    run.wait(lambda: run.measured() and run.engines())
    before = run.measured()
    for _ in range(n_presses):
        driver.send_signal(signal.SIGINT)
        time.sleep(0.5)
    code, said = run.finish(driver)
    assert code == 130, said
    assert told in said
    assert "not measured yet" in said
    assert "Traceback" not in said
    assert run.lost() == []
    assert set(run.measured().values()) == {1}
    assert before.items() <= run.measured().items()
    run.assert_nothing_left()


def test_a_killed_driver_leaves_the_cluster_empty_and_another_machine_goes_on(cluster: Pretended, tmp_path: Path) -> None:
    run = on(cluster, tmp_path, "repeats=3", "workload.output_limit=64")
    driver = run.start()
    run.wait(lambda: run.measured() and run.engines())
    run.engines()[-1].suspend()  # so that the first driver lives as long as the second asks; and a hung engine must go, too
    code, said = run.finish(run.start())
    assert (code, said.count("\n")) == (2, 1)
    assert "A run has one driver at a time" in said
    kill(psutil.Process(driver.pid))
    run.finish(driver)
    run.assert_nothing_left()
    before = run.measured()
    run.folder = tmp_path / "mounted_elsewhere"
    shutil.copytree(tmp_path / "run", run.folder / "run")
    (run.folder / "run" / ".lock").write_text("process 4711 on another-machine\n")
    code, said = run.finish(run.start(*as_another_machine()))
    assert_true_end(code, said)
    run.assert_each_once(3)
    assert before.items() <= run.measured().items()
    run.assert_nothing_left()


def test_a_short_soak_loses_nothing_measures_nothing_twice_and_leaves_nothing(cluster: Pretended, tmp_path: Path) -> None:
    """`python benchmarks/soak/run.py` is the long one: 2,000 cells over 16 nodes."""
    shape = {"cells": 36, "cells_a_session": 6, "cell_s": 1.5, "kill_every_s": 1.0, "seed": 1}
    soak = Soak(cluster, tmp_path, **shape, most_kills=len(LEVELS))
    told = soak.told(soak.run(), seats=4)
    assert [told[name] for name in ("cells", "measured", "lost", "duplicated", "orphans")] == [36, 36, 0, 0, 0], told
    assert told["kills"] == dict.fromkeys(LEVELS, 1), told
    assert told["exit_code"] in (0, 1), told


def test_the_loss_of_the_head_ends_the_command_and_the_run_goes_on_under_another(cluster: Pretended, tmp_path: Path) -> None:
    """The last on this cluster: it ends it."""
    run = on(cluster, tmp_path, "repeats=3", "workload.output_limit=64")
    driver = run.start()
    run.wait(lambda: run.measured() and run.engines())
    cluster.kill_head()
    code, said = run.finish(driver)
    assert code not in (0, 2), said
    assert "Traceback" not in said
    run.assert_nothing_left()
    before = run.measured()
    alone = Run(tmp_path, ["cluster.num_gpus=2", *run.overrides[2:]])
    code, said = alone.finish(alone.start())
    assert_true_end(code, said)
    alone.assert_each_once(3)
    assert before.items() <= alone.measured().items()
    alone.assert_nothing_left()
