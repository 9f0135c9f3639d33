"""The control calls: what each way of answering badly is called, and that no proxy is ever asked."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from jobs.engines.base import Endpoint
from jobs.engines.control import answers_well, call, get_json, is_healthy, post_json
from jobs.engines.process import free_port
from jobs.errors import EngineDied, EngineFailed, EngineHung, WrongEngine


class Answers(BaseHTTPRequestHandler):
    """The path says what is answered."""

    def do_GET(self) -> None:
        if self.path == "/slow":
            time.sleep(0.6)
        if self.path == "/cut":
            return
        body = {"/html": b"<html>", "/list": b"[1]", "/key": str(self.headers["X-Key"]).encode()}.get(
            self.path, b'{"ok": true}'
        )
        self.send_response({"/busy": 503, "/private": 401}.get(self.path, 200))
        self.send_header("Content-Length", str(len(body)))
        with suppress(BrokenPipeError, ConnectionResetError):  # the client of /slow has gone
            self.end_headers()
            self.wfile.write(body)

    do_POST = do_GET  # noqa: N815 - the name that the standard library looks for

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield Endpoint("127.0.0.1", server.server_port, "nonce", {"X-Key": "secret"})
        server.shutdown()
        thread.join()


def test_an_object_is_brought(endpoint: Endpoint) -> None:
    assert get_json(endpoint, "/facts") == {"ok": True}
    assert post_json(endpoint, "/reset") == {"ok": True}
    assert is_healthy(endpoint, "/health")


def test_the_headers_of_the_endpoint_are_sent(endpoint: Endpoint) -> None:
    assert call(endpoint, "GET", "/key").text == "secret"


@pytest.mark.parametrize(
    ("path", "kind", "message"),
    [
        pytest.param("/html", WrongEngine, "must answer with a JSON object: got '<html>'", id="not JSON"),
        pytest.param("/list", WrongEngine, r"must answer with a JSON object: got '\[1\]'", id="not an object"),
        pytest.param("/busy", EngineFailed, "must answer GET /busy with 2xx: got 503", id="an error status"),
        pytest.param(
            "/private", WrongEngine, "must serve as 'nonce': it refuses our key with 401", id="a key that is refused"
        ),
        pytest.param("/cut", EngineDied, "must answer GET /cut: no connection", id="a connection that is cut"),
        pytest.param("/slow", EngineHung, r"must answer GET /slow within 0\.3 s", id="too late"),
    ],
)
def test_a_bad_answer_is_an_engine_failure(endpoint: Endpoint, path: str, kind: type[EngineFailed], message: str) -> None:
    with pytest.raises(EngineFailed, match=message) as failure:
        get_json(endpoint, path, timeout_s=0.3)
    assert type(failure.value) is kind


def test_nobody_on_the_port_is_a_dead_engine() -> None:
    nobody = Endpoint("127.0.0.1", free_port(), "nonce")
    with pytest.raises(EngineDied, match="no connection"):
        get_json(nobody, "/facts")
    assert not is_healthy(nobody, "/health")
    with pytest.raises(EngineDied, match="no connection"):
        answers_well(nobody, "/health")


@pytest.mark.parametrize("path", ["/busy", "/cut", "/slow"])
def test_a_bad_answer_is_not_healthy(endpoint: Endpoint, path: str) -> None:
    assert not is_healthy(endpoint, path, timeout_s=0.3)
    assert not answers_well(endpoint, path, timeout_s=0.3)  # nor is the engine dead: it took the connection


def test_no_proxy_is_asked(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    assert is_healthy(endpoint, "/health")
