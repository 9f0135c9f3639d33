"""Log-probabilities from our own host: those of the target itself, whatever drafted, and none where nobody asked."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from jobs.engines.base import Ask, Endpoint, Site
from jobs.engines.dialects import HostDialect
from jobs.engines.host.backend import Step
from jobs.engines.host.wire import parse_request, step_event
from jobs.engines.own_host import PROJECT, host_config
from jobs.models import engine_python
from jobs.spec import Deployment, Draft, Engine, Model, Sampling

HERE = Path(__file__).parent
DRAFTS = (Draft(), Draft(method="ngram", k=3), Draft(method="early_exit", k=3, exit_layer=2))


def deployment_of(draft: Draft) -> Deployment:
    return Deployment(Model(), Engine(dtype="float32", device="cpu", threads=1), draft)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("tiny") / "target"
    env = {"PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    configs = {draft.method: host_config(deployment_of(draft), Site(0, "", folder, None, Path())) for draft in DRAFTS}
    for script, *arguments in (("tiny_model.py", folder, 4, 1), ("told_logprobs.py",)):
        command = [engine_python(), str(HERE / script), *map(str, arguments)]
        given = json.dumps(configs)
        done = subprocess.run(command, input=given, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    answers: dict[str, list[dict[str, Any]]] = json.loads(done.stdout)
    return answers


@pytest.mark.skipif(not Path(engine_python()).is_file(), reason="needs the engine's environment: make env")
@pytest.mark.parametrize("method", ["none", "ngram", "early_exit"])
def test_each_token_has_the_log_probability_that_the_target_gives_it(method: str, told: dict[str, Any]) -> None:
    for answer in told[method]:
        assert len(answer["logprobs"]) == len(answer["ids"]) == 24
        assert answer["logprobs"] == pytest.approx(answer["expected"], abs=1e-4)
        assert answer["ids"] == answer["plain_ids"]  # to ask for them changes no answer
        assert answer["untold"] == []  # and who does not ask is told none
    assert told[method][0]["ids"] != told[method][1]["ids"]  # greedy, sampled
    assert (max(answer["longest_step"] for answer in told[method]) > 1) == (method != "none")


def test_log_probabilities_cross_the_wire_with_their_tokens() -> None:
    dialect, endpoint = HostDialect(), Endpoint("127.0.0.1", 1, "us")
    request = dialect.request(Ask([1], 4, Sampling(), wants_logprobs=True), endpoint)
    steps = [Step([7], logprobs=[-0.5]), Step([8, 9], drafted=2, accepted=1, finish_reason="length", logprobs=[-1.0, -2.5])]
    events = [step_event(step).removeprefix(b"data: ").strip() for step in steps]

    answer = dialect.answer([*events, b"[DONE]"])

    assert parse_request(request.partition(b"\r\n\r\n")[2], "us").wants_logprobs
    assert (list(answer.output_ids), list(answer.logprobs), answer.error) == ([7, 8, 9], [-0.5, -1.0, -2.5], "")


def test_a_log_probability_too_few_is_a_broken_stream() -> None:
    event = json.loads(step_event(Step([7, 8], finish_reason="stop", logprobs=[-0.5])).removeprefix(b"data: "))

    answer = HostDialect().answer([json.dumps(event).encode(), b"[DONE]"])

    assert "event 0 must be a step" in answer.error
