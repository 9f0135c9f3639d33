"""A sweep as a cluster job: what is sent, and, once, a real Ray head that asks for a token."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
import yaml

from jobs.errors import BadInput
from jobs.submit import kuberay, ray_jobs, slurm
from jobs.submit.__main__ import main, split_overrides
from jobs.submit.sweep_command import sweep_command

ROOT = Path(__file__).resolve().parents[2]
RAY = Path(sys.executable).with_name("ray")


@pytest.mark.parametrize(
    ("overrides", "results", "expected"),
    [
        pytest.param(["+grid=a"], "", ["cluster=ray", "+grid=a"], id="the cluster is the one that the job runs in"),
        pytest.param(["cluster=local"], "", ["cluster=local"], id="the user's cluster stands"),
        pytest.param(["+grid=a"], "/r", ["cluster=ray", "run.dir=/r", "+grid=a"], id="results go where they are asked for"),
        pytest.param(["run.dir=/mine"], "/r", ["cluster=ray", "run.dir=/mine"], id="the user's folder stands"),
        pytest.param(
            ["cluster.address=x"],
            "",
            ["cluster=ray", "cluster.address=x"],
            id="a field of the cluster is not a choice of it",
        ),
        pytest.param(["axes.draft=[none,ngram]"], "", ["cluster=ray", "axes.draft=[none,ngram]"], id="lists arrive whole"),
    ],
)
def test_the_command_keeps_what_the_user_said(overrides: list[str], results: str, expected: list[str]) -> None:
    assert sweep_command(overrides, results=results) == ["python", "sweep.py", *expected]


@pytest.mark.parametrize("results", ["/a b", "/a'b", "/a,b", "/a;rm", "/a\nb"])
def test_a_results_folder_that_hydra_or_a_shell_would_read_differently_is_refused(results: str) -> None:
    with pytest.raises(BadInput, match="`--results` must be a path of letters"):
        sweep_command([], results=results)


@pytest.mark.parametrize(
    ("words", "own", "overrides"),
    [
        pytest.param(["ray", "--", "+grid=a"], ["ray"], ["+grid=a"], id="split at the dashes"),
        pytest.param(["list"], ["list"], [], id="no dashes"),
        pytest.param(["ray", "--", "a", "--", "b"], ["ray"], ["a", "--", "b"], id="only the first dashes are ours"),
    ],
)
def test_what_follows_the_dashes_is_the_sweeps(words: list[str], own: list[str], overrides: list[str]) -> None:
    assert split_overrides(words) == (own, overrides)


@pytest.mark.parametrize(
    ("status", "driver_exit_code", "expected"),
    [
        pytest.param("SUCCEEDED", 0, 0, id="all measured"),
        pytest.param("FAILED", 1, 1, id="some cells failed"),
        pytest.param("FAILED", 2, 2, id="bad input"),
        pytest.param("FAILED", None, 1, id="the job never started"),
        pytest.param("STOPPED", None, 130, id="stopped"),
    ],
)
def test_the_exit_code_is_that_of_the_jobs_own_command(status: str, driver_exit_code: int | None, expected: int) -> None:
    assert ray_jobs.exit_code(SimpleNamespace(status=status, driver_exit_code=driver_exit_code)) == expected


def test_a_slurm_script_is_valid_bash_and_quotes_what_the_user_said(tmp_path: Path) -> None:
    root = tmp_path / "a clone"
    overrides = ["+grid=a", "axes.draft=[none,ngram]", "model.path=$(touch owned)"]
    script = slurm.slurm_script(overrides, slurm.Allocation(nodes=2, gpus=8, time="4:00:00"), root=root)

    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    assert shlex.join(overrides) in script
    assert f"cd {shlex.quote(str(root))}\n" in script
    assert "RAY_AUTH_MODE=token" in script
    assert {"#SBATCH --nodes=2", "#SBATCH --gpus-per-node=8", "#SBATCH --time=4:00:00", "#SBATCH --requeue"} <= set(
        script.splitlines()
    )


def hear_interrupts() -> None:
    """As in a batch job: what a shell starts in the background ignores them, and bash cannot trap what it came to ignore."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def run_with_stand_ins(tmp_path: Path, stand_ins: Mapping[str, str], script: str, **added: str) -> int:
    """With stand-ins for the commands of Slurm and for `python`; the exit code."""
    for name, body in stand_ins.items():
        (tmp_path / ".venv/bin").mkdir(parents=True, exist_ok=True)
        (tmp_path / ".venv/bin" / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / ".venv/bin" / name).chmod(0o755)
    environment = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "41234", "SLURM_JOB_NODELIST": "node[7-8]", **added}
    environment["SLURM_JOB_NUM_NODES"] = "2"
    with subprocess.Popen(["bash"], stdin=subprocess.PIPE, text=True, env=environment, preexec_fn=hear_interrupts) as job:
        job.communicate(script, timeout=60)
    return job.returncode


