"""What is left to do is told by what happened to the cells, never by how it is worded."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.conclude import Problem, _next, _problem

COMMAND = ["python", "sweep.py", "+grid=night"]


@pytest.mark.parametrize(
    ("problems", "command"),
    [
        pytest.param([], "storage.query", id="nothing lacks"),
        pytest.param(
            [_problem("ok", ["too_few_prompts"], None)], "storage.query", id="measured and invalid: no further try"
        ),
        pytest.param(
            [_problem("failed", [], "RuntimeError: CUDA error: invalid argument\nmore")],
            "sweep.py",
            id="an invalid in words",
        ),
        pytest.param([Problem("not measured yet", is_measured=False)], "sweep.py", id="not measured"),
        pytest.param(
            [_problem("ok", ["drift"], None), _problem("failed", ["engine_died"], "")], "sweep.py", id="some of each"
        ),
    ],
)
def test_the_next_command_tries_again_only_what_would_be_tried(problems: list[Problem], command: str) -> None:
    assert command in _next(Path("results/night"), problems, COMMAND)


def test_a_failure_is_told_in_one_line() -> None:
    assert _problem("failed", ["x"], "first\nsecond").text == "failed: first"
    assert _problem("failed", ["engine_died"], None).text == "failed: engine_died"
