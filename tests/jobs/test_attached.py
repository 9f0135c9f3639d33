"""A server that runs already: what is refused, what is asked of it, and a session on it that starts and stops nothing."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from jobs.control import SessionControl
from jobs.engines.attached import AttachedEngine
from jobs.engines.base import Endpoint, Site
from jobs.errors import BadInput, WrongEngine
from jobs.session import SessionSite, run_session
from jobs.spec import Cell, CellOrder, Deployment, Draft, Engine, Load, Model, Sampling, SessionSpec, Workload
from storage.rows import CellResult, SessionRow
from tests.jobs.scripted_server import END, HEAD, Request, Script, event, serving

KEY = "sk-of-the-test"
SITE = Site(0, "nonce", Path("/model"), None, Path("/scratch"))
NGRAM = Draft(method="ngram", k=3)
SPECULATES = (
    "# TYPE vllm:generation_tokens_total counter\nvllm:generation_tokens_total 100\n"
    "vllm:spec_decode_num_drafts_total 10\nvllm:spec_decode_num_draft_tokens_total 30\n"
    "vllm:spec_decode_num_accepted_tokens_total 20\n"
    'vllm:cache_config_info{num_gpu_blocks="100",block_size="16"} 1\n'
)
PLAIN = "vllm:generation_tokens_total 100\n"


def deployment(draft: Draft | None = None, **changes: object) -> Deployment:
    engine = Engine(name="attached", url="http://127.0.0.1:8000", served_model="llama", batch=8)
    return Deployment(Model(path="jobs/workloads/data/bytes"), replace(engine, **changes), draft or Draft())


def answer(status: str, body: bytes) -> bytes:
    return b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n%s" % (status.encode(), len(body), body)


def server(metrics: str, key: str = "") -> Script:
    """What speaks as vLLM does, two tokens a chunk, and wants a key."""
    pages: Mapping[str, bytes] = {
        "/v1/models": b'{"data": [{"id": "llama"}]}',
        "/version": b'{"version": "0.32.0"}',
        "/metrics": metrics.encode(),
    }

    async def script(request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = request.head.split(b" ")[1].decode()
        if key and f"authorization: bearer {key}" not in request.head.decode().lower():
            writer.write(answer("401 Unauthorized", b"{}"))
        elif path == "/v1/completions":
            writer.write(HEAD + b"".join(map(event, stream(json.loads(request.body)))) + END)
        elif pages.get(path):
            writer.write(answer("200 OK", pages[path]))
        else:
            writer.write(answer("404 Not Found", b"{}"))

    return script


def stream(body: Mapping[str, int]) -> Iterator[bytes]:
    left = body["max_tokens"]
    while left > 0:
        n, left = min(2, left), left - 2
        reason = "length" if left <= 0 else None
        yield json.dumps({"choices": [{"text": "", "token_ids": [65] * n, "finish_reason": reason}]}).encode()
    yield json.dumps({"choices": [], "usage": {"completion_tokens": body["max_tokens"]}}).encode()
    yield b"[DONE]"


@contextmanager
def running(metrics: str, draft: Draft | None = None, **changes: object) -> Iterator[tuple[Deployment, Endpoint]]:
    with serving(server(metrics)) as served:
        there = deployment(draft, url=f"http://127.0.0.1:{served.port}/v1", **changes)
        yield there, AttachedEngine().launch(there, SITE)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"url": ""}, r"`engine\.url` must be the address", id="no address"),
        pytest.param({"url": "ftp://a:1"}, r"`engine\.url` .*got 'ftp://a:1'", id="scheme"),
        pytest.param({"url": "http://a:99999"}, r"`engine\.url` .*99999", id="port"),
        pytest.param({"url": "http://me:pw@a"}, r"`engine\.url`", id="password in the address"),
        pytest.param({"url": "http://a/behind/a/path"}, r"`engine\.url`", id="path"),
        pytest.param({"served_model": ""}, r"`engine\.served_model` must be the name", id="no name"),
        pytest.param({"api_key_env": "NOT_SET_HERE"}, r"`engine\.api_key_env` .*'NOT_SET_HERE'", id="no key"),
        pytest.param({"args": {"port": 1}}, r"`engine\.args` must be known: got 'port'", id="argument"),
        pytest.param({"args": {"ca_file": "/none"}}, r"`engine\.args\.ca_file` must be a file", id="CA file"),
        pytest.param({"args": {"unproven": "yes"}}, r"`engine\.args\.unproven` must be true or false", id="unproven"),
    ],
)
def test_what_cannot_be_an_attached_server_is_refused_at_plan_time(changes: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        AttachedEngine().check(deployment(**changes))


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        pytest.param("http://gpu7:8000", ("gpu7", 8000, False), id="plain"),
        pytest.param("https://api.example.org/v1/", ("api.example.org", 443, True), id="TLS, with the usual path"),
        pytest.param("http://[::1]:80", ("::1", 80, False), id="IPv6"),
    ],
)
def test_an_address_becomes_an_endpoint(url: str, expected: tuple[str, int, bool]) -> None:
    AttachedEngine().check(deployment(url=url))
    endpoint = AttachedEngine().launch(deployment(url=url), SITE)
    assert (endpoint.host, endpoint.port, endpoint.tls) == expected


def test_where_it_runs_is_no_part_of_what_is_measured() -> None:
    assert deployment().id == deployment(url="http://elsewhere:1", served_model="other", api_key_env="HOME").id
    assert deployment().gpus == 0


@pytest.mark.parametrize(
    ("metrics", "draft", "message"),
    [
        pytest.param(PLAIN, NGRAM, "must run with draft.method = 'ngram': by its counters it does not", id="falls back"),
        pytest.param(
            SPECULATES, Draft(), "must run with draft.method = 'none': by its counters it speculates", id="baseline"
        ),
        pytest.param("", NGRAM, "must show that it speculates", id="nothing to see"),
    ],
)
def test_speculation_that_is_not_as_said_is_the_wrong_engine(metrics: str, draft: Draft, message: str) -> None:
    with running(metrics, draft) as (there, endpoint), pytest.raises(WrongEngine, match=message):
        AttachedEngine().facts(there, endpoint)


@pytest.mark.parametrize(
    ("metrics", "draft", "args", "speculation"),
    [
        pytest.param(SPECULATES, NGRAM, {}, "by its counters; draft.k = 3 is the user's word", id="seen"),
        pytest.param(PLAIN, Draft(), {}, "none", id="baseline"),
        pytest.param("", NGRAM, {"unproven": True}, "not told", id="believed"),
    ],
)
def test_how_speculation_is_known_is_recorded(metrics: str, draft: Draft, args: dict[str, object], speculation: str) -> None:
    with running(metrics, draft, args=args) as (there, endpoint):
        facts = AttachedEngine().facts(there, endpoint)
    assert facts.version == "0.32.0"
    assert facts.effective_config["speculation"] == speculation
    assert facts.kv_capacity_tokens == (1600 if metrics == SPECULATES else None)


def test_another_name_is_the_wrong_engine() -> None:
    with running(PLAIN, served_model="mistral") as (there, endpoint), pytest.raises(WrongEngine, match="serves as 'llama'"):
        AttachedEngine().facts(there, endpoint)


def test_a_session_on_it_measures_with_the_key_and_records_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_OF_THE_TEST", KEY)
    with serving(server(SPECULATES, KEY)) as served:
        there = deployment(NGRAM, url=f"http://127.0.0.1:{served.port}", api_key_env="KEY_OF_THE_TEST")
        cell = Cell(there, Workload(limit=3, output_limit=6), Sampling(), Load(concurrency=2))
        spec = SessionSpec("a-session", "an-invocation", there, (CellOrder(cell, 1),), 0.0)
        events = list(run_session(spec, SessionSite(), SessionControl()))
    (result,) = (event for event in events if isinstance(event, CellResult))
    ready, ended = (event for event in events if isinstance(event, SessionRow))
    assert (ready.status, ended.status, result.cell.status, result.cell.error) == ("ok", "ok", "ok", "")
    assert {tuple(request.chunk_tokens) for request in result.requests} == {(2, 2, 2)}
    assert result.cell.counters_before["drafts"] == 10
    assert KEY not in repr(events)


def refused(there: Deployment) -> str:
    """Why a session on it did not start."""
    (row, *_) = run_session(SessionSpec("a-session", "an-invocation", there, (), 0.0), SessionSite(), SessionControl())
    assert isinstance(row, SessionRow)
    assert (row.status, row.error_kind) == ("failed", "engine_did_not_start")
    return row.error


def test_a_server_that_does_not_run_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    began_s = time.monotonic()
    error = refused(deployment(url=f"http://127.0.0.1:{port}", start_timeout_s=600))
    assert time.monotonic() - began_s < 60
    assert f"must run already: 127.0.0.1:{port} takes no connection." in error
    assert "refused" in error


def test_a_server_that_takes_connections_and_says_nothing_is_given_its_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        error = refused(deployment(url=f"http://127.0.0.1:{deaf.getsockname()[1]}", start_timeout_s=0.1))
    assert re.search(r"did not within \d+ s \(engine.start_timeout_s=0.1\)", error)


def test_a_server_that_takes_connections_and_cuts_them_is_given_its_time() -> None:
    """A load balancer whose servers are still loading does so."""

    async def cut(request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    with serving(cut) as served:
        error = refused(deployment(url=f"http://127.0.0.1:{served.port}", start_timeout_s=2))
        assert len(served.requests) > 1
    assert re.search(r"must answer /v1/models: .* did not within \d+ s", error)


def test_a_server_that_refuses_the_key_fails_the_session_in_words() -> None:
    with serving(server(PLAIN, KEY)) as served:
        error = refused(deployment(url=f"http://127.0.0.1:{served.port}", start_timeout_s=1))
    assert "must answer /v1/models" in error
