"""What a cluster cannot take is refused here, in one line, before anything is sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.submit import kuberay
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
        pytest.param(CLAIM, "run.dir=/results/team", id="in the claim"),
        pytest.param(CLAIM, "run.dir='/results'", id="quoted for Hydra"),
        pytest.param(BUCKET, "run.dir=gs://other/team", id="another bucket"),
    ],
)
def test_a_run_folder_that_stays_is_taken(where: tuple[str, ...], folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PODS, *where, "--", folder]) == 0
    assert f"{folder.partition('=')[2].strip(chr(39))}" in capsys.readouterr().out


PLANS = """
import sys
from pathlib import Path
(folder,) = [word.partition("=")[2] for word in sys.argv if word.startswith("run.dir=")]
assert not list(Path(folder).iterdir())
print("  1  s vllm tp=8, 8 GPUs")
"""


def test_what_was_measured_on_this_machine_does_not_change_the_pods(tmp_path: Path) -> None:
    (tmp_path / "sweep.py").write_text(PLANS)
    (tmp_path / "results").mkdir()
    (tmp_path / "results/a").touch()
    assert kuberay.gpus_of_the_grid(["run.dir=results"], root=tmp_path) == {"vllm": 8}
