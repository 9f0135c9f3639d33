"""The host's HTTP side with a backend that the test holds by the hand: no sockets, no model."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
import pytest

from jobs.engines.host.__main__ import read_config
from jobs.engines.host.app import make_app
from jobs.engines.host.backend import Generate, Step
from jobs.engines.host.wire import BadRequest, parse_request, step_event

KEY = {"Authorization": "Bearer nonce"}
ASKED = {"model": "nonce", "prompt_ids": [1, 2], "output_limit": 3}


class HandBackend:
    """Each step waits until the test lets it go; tells what was started and what was closed, in order."""

    def __init__(self, batch: int = 1, steps: tuple[Step, ...] = (Step([4]), Step([5], finish_reason="length"))) -> None:
        self.batch = batch
        self.steps = steps
        self.told: list[str] = []
        self.go = asyncio.Semaphore(0)
        self.failure: Exception | None = None

    def facts(self) -> dict[str, Any]:
        return {"version": "9", "effective_config": {"method": "ngram", "k": 2}}

    async def generate(self, request: Generate) -> AsyncIterator[Step]:
        name = str(request.prompt_ids[0])
        self.told.append(f"start {name}")
        try:
            for step in self.steps:
                await self.go.acquire()
                if self.failure:
                    raise self.failure
                yield step
        finally:
            await asyncio.sleep(0)  # freeing may take a while; the slot must wait for it
            self.told.append(f"close {name}")


class Client:
    """One request on the bare ASGI interface: what came back so far, and a plug to pull."""

    def __init__(self, app: Callable[..., Awaitable[None]], prompt: int) -> None:
        self.messages: list[dict[str, Any]] = []
        self.inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        body = json.dumps({**ASKED, "prompt_ids": [prompt]}).encode()
        self.inbox.put_nowait({"type": "http.request", "body": body, "more_body": False})
        headers = [(name.lower().encode(), value.encode()) for name, value in KEY.items()]
        path = {"path": "/generate", "query_string": b"", "root_path": ""}
        scope = {"type": "http", "method": "POST", "headers": headers, **path}
        self.task = asyncio.ensure_future(app(scope, self.inbox.get, self.send))

    async def send(self, message: dict[str, Any]) -> None:
        self.messages.append(message)

    @property
    def bodies(self) -> list[bytes]:
        return [message["body"] for message in self.messages if message["type"] == "http.response.body"]

    async def go_away(self) -> None:
        self.inbox.put_nowait({"type": "http.disconnect"})
        await self.task


async def settle() -> None:
    """Let everything that can run, run."""
    for _ in range(20):
        await asyncio.sleep(0)


@asynccontextmanager
async def http(backend: HandBackend) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(make_app(backend, "nonce"))
    async with httpx.AsyncClient(transport=transport, base_url="http://host", headers=KEY) as client:
        yield client


def test_each_step_is_one_message_as_it_happens() -> None:
    async def scenario() -> None:
        backend = HandBackend()
        client = Client(make_app(backend, "nonce"), 1)
        await settle()
        assert [message["type"] for message in client.messages] == ["http.response.start"]
        assert (b"content-type", b"text/event-stream; charset=utf-8") in client.messages[0]["headers"]
        assert not [name for name, _ in client.messages[0]["headers"] if name == b"content-length"]
        backend.go.release()
        await settle()
        assert client.bodies == [step_event(Step([4]))]
        backend.go.release()
        await client.task
        assert client.bodies[1:] == [step_event(Step([5], finish_reason="length")), b"data: [DONE]\n\n"]
        assert client.messages[-1].get("more_body", False) is False

    asyncio.run(scenario())


def test_requests_beyond_the_batch_wait_in_order_of_arrival() -> None:
    async def scenario() -> None:
        backend = HandBackend(batch=2)
        app = make_app(backend, "nonce")
        clients = [Client(app, prompt) for prompt in (1, 2, 3, 4)]
        await settle()
        assert backend.told == ["start 1", "start 2"]
        for _ in range(8):
            backend.go.release()
            await settle()
        await asyncio.gather(*(client.task for client in clients))
        assert [word for word in backend.told if word.startswith("start")] == ["start 1", "start 2", "start 3", "start 4"]

    asyncio.run(scenario())


def test_a_client_that_goes_away_is_closed_before_its_slot_is_given_on() -> None:
    async def scenario() -> None:
        backend = HandBackend()
        app = make_app(backend, "nonce")
        first, second = Client(app, 1), Client(app, 2)
        backend.go.release()
        await settle()
        await first.go_away()
        await settle()
        assert backend.told == ["start 1", "close 1", "start 2"]
        await second.go_away()
        assert backend.told[-1] == "close 2"

    asyncio.run(scenario())


def test_a_client_that_goes_away_while_it_waits_never_starts() -> None:
    async def scenario() -> None:
        backend = HandBackend()
        app = make_app(backend, "nonce")
        first, second, third = Client(app, 1), Client(app, 2), Client(app, 3)
        await settle()
        await second.go_away()
        await first.go_away()
        await settle()
        assert backend.told == ["start 1", "close 1", "start 3"]
        await third.go_away()

    asyncio.run(scenario())


def test_a_failure_in_mid_stream_is_an_event_and_frees_the_slot() -> None:
    async def scenario() -> None:
        backend = HandBackend()
        app = make_app(backend, "nonce")
        first, second = Client(app, 1), Client(app, 2)
        backend.go.release()
        await settle()
        backend.failure = RuntimeError("out of\nmemory")
        backend.go.release()
        await first.task
        assert first.bodies == [step_event(Step([4])), b'data: {"error": "RuntimeError: out of memory"}\n\n']
        backend.failure = None
        backend.go.release()
        backend.go.release()
        await second.task
        assert second.bodies[-1] == b"data: [DONE]\n\n"

    asyncio.run(scenario())


def test_counters_add_up_what_was_streamed() -> None:
    async def scenario() -> None:
        backend = HandBackend(steps=(Step([4], is_prefill=True), Step([5, 6], 2, 1), Step([7], 2, 0), Step([8, 9, 3], 2, 2)))
        async with http(backend) as client:
            zero = dict.fromkeys(("requests", "steps", "drafts", "draft_tokens", "accepted_tokens", "output_tokens"), 0)
            assert (await client.get("/counters")).json() == {**zero, "accepted_at_0": 0, "accepted_at_1": 0}
            for _ in range(8):
                backend.go.release()
            for _ in range(2):
                await client.post("/generate", json=ASKED)
            assert (await client.get("/counters")).json() == {
                "requests": 2,
                "steps": 8,
                "drafts": 6,
                "draft_tokens": 12,
                "accepted_tokens": 6,
                "output_tokens": 14,
                "accepted_at_0": 4,
                "accepted_at_1": 2,
            }

    asyncio.run(scenario())


def test_who_has_no_key_is_told_of_the_health_alone_and_starts_nothing() -> None:
    async def scenario() -> None:
        backend = HandBackend()
        async with http(backend) as client:
            for wrong in ({"Authorization": "Bearer another"}, {"Authorization": "nonce"}, {"Authorization": ""}):
                for method, path in (("GET", "/facts"), ("GET", "/counters"), ("POST", "/reset"), ("POST", "/generate")):
                    answer = await client.request(method, path, json=ASKED, headers=wrong)
                    assert (answer.status_code, "nonce" in answer.text) == (401, False), (wrong, path)
                health = await client.get("/health", headers=wrong)
                assert (health.status_code, "nonce" in health.text) == (200, False)
        assert backend.told == []

    asyncio.run(scenario())


def test_facts_tell_the_name_and_health_does_not() -> None:
    async def scenario() -> None:
        async with http(HandBackend()) as client:
            assert (await client.get("/health")).json() == {}
            facts = (await client.get("/facts")).json()
            assert facts == {"version": "9", "effective_config": {"method": "ngram", "k": 2}, "model": "nonce"}

    asyncio.run(scenario())


@pytest.mark.parametrize("outcome", [pytest.param(True, id="could"), pytest.param(False, id="could not")])
def test_a_reset_asks_the_backend_that_has_one(outcome: bool) -> None:
    async def scenario() -> None:
        backend = HandBackend()
        async with http(backend) as client:
            assert (await client.post("/reset")).json() == {"reset": None}
            backend.reset = lambda: outcome  # type: ignore[attr-defined]
            assert (await client.post("/reset")).json() == {"reset": outcome}

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        pytest.param(b"{", 400, "the body must be JSON: ", id="not JSON"),
        pytest.param(b"\xff", 400, "the body must be JSON: ", id="not text"),
        pytest.param(b"[]", 400, "the body must be a JSON object: got list.", id="not an object"),
        pytest.param(
            {"model": "other"}, 404, "`model` must be the name served here: got 'other'. Served: nonce.", id="stranger"
        ),
        pytest.param({"prompt": "x"}, 400, "fields must be known: got prompt. Known: prompt_ids, ", id="unknown field"),
        pytest.param(
            {"prompt_ids": []}, 400, "`prompt_ids` must be a list of token ids, at least one: got [].", id="no prompt"
        ),
        pytest.param({"prompt_ids": [1, -1]}, 400, "`prompt_ids` must be a list of token ids", id="negative token"),
        pytest.param({"prompt_ids": [1.0]}, 400, "`prompt_ids` must be a list of token ids", id="fractional token"),
        pytest.param({"output_limit": 0}, 400, "`output_limit` must be a whole number, at least 1: got 0.", id="no output"),
        pytest.param({"output_limit": True}, 400, "`output_limit` must be a whole number", id="true is no number"),
        pytest.param({"temperature": -0.1}, 400, "`temperature` must be a number, at least 0: got -0.1.", id="cold"),
        pytest.param({"temperature": float("nan")}, 400, "`temperature` must be a number, at least 0: got NaN.", id="NaN"),
        pytest.param({"top_p": 0}, 400, "`top_p` must be a number above 0 and at most 1: got 0.", id="no mass"),
        pytest.param({"top_k": -1}, 400, "`top_k` must be a whole number, at least 0: got -1.", id="negative top k"),
        pytest.param({"seed": "x"}, 400, '`seed` must be a whole number: got "x".', id="seed as text"),
        pytest.param({"ignore_eos": 1}, 400, "`ignore_eos` must be true or false: got 1.", id="1 is not true"),
        pytest.param({"category": None}, 400, "`category` must be text: got null.", id="no category"),
    ],
)
def test_a_bad_request_is_refused_in_one_line(body: bytes | dict[str, object], status: int, message: str) -> None:
    async def scenario() -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps({**ASKED, **body}).encode()
        async with http(HandBackend()) as client:
            return await client.post("/generate", content=content)

    answer = asyncio.run(scenario())
    assert answer.status_code == status
    assert answer.json()["error"].startswith(message)
    assert "\n" not in answer.json()["error"]


@pytest.mark.parametrize("missing", ["prompt_ids", "output_limit"])
def test_what_has_no_default_must_be_given(missing: str) -> None:
    body = json.dumps({key: value for key, value in ASKED.items() if key != missing}).encode()
    with pytest.raises(BadRequest, match=f"`{missing}` must be given"):
        parse_request(body, "nonce")


def test_a_request_of_the_defaults_is_greedy() -> None:
    assert asdict(parse_request(json.dumps(ASKED).encode(), "nonce")) == asdict(Generate([1, 2], 3))


def test_a_configuration_is_json_or_a_file_of_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"engine": {}}')
    assert read_config(str(tmp_path / "config.json")) == read_config(' {"engine": {}}') == {"engine": {}}


@pytest.mark.parametrize(
    ("backend", "words"),
    [
        pytest.param("vllm", "invalid choice: 'vllm' (choose from", id="no backend of ours: those that are, are listed"),
        pytest.param("simulated", "SPECSWEEP_HOST_NAME must hold the name to serve under", id="by hand, without a name"),
    ],
)
def test_a_host_that_cannot_be_started_says_why_in_one_line(backend: str, words: str) -> None:
    command = [sys.executable, "-m", "jobs.engines.host", "--backend", backend, "--port", "1", "--config", "{}"]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False)
    assert ended.returncode == 2
    assert words in ended.stderr.splitlines()[-1]
    assert "simulated" in ended.stderr
