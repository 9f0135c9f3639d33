"""What a session was measured on."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from jobs import provenance


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


@pytest.mark.parametrize("slow", ["rev-parse", "status"])
def test_what_a_git_that_does_not_answer_would_say_is_unknown(
    slow: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "git").write_text(f'#!/bin/sh\n[ "$3" = {slow} ] && exec sleep 60\necho abc\n')
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(provenance, "PROJECT_ROOT", tmp_path)
    monkeypatch.setattr(provenance, "GIT_LIMIT_S", 1.0)
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
