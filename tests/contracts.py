"""Owns the contract of the port `Engine`: what an adapter must prove on a running engine. Does not own any engine.

A test subclasses `EngineContract` as `TestX`, fills in what it says, and inherits the proofs. It starts once per class.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http.client import HTTPResponse
from pathlib import Path
from socket import create_connection
from typing import Any, ClassVar

import pytest

from jobs.engines import control
from jobs.engines.base import Answer, Ask, Endpoint, Engine, Site
from jobs.engines.lifeline import marked
from jobs.engines.process import MARKER, EngineProcess, free_port
from jobs.errors import BadInput, WrongEngine
from jobs.spec import Deployment, Sampling


@dataclass(frozen=True)
class Running:
    """A started engine."""

    engine: Engine
    deployment: Deployment
    endpoint: Endpoint
    process: EngineProcess
    site: Site
    log: Path
    ready_s: float = 0.0


class EngineContract:
    """What every engine must do. Fill in `engine`, `deployment`, `refused`, and what differs from the defaults."""

    prompts: ClassVar[Sequence[Sequence[int]]] = ([5, 6, 7, 8, 5, 6, 7, 8, 5, 6], [11, 12, 13])
    stopping_prompt: ClassVar[Sequence[int]] = ()  # its greedy answer ends by itself before `long_limit`; () = none does
    ending_prompt: ClassVar[Sequence[int]] = ()  # its greedy answer is the end token alone; () = none is known
    cut_prompt: ClassVar[
        Sequence[int]
    ] = ()  # its answer ends inside drafted tokens that are all accepted; () = none is known
    stranger_status: ClassVar[int] = 401  # of a request without our key; 200 = it looks at none
    memory: ClassVar[Sequence[str]] = ("weights_bytes", "kv_capacity_tokens", "peak_memory_bytes")  # facts that it tells
    uncounted: ClassVar[Sequence[str]] = ()  # counters that it has not
    short_limit: ClassVar[int] = 12
    shared_limit: ClassVar[int] = 200  # takes longer than it takes to send some requests
    long_limit: ClassVar[int] = 2000  # takes much longer than `patience_s`
    patience_s: ClassVar[float] = 30.0

    @classmethod
    def engine(cls) -> Engine:
        raise NotImplementedError

    @classmethod
    def deployment(cls) -> Deployment:
        """A deployment that speculates."""
        raise NotImplementedError

    @classmethod
    def model_dir(cls) -> Path:
        return Path()

    @classmethod
    def draft_dir(cls) -> Path | None:
        return None

    @classmethod
    def refused(cls) -> Mapping[str, tuple[Deployment, str]]:
        """name of the case → a deployment that `check` refuses, and a pattern of its message."""
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def running(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
        """Start the engine; afterwards its whole tree and its scratch folder are gone and its log is there."""
        folder = tmp_path_factory.mktemp("engine")
        running = start(cls.engine(), cls.deployment(), folder, model_dir=cls.model_dir(), draft_dir=cls.draft_dir())
        try:
            yield running
        finally:
            assert running.process.stop()
        assert not running.process.is_alive()
        assert not marked((MARKER, running.site.nonce))
        assert not running.site.scratch.exists()
        assert not control.is_healthy(running.endpoint, "/health")
        assert running.log.stat().st_size > 0

    def ask(self, index: int = 0, **changes: Any) -> Ask:
        asked = Ask(self.prompts[index], self.short_limit, Sampling(), ignore_eos=True, category="math")
        return replace(asked, **changes)

    def test_accepts_the_deployment_that_it_will_run(self) -> None:
        self.engine().check(self.deployment())

    def test_refuses_at_plan_time_what_it_cannot_do(self) -> None:
        for deployment, pattern in self.refused().values():
            with pytest.raises(BadInput, match=pattern):
                self.engine().check(deployment)

    def test_tells_its_facts(self, running: Running) -> None:
        facts = running.engine.facts(running.deployment, running.endpoint)
        assert facts.version
        assert facts.effective_config["method"] == running.deployment.draft.method
        assert facts.effective_config["k"] == running.deployment.draft.k

    def test_tells_its_memory(self, running: Running) -> None:
        facts = running.engine.facts(running.deployment, running.endpoint)
        told = {name: getattr(facts, name) for name in self.memory}
        assert all(value and value > 0 for value in told.values()), told

    def test_its_start_was_timed(self, running: Running) -> None:
        assert 0 < running.ready_s < running.deployment.engine.start_timeout_s

    def test_a_stranger_on_the_port_is_the_wrong_engine(self, running: Running) -> None:
        with pytest.raises(WrongEngine, match="must serve as"):
            running.engine.facts(running.deployment, replace(running.endpoint, model="somebody-else"))

    def test_other_speculation_than_asked_is_the_wrong_engine(self, running: Running) -> None:
        draft = replace(running.deployment.draft, k=running.deployment.draft.k + 1)
        with pytest.raises(WrongEngine, match=r"draft\.k"):
            running.engine.facts(replace(running.deployment, draft=draft), running.endpoint)

    def test_a_request_to_another_name_is_refused(self, running: Running) -> None:
        stranger = replace(running.endpoint, model="somebody-else", headers={})
        with exchange(running.engine.dialect.request(self.ask(), stranger), running.endpoint) as response:
            assert response.status == self.stranger_status

    def test_streams_every_token_once(self, running: Running) -> None:
        answer = answer_to(running, self.ask())
        assert len(answer.chunk_tokens) > 1
        assert sum(answer.chunk_tokens) == len(answer.output_ids)
        assert len(answer.chunk_events) == len(answer.chunk_tokens)
        assert list(answer.chunk_events) == sorted(set(answer.chunk_events))

    def test_stops_at_the_limit(self, running: Running) -> None:
        answer = answer_to(running, self.ask())
        assert len(answer.output_ids) == self.short_limit
        assert answer.finish_reason == "length"

    def test_a_limit_of_one_token_is_one_token(self, running: Running) -> None:
        answer = answer_to(running, self.ask(output_limit=1))
        assert list(answer.chunk_tokens) == [1]
        assert answer.finish_reason == "length"

    def test_stops_by_itself_unless_told_to_go_on(self, running: Running) -> None:
        if not self.stopping_prompt:
            pytest.skip("this engine has no natural stop")
        ask = self.ask(prompt_ids=self.stopping_prompt, output_limit=self.long_limit)
        stopped = answer_to(running, replace(ask, ignore_eos=False))
        assert stopped.finish_reason == "stop"
        length = len(stopped.output_ids)
        assert length < self.long_limit
        forced = answer_to(running, replace(ask, output_limit=length + 4))
        assert len(forced.output_ids) == length + 4
        assert list(forced.output_ids[: length - 1]) == list(stopped.output_ids[:-1])

    def test_an_answer_that_ends_at_once_is_its_end_token(self, running: Running) -> None:
        if not self.ending_prompt:
            pytest.skip("no prompt is known whose answer ends at once")
        answer = answer_to(running, self.ask(prompt_ids=self.ending_prompt, ignore_eos=False))
        assert (list(answer.chunk_tokens), answer.finish_reason) == ([1], "stop")

    def test_an_end_inside_accepted_drafts_cuts_the_step(self, running: Running) -> None:
        if not self.cut_prompt:
            pytest.skip("no prompt is known whose answer ends inside a draft")
        ask = self.ask(prompt_ids=self.cut_prompt)
        stopped, forced = answer_to(running, replace(ask, ignore_eos=False)), answer_to(running, ask)
        assert stopped.finish_reason == "stop"
        assert stopped.last_step_is_cut
        assert list(stopped.output_ids) == list(forced.output_ids[: len(stopped.output_ids)])
        assert stopped.step_accepted[-1] + 1 > stopped.chunk_tokens[-1]

    def test_a_step_delivers_what_it_accepted_and_one_token_more(self, running: Running) -> None:
        answer = answer_to(running, self.ask())
        if not answer.step_drafted:
            pytest.skip("this engine does not tell its steps")
        if len(answer.step_drafted) > len(answer.chunk_tokens):  # a loaded machine merged chunks: only the sum is known
            assert sum(answer.step_accepted) + len(answer.step_accepted) >= len(answer.output_ids)
            return
        steps = list(zip(answer.step_drafted, answer.step_accepted, answer.chunk_tokens, strict=True))
        assert all(0 <= accepted <= drafted <= running.deployment.draft.k for drafted, accepted, _ in steps)
        assert sum(drafted for drafted, _, _ in steps) > 0
        whole = steps[:-1] if answer.last_step_is_cut else steps
        assert all(delivered == accepted + 1 for _, accepted, delivered in whole)
        assert not answer.first_step_is_prefill or steps[0][:2] == (0, 0)

    def test_the_same_greedy_request_has_the_same_answer(self, running: Running) -> None:
        assert answer_to(running, self.ask()).output_ids == answer_to(running, self.ask()).output_ids

    def test_requests_beyond_the_batch_wait_and_are_answered(self, running: Running) -> None:
        many = running.deployment.engine.batch + 1
        with ThreadPoolExecutor(many) as pool:
            answers = list(pool.map(lambda _: answer_to(running, self.ask(1)), range(many)))
        assert [len(answer.output_ids) for answer in answers] == [self.short_limit] * many

    def test_requests_within_the_batch_are_answered_together(self, running: Running) -> None:
        """Each has begun before any has ended."""
        if (many := min(running.deployment.engine.batch, 4)) == 1:
            pytest.skip("this engine answers one request at a time")
        ask = self.ask(output_limit=self.shared_limit)
        with ThreadPoolExecutor(many) as pool:
            times = list(pool.map(lambda _: times_of(running, ask), range(many)))
        assert max(first for first, _ in times) < min(last for _, last in times)

    def test_one_connection_carries_one_request_after_the_other(self, running: Running) -> None:
        request = running.engine.dialect.request(self.ask(), running.endpoint)
        with create_connection((running.endpoint.host, running.endpoint.port), timeout=120.0) as connection:
            bodies = []
            for _ in range(2):
                connection.sendall(request)
                with HTTPResponse(connection, method="POST") as response:
                    response.begin()
                    assert not response.will_close
                    bodies.append(response.read())
        answers = [running.engine.dialect.answer(payloads(body.splitlines())) for body in bodies]
        assert [answer.error for answer in answers] == ["", ""]
        assert answers[0].output_ids == answers[1].output_ids

    def test_a_client_that_goes_away_frees_its_slot(self, running: Running) -> None:
        long = running.engine.dialect.request(self.ask(output_limit=self.long_limit), running.endpoint)
        for _ in range(running.deployment.engine.batch):
            with exchange(long, running.endpoint) as response:
                assert response.readline().startswith(b"data: ")
        assert len(answer_to(running, self.ask(), timeout_s=self.patience_s).output_ids) == self.short_limit

    def test_log_probabilities_are_one_a_token(self, running: Running) -> None:
        answer = answer_to(running, self.ask(wants_logprobs=True))
        if not answer.logprobs:
            pytest.skip("this engine does not tell log-probabilities")
        assert len(answer.logprobs) == len(answer.output_ids)
        assert all(value <= 1e-3 for value in answer.logprobs)
        assert not answer_to(running, self.ask()).logprobs

    def test_counters_grow_by_what_was_streamed(self, running: Running) -> None:
        before = running.engine.counters(running.endpoint)
        answer = answer_to(running, self.ask())
        after = running.engine.counters(running.endpoint)
        grown = {name: after[name] - before.get(name, 0.0) for name in after}
        assert grown["output_tokens"] == len(answer.output_ids)
        if answer.step_drafted:
            k, drafted, accepted = running.deployment.draft.k, answer.step_drafted, answer.step_accepted
            steps = {"draft_tokens": sum(drafted), "accepted_tokens": sum(accepted), "drafts": sum(map(bool, drafted))}
            steps |= {f"accepted_at_{i}": sum(count > i for count in accepted) for i in range(k)}
            counted = {name: count for name, count in steps.items() if name not in self.uncounted}
            assert {name: grown[name] for name in counted} == counted

    def test_a_reset_leaves_the_answers_alone(self, running: Running) -> None:
        before = answer_to(running, self.ask())
        assert running.engine.reset(running.endpoint) is not False
        assert answer_to(running, self.ask()).output_ids == before.output_ids


def start(
    engine: Engine, deployment: Deployment, folder: Path, *, model_dir: Path = Path(), draft_dir: Path | None = None
) -> Running:
    """Start an engine and wait until it is ready; on failure nothing is left."""
    site = Site(free_port(), f"contract-{secrets.token_hex(4)}", model_dir, draft_dir, folder / "scratch")
    endpoint = site.endpoint
    launch = engine.launch(deployment, site)
    log = folder / "engine.log"
    process = EngineProcess.start(launch, log, site.nonce, site.scratch)
    try:
        ready_s = process.wait_ready(endpoint, launch.health_path, deployment.engine.start_timeout_s)
    except BaseException:
        process.stop()
        raise
    return Running(engine, deployment, endpoint, process, site, log, ready_s)


def answer_to(running: Running, ask: Ask, timeout_s: float = 120.0) -> Answer:
    """The whole answer to one request, as the dialect reads it; it must be without error."""
    answer = running.engine.dialect.answer(events_of(running, ask, timeout_s))
    assert answer.error == ""
    return answer


def events_of(running: Running, ask: Ask, timeout_s: float = 120.0) -> list[bytes]:
    """The payloads of the server-sent events of one request."""
    with exchange(running.engine.dialect.request(ask, running.endpoint), running.endpoint, timeout_s) as response:
        assert response.status == 200, response.read()
        return payloads(response)


def times_of(running: Running, ask: Ask) -> tuple[float, float]:
    """When the first and the last event of an answer came, in seconds of some clock."""
    with exchange(running.engine.dialect.request(ask, running.endpoint), running.endpoint) as response:
        times = [time.monotonic() for line in response if line.startswith(b"data: ")]
    return times[0], times[-1]


def payloads(lines: Iterable[bytes]) -> list[bytes]:
    """The payloads of the server-sent events in these lines."""
    return [line[len(b"data: ") :].rstrip() for line in lines if line.startswith(b"data: ")]


@contextmanager
def exchange(request: bytes, endpoint: Endpoint, timeout_s: float = 120.0) -> Iterator[HTTPResponse]:
    """Send these bytes, read the head of the response; leaving the context closes the connection."""
    with create_connection((endpoint.host, endpoint.port), timeout=timeout_s) as connection:
        connection.sendall(request)
        with HTTPResponse(connection, method="POST") as response:
            response.begin()
            yield response
