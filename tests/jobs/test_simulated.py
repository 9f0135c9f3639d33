"""The simulated engine: the contract on a running one, its script, and its failures on demand."""

from __future__ import annotations

import asyncio
import json
import math
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

pytest.register_assert_rewrite("tests.contracts")

from jobs.engines import control  # noqa: E402
from jobs.engines.base import Ask, Site  # noqa: E402
from jobs.engines.host import simulated  # noqa: E402
from jobs.engines.host.backend import Generate, Step  # noqa: E402
from jobs.engines.host.simulated import EOS, load  # noqa: E402
from jobs.engines.own_host import PROJECT, host_config  # noqa: E402
from jobs.engines.simulated import SimulatedEngine  # noqa: E402
from jobs.errors import EngineDidNotStart, EngineHung, WrongEngine  # noqa: E402
from jobs.spec import Deployment, Draft, Engine, Model, Sampling  # noqa: E402
from tests.contracts import EngineContract, Running, answer_to, events_of, exchange, start  # noqa: E402

NGRAM = Draft(method="ngram", k=3)


def deployed(draft: Draft = NGRAM, batch: int = 4, **args: object) -> Deployment:
    fast = {"step_ms": 2.0, "draft_ms": 0.1, "prefill_ms_per_token": 0.0}
    return Deployment(Model(name="none"), Engine(name="simulated", device="cpu", batch=batch, args={**fast, **args}), draft)


class TestSimulatedEngine(EngineContract):
    stopping_prompt = (1, 2, 3)
    long_limit = 50_000
    patience_s = 5.0

    @classmethod
    def engine(cls) -> SimulatedEngine:
        return SimulatedEngine()

    @classmethod
    def deployment(cls) -> Deployment:
        return deployed()

    @classmethod
    def refused(cls) -> dict[str, tuple[Deployment, str]]:
        return {
            "an unknown argument": (deployed(stepms=3), r"got 'stepms'\. Known: step_ms, draft_ms"),
            "a wrong type": (deployed(step_ms="fast"), "a number, at least 0: got 'fast'"),
            "a probability above 1": (deployed(acceptance=[0.5, 1.5]), "a list of probabilities"),
            "speculation without a length": (
                deployed(Draft(method="ngram")),
                r"`draft\.k` must be at least 1 for ngram: got 0",
            ),
            "an unknown method": (deployed(Draft(method="telepathy", k=3)), "got 'telepathy'. Known: none, ngram"),
            "no room": (deployed(batch=0), r"`engine\.batch` must be at least 1"),
        }

    def test_steps_arrive_as_they_happen(self, tmp_path: Path) -> None:
        """Ten steps of 60 ms: most are one read of their own (a busy machine may read two at once), spread over the time."""
        running = start(self.engine(), deployed(Draft(), step_ms=60), tmp_path)
        try:
            ask = Ask([1], 10, Sampling(), ignore_eos=True)
            with exchange(running.engine.dialect.request(ask, running.endpoint), running.endpoint) as response:
                reads = [(read, time.monotonic()) for read in iter(response.read1, b"")]
        finally:
            assert running.process.stop()
        assert sum(read.count(b"data: ") == 1 for read, _ in reads) >= 6
        assert reads[-1][1] - reads[0][1] > 0.4

    def test_says_that_it_is_simulated(self, running: Running) -> None:
        assert running.engine.facts(running.deployment, running.endpoint).simulated


def test_the_launch_is_a_pure_function_of_deployment_and_site(tmp_path: Path) -> None:
    deployment = deployed()
    launch = SimulatedEngine().launch(deployment, Site(8123, "nonce", tmp_path / "model", tmp_path / "draft", tmp_path))
    assert launch.argv[:-1] == (
        sys.executable,
        *("-m", "jobs.engines.host", "--backend", "simulated", "--port", "8123", "--config"),
    )
    config = json.loads(launch.argv[-1])
    assert Engine(**config["engine"]) == deployment.engine
    assert Draft(**config["draft"]) == deployment.draft
    assert Model(**config["model"]) == deployment.model
    assert (config["model_dir"], config["draft_dir"]) == (str(tmp_path / "model"), str(tmp_path / "draft"))
    assert launch.env == {"PYTHONPATH": str(PROJECT), "SPECSWEEP_HOST_NAME": "nonce"}
    assert launch.health_path == "/health"


@pytest.mark.parametrize(
    ("python", "path"),
    [
        pytest.param(".venvs/x/bin/python", str(PROJECT / ".venvs/x/bin/python"), id="relative to the project"),
        pytest.param("/opt/x/bin/python", "/opt/x/bin/python", id="absolute"),
    ],
)
def test_the_interpreter_is_a_field(python: str, path: str, tmp_path: Path) -> None:
    deployment = deployed()
    deployment = replace(deployment, engine=replace(deployment.engine, python=python))
    assert SimulatedEngine().launch(deployment, Site(1, "n", tmp_path, None, tmp_path)).argv[0] == path


