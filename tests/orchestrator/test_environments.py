"""The environment of a worker: what Ray takes, what it would not take, and why one was not made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import ray
from grids import cell

from jobs import provenance
from jobs.errors import BadInput
from jobs.spec import SessionSpec
from orchestrator.schedule.ranks import MOST_CHARACTERS, first_line
from orchestrator.schedule.workers import environment_of, refuse_environments

AGENT = """Could not create the actor because its associated runtime env failed to be created.
[Node 127.0.0.1] Traceback (most recent call last):
  File "/ray/conda_utils.py", line 193, in get_conda_info_json
    exec_cmd([conda_path, "--help"], throw_on_error=False)
FileNotFoundError: [Errno 2] No such file or directory: 'conda'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/ray/agent.py", line 561, in _create_runtime_env_with_retry
    runtime_env_context = await asyncio.wait_for(
                          ^^^^^^^^^^^^^^^^^^^^^^^
"""
PIP = """ray.utils.SubprocessCalledProcessError: Run cmd[9] failed with the following details.
Command '['/envs/python', '-m', 'pip', 'install', '-r', '/envs/requirements.txt']' returned non-zero exit status 1.
Last 50 lines of stdout:
    Looking in links: /wheels
    ERROR: No matching distribution found for no_such_package
"""


def packages_of(path: str) -> list[str]:
    environment = environment_of({"pip": path})
    assert environment is not None
    return environment["pip"]["packages"]


def test_the_content_of_a_file_of_requirements_goes_to_the_worker_as_it_was_at_the_start(tmp_path: Path) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text("a==1\nb\n")
    refuse_environments([SessionSpec("s", "now", cell(runtime_env={"pip": str(file)}).deployment, (), 1.0)])
    file.write_text("another\n")
    assert packages_of(str(file)) == ["a==1", "b"]
    file.unlink()
    assert packages_of(str(file)) == ["a==1", "b"]
    assert environment_of({}) is None


@pytest.mark.parametrize("path", ["some/wheels.in", "~/wheels.in"])
def test_a_file_is_found_from_the_projects_root_or_a_home_folder(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "PROJECT_ROOT", tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "some"))
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "wheels.in").write_text("c\n")
    assert packages_of(path) == ["c"]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        pytest.param({"pip": "no_such_file.txt"}, r"Ray says: /.*/no_such_file\.txt is not a valid file", id="no file"),
        pytest.param({"uv": "no_such_file.txt"}, r"Ray says: /.*/no_such_file\.txt is not a valid file", id="nor uv's"),
        pytest.param({"conda": "no_such_file.yml"}, r"Can't find conda YAML file /.*/no_such_file\.yml", id="nor conda's"),
        pytest.param({"uv": "x" * 5000}, "File name too long|is not a valid file", id="no name of a file"),
        pytest.param({"pip": "~no_such_user/x"}, r"~no_such_user/x is not a valid file", id="nobody's home"),
        pytest.param({"conda": "/no/such/place"}, "Can't find conda env directory", id="no folder"),
        pytest.param({"uv": {"packages": ["a"], "uv_check": 3}}, "must be of type bool", id="a type"),
    ],
)
def test_what_only_ray_knows_to_be_wrong_is_one_line(given: dict[str, Any], why: str) -> None:
    with pytest.raises(BadInput, match=rf"`engine.runtime_env` must be what Ray takes: got .*({why})") as refusal:
        environment_of(given)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("told", "line"),
    [
        pytest.param(AGENT + "ValueError: Could not find Conda.\n", "ValueError: Could not find Conda.", id="an error"),
        pytest.param(
            AGENT + PIP,
            "Looking in links: /wheels ERROR: No matching distribution found for no_such_package",
            id="a command",
        ),
        pytest.param("It took\n600 s.", "Failed to set up runtime environment. It took 600 s.", id="no traceback"),
        pytest.param(None, "Failed to set up runtime environment.", id="nothing told"),
        pytest.param(f"{AGENT}{PIP}    {'x' * 900}", f"…{'x' * (MOST_CHARACTERS - 1)}", id="much"),
    ],
)
def test_why_an_environment_was_not_made_is_one_line(told: str | None, line: str) -> None:
    assert first_line(ray.exceptions.RuntimeEnvSetupError(told)) == line
