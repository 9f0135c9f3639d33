"""Whatever an address answers that is no Ray dashboard is one line, and no token is ever shown."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from jobs.submit import ray_address, ray_client, ray_jobs
from jobs.submit.__main__ import main

Serve = Callable[..., str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Gives the address of a server that answers all that asks for `only` with these bytes; else it never answers."""
    open_sockets: list[socket.socket] = []

    def start(answer: bytes, only: bytes = b"") -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        open_sockets.append(listener)
        threading.Thread(target=answer_all, args=(listener, answer, only, open_sockets), daemon=True).start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for each in open_sockets:
        each.close()


def answer_all(listener: socket.socket, answer: bytes, only: bytes, open_sockets: list[socket.socket]) -> None:
    while True:
        try:
            connection, _ = listener.accept()
            open_sockets.append(connection)
            if only in connection.recv(65536) and answer:
                connection.sendall(answer)
                connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            return


def http_answer(status: str, body: str = "", header: str = "Server: x") -> bytes:
    return f"HTTP/1.1 {status}\r\n{header}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()


def refusal(address: str, capsys: pytest.CaptureFixture[str], *command: str) -> str:
    assert main([*(command or ("list",)), "--address", address]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        pytest.param(b"SSH-2.0-OpenSSH_9.6\r\n", "nothing there speaks HTTP", id="no HTTP"),
        pytest.param(http_answer("500 Oh"), "HTTP 500", id="500"),
        pytest.param(http_answer("502 Bad"), "HTTP 502", id="502"),
        pytest.param(http_answer("503 Busy", "<html>\n</html>"), "HTTP 503", id="503"),
        pytest.param(http_answer("404 No"), "HTTP 404", id="404"),
        pytest.param(http_answer("302 There", header="Location: /api/version"), "Exceeded 30 redirects", id="redirects"),
        pytest.param(http_answer("200 OK", "<html>"), "its /api/version is not Ray's", id="no JSON"),
        pytest.param(http_answer("200 OK", "{}"), "its /api/version is not Ray's", id="no version"),
        pytest.param(http_answer("200 OK", "[1]"), "its /api/version is not Ray's", id="a list"),
        pytest.param(http_answer("200 OK", '{"ray_version": 2}'), "its /api/version is not Ray's", id="a number"),
    ],
)
@pytest.mark.parametrize("command", [["list"], ["ray"]], ids=["list", "ray"])
def test_what_is_no_ray_dashboard_is_one_line_with_the_remedy(
    answer: bytes, why: str, command: list[str], serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    address = serve(answer)
    line = refusal(address, capsys, *command)
    assert line.startswith(f"`--address` must be where a Ray dashboard answers: got {address}, and {why}")
    assert line.endswith("Name the dashboard's address, as http://HEAD:8265.")


def test_a_server_that_never_answers_is_one_line_after_a_while(
    serve: Serve, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_address, "ANSWER_LIMIT_S", 0.2)
    assert "no answer within 0.2 s" in refusal(serve(b""), capsys)


@pytest.mark.parametrize("command", [["list"], ["status", "a-job"], ["ray"]], ids=" ".join)
def test_a_dashboard_that_answers_its_version_and_then_no_more_is_one_line(
    command: list[str], serve: Serve, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_client, "REQUEST_LIMIT_S", 0.5)
    monkeypatch.setattr(ray_jobs, "is_open", lambda address: False)
    address = serve(http_answer("200 OK", '{"ray_version": "2.50.0", "version": "4"}'), b"/api/version")
    assert f"got {address}, and it answered at first, and then no more." in refusal(address, capsys, *command)


@pytest.mark.parametrize(
    "address",
    [
        "http://h:abc",
        "http://h:99999",
        "http://a b:1",
        "http://h:1\n",
        "http://",
        "ftp://h:1",
        "http://[::1",
        "http://ü:1",
        "",
    ],
)
def test_what_is_no_http_address_is_one_line(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = refusal(address, capsys)
    assert line.startswith(f"`--address` must be the http address of a Ray dashboard: got {address!r}.")
    assert line.endswith("Name the dashboard's address, as http://HEAD:8265.")


def test_an_answer_that_is_rays_only_at_first_is_one_line(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    address = serve(http_answer("200 OK", '{"ray_version": "2.50.0"}'))
    assert f"got {address}, and its answer is not Ray's" in refusal(address, capsys)


@pytest.mark.parametrize("token", ["hush\nhush", "hush hush", "hush\x01", "hüsh", " "])
def test_a_token_that_no_header_holds_is_refused_and_not_shown(
    token: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", token)
    line = refusal("http://127.0.0.1:1", capsys)
    assert line.startswith("The cluster's token must be one word of ASCII: got something else from RAY_AUTH_TOKEN.")
    assert "hush" not in line


def test_a_file_of_a_token_that_is_not_there_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/no/token")
    assert "must be in a file that can be read: got /no/token." in refusal("http://127.0.0.1:1", capsys)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "~nobody-here/token")
    assert "must be in a file that can be read: got ~nobody-here/token." in refusal("http://127.0.0.1:1", capsys)