def played(deployment: Deployment, request: Generate, tmp_path: Path) -> list[Step]:
    """What the backend of this deployment plays, in this process."""
    backend = load(host_config(deployment, Site(0, "n", tmp_path, None, tmp_path)))

    async def all_steps() -> list[Step]:
        return [step async for step in backend.generate(request)]

    return asyncio.run(all_steps())


def ids(steps: list[Step]) -> list[int]:
    return [token for step in steps for token in step.token_ids]


@pytest.mark.parametrize("temperature", [pytest.param(0.0, id="greedy"), pytest.param(1.0, id="sampling")])
def test_drafting_never_changes_the_answer(tmp_path: Path, temperature: float) -> None:
    request = Generate([1, 2, 3], 60, temperature=temperature, seed=7)
    plain = played(deployed(Draft(), step_ms=0), request, tmp_path)
    drafted = played(deployed(Draft(method="early_exit", k=5), step_ms=0, draft_ms=0), request, tmp_path)
    assert ids(drafted) == ids(plain)
    assert len(drafted) < len(plain) == 60
    assert all(step.drafted == 0 for step in plain)


def test_the_seed_changes_the_answer_only_when_it_samples(tmp_path: Path) -> None:
    def answer(temperature: float, seed: int) -> list[int]:
        return ids(played(deployed(Draft(), step_ms=0), Generate([1, 2], 9, temperature=temperature, seed=seed), tmp_path))

    assert answer(0.0, 1) == answer(0.0, 2)
    assert answer(1.0, 1) != answer(1.0, 2)


def test_acceptance_comes_out_as_scripted(tmp_path: Path) -> None:
    """4000 tokens: the conditional acceptance at each position is within four standard errors of the script's."""
    deployment = deployed(Draft(method="ngram", k=2), step_ms=0, draft_ms=0, acceptance=[0.7, 0.4])
    steps = [s for s in played(deployment, Generate([4], 4000, ignore_eos=True), tmp_path) if s.drafted and not s.is_cut]
    reached = sum(step.accepted >= 1 for step in steps)
    assert reached / len(steps) == pytest.approx(0.7, abs=0.04)
    assert sum(step.accepted == 2 for step in steps) / reached == pytest.approx(0.4, abs=0.05)


def test_synthetic_acceptance_comes_out_as_asked_for(tmp_path: Path) -> None:
    """Whatever the script says of acceptance: 4000 tokens, AL within four standard errors."""
    draft = Draft(method="synthetic", k=3, drafter="ngram", acceptance_length=2.5)
    deployment = deployed(draft, step_ms=0, draft_ms=0, acceptance=[0.0])
    steps = [s for s in played(deployment, Generate([4], 4000, ignore_eos=True), tmp_path) if s.drafted and not s.is_cut]
    assert 1 + sum(step.accepted for step in steps) / len(steps) == pytest.approx(2.5, abs=0.12)


def test_a_limit_inside_a_step_cuts_it(tmp_path: Path) -> None:
    deployment = deployed(Draft(method="ngram", k=4), step_ms=0, draft_ms=0, acceptance=[1.0])
    steps = played(deployment, Generate([4], 9, ignore_eos=True), tmp_path)
    assert [len(step.token_ids) for step in steps] == [1, 5, 3]
    assert [step.accepted for step in steps] == [0, 4, 2]
    assert [step.is_cut for step in steps] == [False, False, True]
    assert [step.finish_reason for step in steps] == ["", "", "length"]
    assert [step.is_prefill for step in steps] == [True, False, False]


def test_a_natural_answer_ends_with_the_end_token(tmp_path: Path) -> None:
    steps = played(deployed(Draft(), step_ms=0, answer_tokens=5), Generate([4, 5], 1000), tmp_path)
    assert steps[-1].finish_reason == "stop"
    assert ids(steps).index(EOS) == len(ids(steps)) - 1


def test_steps_keep_to_their_deadlines_though_the_timer_is_coarse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock whose sleeps end at the next whole millisecond: 40 steps of 5.3 ms take 212 ms, not 240."""
    clock = SimpleNamespace(now_s=0.0)

    async def sleep(wanted_s: float) -> None:
        clock.now_s = math.ceil((clock.now_s + wanted_s) * 1e3 - 1e-6) / 1e3

    monkeypatch.setattr(simulated, "time", SimpleNamespace(monotonic=lambda: clock.now_s, sleep=time.sleep))
    monkeypatch.setattr(simulated, "asyncio", SimpleNamespace(sleep=sleep))
    deployment = deployed(step_ms=5, draft_ms=0.1, acceptance=[0.0])
    played(deployment, Generate([4], 41, ignore_eos=True), tmp_path)
    assert clock.now_s == pytest.approx(0.005 + 40 * 0.0053, abs=0.0011)


def test_prompts_longer_than_the_model_are_refused(tmp_path: Path) -> None:
    deployment = deployed()
    deployment = replace(deployment, engine=replace(deployment.engine, max_length=4))
    with pytest.raises(ValueError, match="must leave room in 4 tokens: it has 4"):
        played(deployment, Generate([1, 2, 3, 4], 5), tmp_path)
    assert len(ids(played(deployment, Generate([1, 2], 5, ignore_eos=True), tmp_path))) == 2


@pytest.fixture
def started(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Running]:
    """A running engine whose script is the test's `parametrize` argument."""
    running = start(SimulatedEngine(), deployed(**request.param), tmp_path)
    yield running
    assert running.process.stop(grace_s=0.5)


