"""What a cluster cannot take is refused here, in one line, before anything is sent."""

from __future__ import annotations

import os
import shlex
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest
import yaml

from jobs.errors import BadInput
from jobs.submit import kuberay, programs, ray_jobs, slurm
from jobs.submit.__main__ import main

PODS = ("kuberay", "--head-image", "h:1", "--gpus", "1", "--worker", "vllm=v:1")
CLAIM = ("--results-claim", "disk")
BUCKET = ("--results", "s3://bucket/sweeps")


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(words) == 2
    told = capsys.readouterr()
    assert told.out == ""
    (line,) = told.err.splitlines()
    return line


@pytest.mark.parametrize("results", ["/not/a/bucket", "results", "s3://", "s3:///a", "http://bucket/a"])
def test_results_that_would_go_with_the_heads_pod_are_refused(results: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = refusal(capsys, *PODS, "--results", results)
    assert line.startswith(f"`--results` must be a bucket, as s3://BUCKET/FOLDER or gs://BUCKET/FOLDER: got {results!r}.")


@pytest.mark.parametrize(
    ("where", "folder", "words"),
    [
        pytest.param(CLAIM, "run.dir=/elsewhere", "must lie in /results", id="beside the claim"),
        pytest.param(CLAIM, "run.dir=results", "must lie in /results", id="relative"),
        pytest.param(CLAIM, "run.dir=/results/../a", "must lie in /results", id="out of the claim"),
        pytest.param(CLAIM, "++run.dir=/resultsandmore", "must lie in /results", id="a name that begins alike"),
        pytest.param(CLAIM, "run.dir=s3://b/f", "must lie in /results", id="a bucket beside the claim"),
        pytest.param(BUCKET, "run.dir=/elsewhere", "must be a bucket", id="a folder beside the bucket"),
    ],
)
def test_a_run_folder_that_the_pods_would_lose_is_refused(
    where: tuple[str, ...], folder: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refusal(capsys, *PODS, *where, "--", folder)
    assert words in line
    assert f"got {folder.partition('=')[2]}" in line


@pytest.mark.parametrize(
    ("where", "folder"),
    [
        pytest.param({"results_claim": "disk"}, "run.dir=/results/team", id="in the claim"),
        pytest.param({"results_claim": "disk"}, "run.dir='/results'", id="quoted for Hydra"),
        pytest.param({"results": "s3://bucket/sweeps"}, "run.dir=gs://other/team", id="another bucket"),
    ],
)
def test_a_run_folder_that_stays_is_taken(where: dict[str, str], folder: str) -> None:
    pods = kuberay.Pods("a", "b", "h:1", {"vllm": "v:1"}, **where)
    kuberay.check_pods([folder], pods)
    assert folder in shlex.split(kuberay.rayjob([folder], pods)["spec"]["entrypoint"])


PLANS = """
import sys
from pathlib import Path
(folder,) = [word.partition("=")[2] for word in sys.argv if word.startswith("run.dir=")]
assert not list(Path(folder).iterdir())
print("  1  s vllm tp=8: 1 cell, about 5 min, 8 GPUs")
print(" 999  s sglang tp=8: 1 cell, about 5 min, on each of 2 nodes, 4 GPUs")
print("1000  s sglang tp=16: 1 cell, about 5 min, on each of 2 nodes, 8 GPUs")
print("1001  s transformers none: 1 cell, about 5 min")
"""


def test_what_was_measured_on_this_machine_does_not_change_the_pods(tmp_path: Path) -> None:
    (tmp_path / "sweep.py").write_text(PLANS)
    (tmp_path / "results").mkdir()
    (tmp_path / "results/a").touch()
    assert kuberay.largest_of_the_grid(["run.dir=results"], root=tmp_path) == {
        "vllm": (1, 8),
        "sglang": (2, 8),
        "transformers": (1, 0),
    }


def test_a_session_over_several_nodes_needs_as_many_pods(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["kuberay", "--head-image", "h", "--worker", "simulated=s", "--results-claim", "c"]
    grid = ["--", "engine=simulated", "model=bytes", "engine.device=cuda", "engine.tp=16", "engine.nodes=2"]
    assert main([*words, "--gpus", "8", *grid]) == 2
    assert "got 1, and one of simulated is on 2 nodes (engine.nodes). Give --replicas 2 or more." in capsys.readouterr().err
    assert main([*words, "--replicas", "2", *grid]) == 0
    (group,) = yaml.safe_load(capsys.readouterr().out)["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert group["replicas"] == 2
    assert group["template"]["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 8}


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *((f"--{name}", value) for name in ("replicas", "cpus") for value in ("0", "-1", "1.5", "many", "9" * 30)),
        ("--gpus", "-1"),
        *(("--memory", value) for value in ("64 Gi", "64GiB", "much", "0", "-1Gi")),
        *((name, "No_Name") for name in ("--namespace", "--secret", "--results-claim", "--service-account")),
        ("--namespace", "a.b"),
        ("--secret", "-a"),
        ("--results-claim", "a" * 254),
    ],
)
def test_a_value_that_kubernetes_would_refuse_is_refused_with_its_option(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refusal(capsys, *PODS, *CLAIM, f"{option}={value}")
    assert line.startswith(f"`{option}` must be ")
    assert f"got {value!r}" in line


def test_an_engine_has_one_group_of_pods(capsys: pytest.CaptureFixture[str]) -> None:
    line = refusal(capsys, *PODS, *CLAIM, "--worker", "vllm=other:1")
    assert line == "`--worker` must name each engine once: got vllm twice. --replicas gives it more pods."


@pytest.mark.parametrize("value", ["soon", "4h", "1:2:3:4", "0", "-5", "1-", "1:99", "1 2"])
def test_a_time_that_slurm_would_refuse_is_refused(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert refusal(capsys, "slurm", "--print", f"--time={value}").startswith(
        "`--time` must be minutes, HH:MM:SS or D-HH:MM:SS"
    )


@pytest.mark.parametrize("value", ["90", "4:00:00", "90:30", "1-12", "2-00:30:00"])
def test_a_time_of_slurm_is_taken_as_it_is(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["slurm", "--print", f"--time={value}"]) == 0
    assert f"#SBATCH --time={value}\n" in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--nodes=0", "--nodes=two", "--gpus=-1"])
def test_a_number_of_nodes_that_there_cannot_be_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "must be a whole number from" in refusal(capsys, "slurm", "--print", option)


def test_the_results_of_a_slurm_job_may_lie_at_home(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert main(["slurm", "--print", "--results", "~/x"]) == 0
    assert " run.dir=/home/me/x" in capsys.readouterr().out


@pytest.mark.parametrize(("results", "expected"), [("~/x", "${oc.env:HOME}/x"), ("/a/~/x", "/a/~/x")])
def test_the_home_of_a_ray_jobs_results_is_the_heads(results: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    client = SimpleNamespace(submit_job=lambda entrypoint, runtime_env: sent.append(entrypoint))
    monkeypatch.setattr(ray_jobs, "_client", lambda address: nullcontext(client))
    monkeypatch.setattr(ray_jobs, "is_open", lambda address: False)
    ray_jobs.submit_job("http://h:1", [], results=results)
    assert f"run.dir={expected}" in shlex.split(sent[0])


SUBMIT = {"sbatch": slurm.submit_script, "kubectl": kuberay.apply_manifest}


def put_program(path: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("program", "said", "expected"),
    [
        pytest.param("sbatch", "no such partition\nBatch job submission failed", "no such partition", id="sbatch"),
        pytest.param("kubectl", "no matches for kind\nensure CRDs", "no matches for kind", id="kubectl"),
        pytest.param("kubectl", "", "it said nothing", id="silence"),
    ],
)
def test_a_refusal_of_the_cluster_is_its_first_line(
    program: str, said: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_program(tmp_path / program, f"cat >/dev/null\nprintf '{said}' >&2\nexit 1", monkeypatch)
    with pytest.raises(BadInput, match=f"^{program} refused: {expected}$"):
        SUBMIT[program]("text")


@pytest.mark.parametrize("program", ["sbatch", "kubectl"])
def test_a_cluster_that_does_not_answer_is_one_line(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_program(tmp_path / program, "exec sleep 60", monkeypatch)
    monkeypatch.setattr(programs, "ANSWER_LIMIT_S", 0.2)
    with pytest.raises(BadInput, match=rf"^{program} must answer within 0.2 s: it did not\. It may have taken the job"):
        SUBMIT[program]("text")


def test_ctrl_c_ends_following_and_says_that_the_job_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def press(job: str) -> NoReturn:
        raise KeyboardInterrupt

    client = SimpleNamespace(tail_job_logs=press)
    monkeypatch.setattr(ray_jobs, "_client", lambda address: nullcontext(client))
    assert main(["logs", "a-job", "--follow", "--address", "http://h:1"]) == 130
    assert "No longer following; the job goes on." in capsys.readouterr().err