TOLD = f"""printf "%s\\n" "$*" >> "$LOG"; case "$*" in -c*) exec {sys.executable} "$@";; sweep.py*) exit 3;; esac
until grep -q token\\ of "$LOG"; do sleep 0.05; done  # as the nodes are waited for"""


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        pytest.param(
            "0", "ray start --head --port=21234 --temp-dir=/tmp/specsweep-41234 --include-dashboard=false", id="head"
        ),
        pytest.param("1", "ray start --address=127.0.0.1:21234", id="another"),
    ],
)
def test_a_slurm_script_starts_ray_on_all_nodes_and_ends_with_the_sweeps_exit_code(
    tmp_path: Path, node: str, expected: str
) -> None:
    log = tmp_path / "calls"
    ray = 'printf "%s\\n" "ray $*" >> "$LOG"; printf "token of %s\\n" "${#RAY_AUTH_TOKEN}" >> "$LOG"; exec sleep 5'
    step = 'while [[ $1 == --* ]]; do shift; done; [[ $1 == rm ]] && exit; exec "$@"'
    stand_ins = {"scontrol": "echo 127.0.0.1; echo node8", "srun": step, "ray": ray, "python": TOLD}
    allocation = slurm.Allocation(nodes=2, gpus=4)
    script = slurm.slurm_script(["+grid=a", "x=[1,2]"], allocation, results="/shared/results", root=tmp_path)
    with socket.create_server(("127.0.0.1", 21234)):  # the head, as the other node sees it
        assert run_with_stand_ins(tmp_path, stand_ins, script, LOG=str(log), SLURM_NODEID=node) == 3

    calls = log.read_text()
    assert f"{expected} --block --disable-usage-stats --num-gpus=4\ntoken of 64\n" in calls
    assert "-m jobs.submit.all_nodes 2 300\n" in calls
    assert "sweep.py cluster=ray run.dir=/shared/results +grid=a x=[1,2]\n" in calls


LISTENS = """
import os, signal, sys, time
from pathlib import Path
def end(number, frame):
    time.sleep(0.5)
    Path(__file__).with_name("ended").touch()
    sys.exit(130)
number = signal.Signals["SIG" + sys.argv[1]]
signal.signal(number, end)
os.kill(os.getppid(), number)  # Slurm, to the script
time.sleep(20)
"""


@pytest.mark.parametrize("name", ["INT", "TERM"])
def test_what_slurm_says_to_the_script_is_told_to_the_sweep_and_its_end_is_waited_for(tmp_path: Path, name: str) -> None:
    script = slurm.slurm_script([], slurm.Allocation(), root=tmp_path)
    (tmp_path / "sweep").write_text(LISTENS)
    sweep = f'case "$*" in -c*) echo token;; *all_nodes*) ;; *) exec {sys.executable} {tmp_path}/sweep {name};; esac'
    stand_ins = {"scontrol": "echo 127.0.0.1", "srun": "exec sleep 5", "python": sweep}
    assert run_with_stand_ins(tmp_path, stand_ins, script) == 130
    assert (tmp_path / "ended").exists()


def test_a_directive_of_two_words_is_refused() -> None:
    with pytest.raises(BadInput, match="`--partition` must be one word"):
        slurm.slurm_script([], slurm.Allocation(partition="a\n#SBATCH --uid=0"))


def test_without_slurm_the_user_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(BadInput, match="Use --print here"):
        slurm.submit_script("")


SCHEMA = Path(__file__).parent / "data" / "rayjob.schema.json"
WORKERS = (
    "--head-image head:1 --worker vllm=vllm:1 --worker sglang=sg:1 --worker tensorrt_llm=trt:1 --worker transformers=hf:1"
)


def told_job(capsys: pytest.CaptureFixture[str], words: str, *overrides: str) -> dict[str, Any]:
    """What the command prints, held against KubeRay's fields."""
    assert main(["kuberay", *words.split(), "--", *overrides]) == 0
    job = yaml.safe_load(capsys.readouterr().out)
    jsonschema.validate(job, json.loads(SCHEMA.read_text()))
    return job


