"""What a session was measured on."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobs import models, provenance
from jobs.errors import BadInput
from jobs.load.arrivals import recorded_offsets_s
from jobs.spec import Workload
from jobs.workloads import load_prompts
from jobs.workloads.schema import schema_text
from jobs.workloads.select.__main__ import main as select
from storage.mirror import CACHE, copy_of
from storage.places import BucketPath

NO_HOME = "~nobody-has-this-name/x"


def test_the_host_is_told_by_its_cpu_memory_and_system() -> None:
    facts = provenance.host_facts()

    assert facts["cpu"]
    assert facts["cpus"] >= 1
    assert facts["memory_bytes"] > 10**8


def test_versions_of_what_measures_are_told() -> None:
    versions = provenance.worker_versions()

    assert versions["python"] == ".".join(map(str, sys.version_info[:3]))
    assert {"ray", "pyarrow", "duckdb", "transformers"} <= set(versions)


def test_the_commit_comes_from_the_clone_or_else_from_the_image(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    provenance.git_state.cache_clear()
    if (provenance.PROJECT_ROOT / ".git").exists():
        commit, dirty = provenance.git_state()
        assert re.fullmatch("[0-9a-f]{40}", commit)
        assert dirty in {True, False}

    monkeypatch.setattr(provenance, "PROJECT_ROOT", tmp_path)
    monkeypatch.setenv("SPECSWEEP_COMMIT", "told-by-the-image")
    provenance.git_state.cache_clear()

    assert provenance.git_state() == ("told-by-the-image", None)
    provenance.git_state.cache_clear()


@pytest.mark.parametrize(
    ("slow", "limit_s"),
    [
        pytest.param("rev-parse", 0.5, id="rev-parse"),
        pytest.param("status", 5.0, id="status: rev-parse before it must answer in time on a busy machine too"),
    ],
)
def test_what_a_git_that_does_not_answer_would_say_is_unknown(
    slow: str, limit_s: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "git").write_text(f'#!/bin/sh\n[ "$3" = {slow} ] && exec sleep 60\necho abc\n')
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(provenance, "PROJECT_ROOT", tmp_path)
    monkeypatch.setattr(provenance, "GIT_LIMIT_S", limit_s)
    monkeypatch.delenv("SPECSWEEP_COMMIT", raising=False)
    assert provenance.git_state.__wrapped__() == ("" if slow == "rev-parse" else "abc", None)


def test_an_assigned_gpu_is_told_with_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = SimpleNamespace(
        NVMLError=RuntimeError,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlSystemGetDriverVersion=lambda: "580.1",
        nvmlDeviceGetName=lambda handle: "H200",
        nvmlDeviceGetUUID=lambda handle: f"GPU-{handle}",
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=141, used=7),
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)

    told = provenance.gpu_facts(("3",))

    known = {"device": "gpu3", "name": "H200", "uuid": "GPU-3", "memory_bytes": 141, "used_bytes": 7, "driver": "580.1"}
    assert told == [known]
    assert provenance.gpu_facts(()) == []


def test_a_path_is_of_the_project_unless_it_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/homes/me")
    monkeypatch.chdir("/")
    assert provenance.local_path("conf/x") == provenance.PROJECT_ROOT / "conf/x"
    assert provenance.local_path(Path("/x/y")) == Path("/x/y")
    assert provenance.local_path("~/x") == Path("/homes/me/x")
    assert provenance.local_path(NO_HOME) == provenance.PROJECT_ROOT / NO_HOME


@pytest.mark.parametrize(
    ("use", "key"),
    [
        pytest.param(models.resolve, "model.path", id="a model"),
        pytest.param(recorded_offsets_s, "load.replay", id="arrivals"),
        pytest.param(lambda path: load_prompts(Workload(name="jsonl", path=path)), "workload.path", id="prompts"),
        pytest.param(
            lambda path: load_prompts(Workload(name="jsonl", path=path, split="a")), "workload.path", id="a split of them"
        ),
        pytest.param(lambda path: schema_text(Workload(json_schema=path)), "workload.json_schema", id="a schema"),
    ],
)
def test_a_home_that_is_not_there_is_told_as_any_path_that_is_not(use: Callable[[str], Any], key: str) -> None:
    with pytest.raises(BadInput, match=rf"`{key}` must .*{NO_HOME}"):
        use(NO_HOME)


def test_vectors_in_a_home_that_is_not_there_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p.jsonl").write_text('{"text": "Hi"}\n')
    code = select([f"{tmp_path}/p.jsonl", f"--output={tmp_path}/out", "--per-category=1", f"--vectors={NO_HOME}"])
    told = capsys.readouterr().err
    assert (code, len(told.splitlines())) == (2, 1)
    assert "--vectors must be a .npy file: got " in told


def test_a_cache_in_a_home_that_is_not_there_is_a_folder_of_that_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECSWEEP_CACHE", NO_HOME)
    monkeypatch.setenv(CACHE, NO_HOME)
    assert models.cache_folder() == Path(NO_HOME)
    assert copy_of(BucketPath("s3", "bucket/run")).is_relative_to(NO_HOME)


def test_no_home_is_looked_up_in_the_way_that_raises() -> None:
    files = [path for top in ("jobs", "orchestrator", "storage") for path in (provenance.PROJECT_ROOT / top).rglob("*.py")]
    assert files
    assert not [path for path in files if re.search(r"\.expanduser\(\)", path.read_text())]
