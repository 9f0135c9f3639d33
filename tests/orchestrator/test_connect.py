"""An address that leads to no Ray is refused in one line and in time; nothing that it names is imported or started."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.errors import BadInput
from orchestrator.config import compose
from orchestrator.schedule import connect
from orchestrator.schedule.connect import connected
from orchestrator.settings import Cluster, Kind, check_address


@pytest.fixture
def deaf() -> Iterator[str]:
    """Something that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("address", ["h:1", "10.0.0.1:6379", "[::1]:65535", "head.example:6379"])
def test_an_address_of_ray_is_taken(address: str) -> None:
    check_address(address)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "local",
        "os://x:1",
        "ray://",
        "ray://head.example:10001",
        "h",
        "h:",
        "h:0",
        "h:65536",
        "h:1\n",
        "h :1",
        "::1:6379",
        "h:1/a",
        "h:\u0661",
        "RAY://h:1",
    ],
)
def test_what_is_no_address_of_ray_is_refused_before_ray_sees_it(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match=r"`cluster.address` must be auto or HOST:PORT, .*: got .* jobs.submit ray"):
        Cluster(address=address)
    if address:
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(BadInput, match="RAY_ADDRESS must be"), connected(Cluster(kind=Kind.ray)):
            pass


def test_what_is_no_ray_is_told_in_time(deaf: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "ANSWER_LIMIT_S", 0.5)
    with pytest.raises(BadInput, match=r"no Ray answered within 0\.5 s"), connected(Cluster(Kind.ray, deaf)):
        pass
    monkeypatch.setenv("RAY_ADDRESS", deaf)
    with pytest.raises(BadInput, match=r"no Ray answered within 0\.5 s"), connected(Cluster(Kind.ray)):
        pass


@pytest.mark.parametrize(
    ("told", "message"),
    [
        pytest.param(
            "AuthenticationError: InvalidAuthToken", "must be given its token: .*RAY_AUTH_TOKEN_PATH", id="the token"
        ),
        pytest.param("a traceback\nImportError: no grpc", r"does not answer as Ray: ImportError: no grpc\)", id="another"),
    ],
)
def test_a_refusal_is_one_line_with_its_cause(deaf: str, told: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "ASK_CLUSTER", f"import sys; sys.exit({told!r})")
    with pytest.raises(BadInput, match=message) as refusal, connected(Cluster(Kind.ray, deaf)):
        pass
    assert "\n" not in str(refusal.value)


ASKS_FOR_A_TOKEN = "import os, sys; sys.exit(0 if os.environ.get('RAY_AUTH_MODE') == 'token' else 'AuthenticationError')"


@pytest.mark.parametrize("place", ["RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", ""])
def test_a_token_that_is_there_is_sent_where_one_is_asked_for_only(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(connect, "ASK_CLUSTER", ASKS_FOR_A_TOKEN)
    with pytest.raises(BadInput, match="must be given its token"):
        connect._trust_of("h:1")
    (tmp_path / "token").write_text("x")
    if place:
        monkeypatch.setenv(place, str(tmp_path / "token"))  # a path is a token, too
    else:
        (tmp_path / ".ray").mkdir()
        (tmp_path / ".ray" / "auth_token").write_text("x")
    assert connect._trust_of("h:1") == {"RAY_AUTH_MODE": "token"}
    monkeypatch.setattr(connect, "ASK_CLUSTER", "")
    assert connect._trust_of("h:1") == {"RAY_AUTH_MODE": "disabled"}
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    assert connect._trust_of("h:1") == {}, "who says how is obeyed"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("cluster.pools.gpu={nodes: 1000000}", "`cluster.pools.gpu.nodes` must be from 1 to 10000: got 1000000"),
        ("cluster.pools.gpu={nodes: 0}", "`cluster.pools.gpu.nodes` must be from 1"),
        ("cluster.pools.gpu={cpus: 0}", "`cluster.pools.gpu.cpus` must be above 0 and finite: got 0"),
        ("cluster.pools.gpu={cpus: nan}", "`cluster.pools.gpu.cpus` must be above 0 and finite: got nan"),
        ("cluster.pools.gpu={gpus: -1}", "`cluster.pools.gpu.gpus` must be at least 0: got -1"),
        ("cluster.pools.gpu={engines: [vlm]}", "`cluster.pools.gpu.engines` must name engines: got 'vlm'. Known: .*vllm"),
        ("cluster.marks.vlm=x", "`cluster.marks` must name engines: got 'vlm'"),
        ("cluster.node_wait_s=inf", "`cluster.node_wait_s` must be at least 0 and finite: got inf"),
        ("cluster.gpu_hour_price=-1", "`cluster.gpu_hour_price` must be at least 0 and finite, or null: got -1"),
        ("cluster.num_cpus=0", "`cluster.num_cpus` must be at least 1, or null for all: got 0"),
        ("cluster.num_gpus=-1", "`cluster.num_gpus` must be at least 0, or null for all: got -1"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused_at_once(given: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        compose(["engine=simulated", given])


def test_an_onlooker_of_our_own_ray_is_none_whatever_a_release_of_ray_gives_it() -> None:
    assert [start("the node", "more", raise_on_failure=True) for start in connect.ONLOOKERS.values()] == [None] * 3