def test_a_rayjob_asks_for_a_token_and_has_a_marked_group_for_each_engine(capsys: pytest.CaptureFixture[str]) -> None:
    words = (
        f"kuberay {WORKERS} --gpus 8 --replicas 3 --cpus 96 --memory 900Gi --results-claim disk --secret hub --secret keys"
    )
    job = told_job(capsys, words.removeprefix("kuberay "), "+grid=worth_it", "axes.draft=[none,ngram]")
    cluster = job["spec"]["rayClusterSpec"]
    assert shlex.split(job["spec"]["entrypoint"])[2:] == [
        "cluster=ray",
        "run.dir=/results",
        "+grid=worth_it",
        "axes.draft=[none,ngram]",
    ]
    assert cluster["authOptions"] == {"mode": "token"}
    groups = cluster["workerGroupSpecs"]
    assert [(group["groupName"], group["replicas"]) for group in groups] == [
        ("vllm", 3),
        ("sglang", 3),
        ("tensorrt-llm", 3),
        ("transformers", 3),
    ]
    marks = [json.loads(shlex.split(group["rayStartParams"]["resources"])[0]) for group in groups]
    assert marks == [{f"engine_{name}": 1} for name in ("vllm", "sglang", "tensorrt_llm", "transformers")]
    for group in groups:
        (container,) = group["template"]["spec"]["containers"]
        assert container["resources"] == {"limits": {"cpu": 96, "memory": "900Gi", "nvidia.com/gpu": 8}}
        assert container["envFrom"] == [{"secretRef": {"name": "hub"}}, {"secretRef": {"name": "keys"}}]
        assert group["template"]["spec"]["automountServiceAccountToken"] is False