def asked(prompt: int = 1) -> Ask:
    return Ask([prompt], 10, Sampling(), ignore_eos=True)


@pytest.mark.parametrize("started", [{"crash_after_requests": 1}], indirect=True, ids=["after one request"])
def test_it_crashes_in_mid_stream_on_demand(started: Running) -> None:
    answer_to(started, asked())
    answer = started.engine.dialect.answer(events_of(started, asked()))
    assert "must end with [DONE]" in answer.error
    assert len(answer.output_ids) == 1
    deadline = time.monotonic() + 5
    while started.process.is_alive() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not started.process.is_alive()


@pytest.mark.parametrize("started", [{"hang_after_requests": 1}], indirect=True, ids=["after one request"])
def test_it_hangs_on_demand_and_is_ended_all_the_same(started: Running) -> None:
    answer_to(started, asked())
    with pytest.raises(TimeoutError, match="timed out"):
        events_of(started, asked(), timeout_s=0.5)
    with pytest.raises(EngineHung, match=r"GET /counters within 0\.2 s"):
        control.get_json(started.endpoint, "/counters", timeout_s=0.2)
    assert started.process.is_alive()


@pytest.mark.parametrize("started", [{"error_every": 2, "garbage_every": 3}], indirect=True, ids=["2nd and 3rd"])
def test_it_errs_and_talks_nonsense_on_demand(started: Running) -> None:
    errors = [started.engine.dialect.answer(events_of(started, asked())).error for _ in range(3)]
    assert errors[0] == ""
    assert errors[1] == "the engine gave up: RuntimeError: simulated error in request 2"
    assert errors[2].startswith("event 1 must be a step: got")
    assert started.process.is_alive()


@pytest.mark.parametrize("started", [{"wrong_name": True}], indirect=True, ids=["not-"])
def test_under_another_name_it_is_the_wrong_engine(started: Running) -> None:
    with pytest.raises(WrongEngine, match="it refuses our key with 401"):
        started.engine.facts(started.deployment, started.endpoint)


@pytest.mark.parametrize("started", [{"ignore_sigterm": True}], indirect=True, ids=["blocked"])
def test_it_survives_a_term_on_demand_and_not_a_stop(started: Running) -> None:
    psutil.Process(started.process.pid).terminate()
    answer_to(started, asked())
    assert started.process.is_alive()


@pytest.mark.parametrize(
    ("args", "last_words"),
    [
        pytest.param({"fail_at_start": True}, "simulated failure at start", id="a failure"),
        pytest.param(
            {"out_of_memory_message": "CUDA out of memory. Tried"}, "CUDA out of memory. Tried", id="out of memory"
        ),
    ],
)
def test_it_fails_at_start_on_demand(tmp_path: Path, args: dict[str, object], last_words: str) -> None:
    with pytest.raises(EngineDidNotStart, match="it ended with exit code 1") as failure:
        start(SimulatedEngine(), deployed(**args), tmp_path)
    assert failure.value.log_tail == last_words


def test_512_streams_run_beside_each_other(tmp_path: Path) -> None:
    """Each alone takes 8 steps of 100 ms; so do all together, and every stream is whole."""
    running = start(SimulatedEngine(), deployed(Draft(), batch=512, step_ms=100), tmp_path)

    async def stream(prompt: int) -> bytes:
        reader, writer = await asyncio.open_connection(running.endpoint.host, running.endpoint.port)
        writer.write(running.engine.dialect.request(Ask([prompt], 8, Sampling(), ignore_eos=True), running.endpoint))
        body = await reader.readuntil(b"\r\n0\r\n\r\n")
        writer.close()
        return body

    async def streams() -> list[bytes]:
        return await asyncio.gather(*(stream(prompt) for prompt in range(512)))

    try:
        started = time.monotonic()
        bodies = asyncio.run(streams())
        taken_s = time.monotonic() - started
    finally:
        assert running.process.stop()
    answers = [running.engine.dialect.answer(re.findall(rb"data: (.*)", body)) for body in bodies]
    assert {(answer.error, len(answer.output_ids)) for answer in answers} == {("", 8)}
    assert taken_s < 8.0  # one after the other would take 400 s
