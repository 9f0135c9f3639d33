"""What Ray or a machine could never give an engine is refused before anything starts, in one line."""

from __future__ import annotations

from typing import Any

import pytest
from grids import cell

from orchestrator.rules import problem_of

ONE = "`engine.runtime_env` must be one environment, as Ray combines none: got"
TYPES = "`engine.runtime_env` must be of uv: a list of requirements"


@pytest.mark.parametrize("cpus", [0, 0.0001, 0.1, 0.3, 1.5, 96, 0.1 + 0.2])
def test_shares_of_a_cpu_that_ray_can_count_are_taken(cpus: float) -> None:
    assert problem_of(cell(cpus=cpus)) is None


@pytest.mark.parametrize("cpus", [0.00005, 1.00005, float("inf"), 1e300])
def test_other_shares_are_refused(cpus: float) -> None:
    problem = problem_of(cell(cpus=cpus))
    assert problem is not None
    assert problem.text.startswith("`engine.cpus` must be 0 or from 0.0001 to a million, with 4 decimals at most: got")


@pytest.mark.parametrize(
    "given",
    [
        {"uv": ["vllm==0.33.0"]},
        {"uv": {"packages": ["vllm"], "uv_check": False, "uv_version": "==0.8", "uv_pip_install_options": ["--no-cache"]}},
        {"pip": {"packages": ["vllm"], "pip_check": False, "pip_version": "==24", "pip_install_options": ["-v"]}},
        {"pip": "docker/transformers/requirements.in"},
        {"uv": "docker/transformers/requirements.in"},
        {"conda": "vllm"},
        {"conda": {"dependencies": ["pip"]}},
        {"image_uri": "vllm:1"},
    ],
)
def test_environments_of_ray_are_taken(given: dict[str, Any]) -> None:
    assert problem_of(cell(runtime_env=given)) is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"uv": ["a"], "pip": ["b"]}, ONE),
        ({"image_uri": "a", "conda": "b"}, ONE),
        ({"uv": 3}, TYPES),
        ({"uv": [3]}, TYPES),
        ({"pip": {"pip_check": True}}, TYPES),
        ({"pip": {"packages": "a"}}, TYPES),
        ({"uv": {"packages": ["a"], "pip_check": True}}, TYPES),
        ({"conda": ["a"]}, TYPES),
        ({"image_uri": {"a": 1}}, TYPES),
        ({"image_uri": ""}, TYPES),
        ({"uv": ""}, TYPES),
    ],
)
def test_what_ray_would_not_make_is_refused(given: dict[str, Any], message: str) -> None:
    problem = problem_of(cell(runtime_env=given))
    assert problem is not None
    assert problem.text.startswith(message)
    assert "\n" not in problem.text


@pytest.mark.parametrize("name", ["tp", "pp", "dp", "ep", "nodes"])
def test_more_devices_than_any_cluster_has_are_refused_at_once(name: str) -> None:
    problem = problem_of(cell(**{name: 10**20}))
    assert problem is not None
    assert problem.text == f"`engine.{name}` must be at most 10000: got {10**20}."