def test_the_results_of_a_rayjob_may_go_to_a_bucket(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--head-image h:1 --worker transformers=t:1 --gpus 1 --results s3://bucket/sweeps --service-account writer"
    job = told_job(capsys, words, "+grid=worth_it")
    assert "run.dir=s3://bucket/sweeps" in shlex.split(job["spec"]["entrypoint"])
    head = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    assert head["serviceAccountName"] == "writer"
    assert "volumes" not in head


def test_the_gpus_of_a_group_are_those_of_the_largest_session_of_its_engine(capsys: pytest.CaptureFixture[str]) -> None:
    words = f"{WORKERS} --results-claim disk"
    grid = ["axes.engine=[simulated,vllm]", "axes.engine.tp=[2,8]", "engine.device=cuda"]
    assert main(["kuberay", *words.split(), "--gpus", "8", "--", *grid]) == 2
    assert "simulated has none. Add --worker simulated=IMAGE" in capsys.readouterr().err
    job = told_job(capsys, f"{words} --worker simulated=s:1", *grid)
    groups = {group["groupName"]: group["template"]["spec"] for group in job["spec"]["rayClusterSpec"]["workerGroupSpecs"]}
    limits = {name: pod["containers"][0].get("resources", {}).get("limits", {}) for name, pod in groups.items()}
    assert limits["vllm"] == limits["simulated"] == {"nvidia.com/gpu": 8}
    assert limits["sglang"] == {}


def test_a_sweep_without_a_plan_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    words = f"{WORKERS} --results-claim disk"
    assert main(["kuberay", *words.split(), "--", "draft.kk=3"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "`draft.kk` is no field" in line


@pytest.mark.parametrize("where", ["", "--results-claim c --results s3://b/f"])
def test_results_go_to_one_place(where: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kuberay", *f"--head-image h --worker vllm=v --gpus 1 {where}".split()]) == 2
    assert "Results must go to one place" in capsys.readouterr().err


def test_the_schema_refuses_what_kuberay_has_not() -> None:
    job = kuberay.rayjob([], kuberay.Pods("a", "b", "head:1", {"vllm": "v:1"}, results_claim="c"))
    job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["gpus"] = 8
    with pytest.raises(jsonschema.ValidationError, match="'gpus' was unexpected"):
        jsonschema.validate(job, json.loads(SCHEMA.read_text()))


def test_a_manifest_is_applied_by_kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kubectl").write_text(f'#!/bin/sh\necho "$*"; cat > {tmp_path}/applied\n')
    (tmp_path / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert kuberay.apply_manifest("kind: RayJob\n") == "apply -f -"
    assert (tmp_path / "applied").read_text() == "kind: RayJob\n"


def test_without_kubectl_the_user_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(BadInput, match="Without --apply, the manifest is printed"):
        kuberay.apply_manifest("")


@pytest.mark.parametrize(
    ("worker", "words"),
    [
        pytest.param("vllm", "must be NAME=VALUE", id="no image"),
        pytest.param("=image", "must be NAME=VALUE", id="no engine"),
        pytest.param("vLLM_1=image", "must name an engine: got 'vLLM_1'. There are attached, ", id="no engine of ours"),
    ],
)
def test_a_worker_that_is_no_engine_with_an_image_is_one_line(
    worker: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["kuberay", "--head-image", "h", "--worker", worker, "--gpus", "1", "--results-claim", "c"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


def test_every_manifest_field_is_plain_yaml() -> None:
    job = kuberay.rayjob(["+grid=a"], kuberay.Pods("a", "b", "head:1", {"vllm": "v:1"}, results_claim="c"))
    assert yaml.safe_load(kuberay.manifest(job)) == job


def test_an_address_without_a_scheme_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--address", "127.0.0.1:8265"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("`--address` must be the http address of a Ray dashboard: got '127.0.0.1:8265'")


def test_a_head_that_cannot_be_reached_is_one_line() -> None:
    """In a process of its own: Ray's client keeps what it found of tokens for the life of its process."""
    command = [sys.executable, "-m", "jobs.submit", "list", "--address", "http://127.0.0.1:1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "got http://127.0.0.1:1, and nothing there speaks HTTP." in line


ENTRY = """
import sys, time
from pathlib import Path
print("argv", sys.argv[1:])
print("files", sorted(str(path) for path in Path().rglob("*")))
time.sleep(60 if "wait=true" in sys.argv else 0)
sys.exit(3)
"""


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Ray puts sockets into it, and the path of a socket may have about 100 letters."""
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture
def head(short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a Ray head on this machine that asks for a token; its whole process group goes with it."""
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    port, dashboard, client = free_ports(3)
    options = {
        "node-ip-address": "127.0.0.1",
        "port": port,
        "dashboard-host": "127.0.0.1",
        "dashboard-port": dashboard,
        "dashboard-agent-listen-port": 0,
        "ray-client-server-port": client,
        "num-cpus": 1,
        "object-store-memory": 80 * 2**20,
        "temp-dir": short_folder,
    }
    command = [
        RAY,
        "start",
        "--head",
        "--block",
        "--disable-usage-stats",
        *(f"--{name}={value}" for name, value in options.items()),
    ]
    with (short_folder / "head.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        wait_for_head(process, dashboard)
        yield f"http://127.0.0.1:{dashboard}"
    finally:
        process.terminate()
        try:
            process.wait(timeout=30)
        finally:
            kill_group(process.pid)


def kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def free_ports(count: int) -> list[int]:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


def wait_for_head(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert process.poll() is None, "the Ray head ended while starting"
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise AssertionError("the Ray head did not answer")


class Laptop:
    """A tree with `jobs/submit` and a small sweep.py, and nothing else of the project; commands as a user types them."""

    def __init__(self, tree: Path, head: str, token: str) -> None:
        self.tree, self.head, self.token = tree, head, token
        for part in ("jobs/submit", "storage"):
            shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "jobs/errors.py", tree / "jobs")
        for name in (
            "conf/a.yaml",
            ".env",
            "hub.pem",
            "results/run/a.parquet",
            ".venv/bin/python",
            "tests/a.py",
            ".git/config",
        ):
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_text(name)
        (tree / "sweep.py").write_text(ENTRY)

    def submit(self, command: str, *words: str, token: str = "") -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        return subprocess.run(
            [sys.executable, "-m", "jobs.submit", command, "--address", self.head, *words],
            cwd=self.tree,
            env={**environment, "RAY_AUTH_TOKEN": token or self.token},
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.mark.ray
def test_a_real_ray_head_gets_the_tree_without_secrets_and_gives_back_the_exit_code(head: str, tmp_path: Path) -> None:
    assert not ray_jobs.is_open(head)
    laptop = Laptop(tmp_path, head, os.environ["RAY_AUTH_TOKEN"])
    python = ("--python", sys.executable)

    done = laptop.submit("ray", "--follow", "--results", "/r", *python, "--", "+grid=a", "axes.draft=[none,ngram]")
    assert done.returncode == 3, done.stderr
    assert "argv ['cluster=ray', 'run.dir=/r', '+grid=a', 'axes.draft=[none,ngram]']" in done.stdout
    (files,) = [line for line in done.stdout.splitlines() if line.startswith("files")]
    assert "'conf/a.yaml'" in files
    assert not any(kept in files for kept in (".env", "hub.pem", "results", ".venv", "tests", ".git"))
    job = done.stdout.splitlines()[0]
    assert f"{job}  FAILED  exit 3" in laptop.submit("status", job).stdout

    waiting = laptop.submit("ray", *python, "--", "wait=true").stdout.strip()
    assert laptop.submit("stop", waiting).returncode == 0
    assert laptop.submit("logs", "--follow", waiting).returncode == 130
    assert [line.split()[0] for line in laptop.submit("list").stdout.splitlines()] == [waiting, job]

    stranger = laptop.submit("list", token="0" * 64)
    assert stranger.returncode == 2
    assert stranger.stderr.splitlines()[-1].startswith(f"{head} needs the cluster's token: RAY_AUTH_TOKEN")
