"""What this machine could never hold is refused before anything is started or written; what is not known is left to Ray."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from grids import cell
from rich.console import Console

from jobs.errors import BadInput
from jobs.spec import Deployment, Draft, Engine, Model
from orchestrator.config import compose
from orchestrator.here import refuse_absent_models, refuse_impossible_here
from orchestrator.reconcile import reconcile
from orchestrator.settings import Cluster, Kind

AUTO, CPU, TWO = cell(device="auto").deployment, cell().deployment, cell(device="cuda", tp=2).deployment
linux = pytest.mark.skipif(sys.platform != "linux", reason="device files of GPUs are known on Linux only")


@pytest.mark.parametrize(
    ("cluster", "deployment", "message"),
    [
        pytest.param(Cluster(), AUTO, "takes 1 GPUs, and the largest node has 0.*engine.device=cpu", id="auto", marks=linux),
        pytest.param(Cluster(num_gpus=1), TWO, "tp=2 takes 2 GPUs, and the largest node has 1", id="more than it may take"),
        pytest.param(
            Cluster(num_cpus=1, num_gpus=0), cell(cpus=2).deployment, "engine.cpus=2, and the largest node has 1", id="CPUs"
        ),
    ],
)
def test_the_impossible_is_refused(cluster: Cluster, deployment: Deployment, message: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=message):
        refuse_impossible_here(cluster, [CPU, deployment], tmp_path)


@pytest.mark.parametrize(
    ("cluster", "driver", "deployment"),
    [
        pytest.param(Cluster(), "", CPU, id="the CPU"),
        pytest.param(Cluster(), "nvidia0", TWO, id="a driver is there: Ray counts"),
        pytest.param(Cluster(num_gpus=2), "", TWO, id="told to have them"),
        pytest.param(Cluster(kind=Kind.ray), "", TWO, id="another cluster"),
    ],
)
def test_the_rest_is_left_to_ray(cluster: Cluster, driver: str, deployment: Deployment, tmp_path: Path) -> None:
    if driver:
        (tmp_path / driver).touch()
    refuse_impossible_here(cluster, [deployment], tmp_path)


def test_a_refused_sweep_writes_nothing(tmp_path: Path) -> None:
    sweep = compose(["engine=simulated", "engine.device=auto", "cluster.num_gpus=0", f"run.dir={tmp_path / 'results'}"])
    assert sweep is not None
    with pytest.raises(BadInput, match=r"engine\.device=cpu"):
        reconcile(sweep, ["sweep.py"], Console())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("path", "draft", "said"),
    [
        pytest.param("no/such/folder/here", "", r"`model.path` must be a folder.*no/such/folder/here", id="a target"),
        pytest.param("jobs/workloads/data/bytes", "no/such/folder/here", r"`draft.model` must be a folder", id="a draft"),
        pytest.param("package:no_such_package/x.gguf", "", r"`model.path` must name a file of an installed", id="a package"),
    ],
)
def test_a_model_that_is_not_here_is_refused_before_anything_starts(path: str, draft: str, said: str) -> None:
    used = Draft(method="draft_model", k=2, model=draft) if draft else Draft()
    deployment = Deployment(Model(path=path), Engine(), used)

    with pytest.raises(BadInput, match=said):
        refuse_absent_models(Cluster(), [deployment])
    refuse_absent_models(Cluster(kind=Kind.ray), [deployment])  # its nodes may have it


def test_a_model_of_the_hub_is_not_looked_for() -> None:
    refuse_absent_models(Cluster(), [Deployment(Model(path="some-org/some-model"), Engine(), Draft())])
