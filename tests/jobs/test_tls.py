"""Endpoints from afar: over TLS, through a proxy, by name; and what a row says when that fails."""

from __future__ import annotations

import asyncio
import base64
import datetime
import ipaddress
import json
import re
import select
import socket
import socketserver
import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from jobs.engines.base import Endpoint
from jobs.engines.control import call, get_json, is_healthy
from jobs.engines.process import free_port
from jobs.errors import EngineDied, EngineFailed
from jobs.load.base import Measured
from jobs.load.drive import drive
from jobs.load.lines import Lines
from jobs.load.proxy import Proxy
from jobs.load.sealed import Sealed
from tests.jobs.scripted_server import END, HEAD, Request, Script, event, serving
from tests.jobs.test_drive import Talk, answer_well, step, talks, traffic_to

WHOLE = HEAD + event(step([5], finish="stop")) + event(b"[DONE]") + END
SECRET = "s3cret"


Signer = tuple[x509.Certificate, ec.EllipticCurvePrivateKey]


def certificate(folder: Path, name: str, *, ca: bool, signer: Signer | None = None) -> Signer:
    """A key and a certificate as `folder/name.pem`, by itself or by its signer."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.timezone.utc)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    by, by_key = (signer[0].subject, signer[1]) if signer else (subject, key)
    made = (
        x509.CertificateBuilder(by, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names[:1] if name == "only-localhost" else names), critical=False)
        .sign(by_key, hashes.SHA256())
    )
    (folder / f"{name}.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + made.public_bytes(serialization.Encoding.PEM)
    )
    return made, key


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two authorities that do not know each other, and servers of the first."""
    folder = tmp_path_factory.mktemp("pki")
    ours = certificate(folder, "ca", ca=True)
    certificate(folder, "stranger", ca=True)
    certificate(folder, "server", ca=False, signer=ours)
    certificate(folder, "only-localhost", ca=False, signer=ours)
    return folder


def context(pki: Path, name: str = "server") -> ssl.SSLContext:
    made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    made.load_cert_chain(pki / f"{name}.pem")
    return made


def drive_to(endpoint: Endpoint, conversations: list[Talk] | None = None, **load: object) -> Measured:
    return drive(replace(traffic_to(0, conversations or talks(1), **load), endpoint=endpoint))


def trusted(pki: Path, port: int, host: str = "127.0.0.1", **more: object) -> Endpoint:
    return Endpoint(host, port, "nonce", tls=True, ca_file=str(pki / "ca.pem"), **more)


def run(pki: Path, script: Script, conversations: list[Talk] | None = None, **load: object) -> Measured:
    with serving(script, context(pki)) as server:
        return drive_to(trusted(pki, server.port), conversations, **load)


def writes(*parts: bytes, cut: bool = False, close: bool = False) -> Script:
    """Answer with parts, each a TLS record of its own at least; then go on, say goodbye, or cut TCP below TLS."""

    async def script(_: Request, __: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
        await writer.drain()
        if cut:
            writer.get_extra_info("socket").shutdown(socket.SHUT_WR)
        if cut or close:
            writer.close()

    return script


def error_of(measured: Measured) -> str:
    (row,) = measured.requests
    return row.error


# --- TLS


def test_a_cell_over_tls_is_timed_by_the_monotonic_clock(pki: Path) -> None:
    measured = run(pki, answer_well, talks(6), concurrency=2)
    assert [row.error for row in measured.requests] == [""] * 6
    assert measured.requests[3].output_ids == [3, 3, 9]
    assert all(19e6 < row.chunk_gap_ns[1] < 200e6 for row in measured.requests)
    assert (measured.clock, measured.clock_stepped) == ("monotonic", False)


def test_lines_are_kept_although_tls_speaks_on_idle_ones(pki: Path) -> None:
    """Session tickets come after the handshake, on lines that idle."""
    with serving(answer_well, context(pki)) as server:
        measured = drive_to(trusted(pki, server.port), talks(3, turns=3), concurrency=3)
        assert server.connections == 3
    assert [row.error for row in measured.requests] == [""] * 9


def test_the_server_is_told_the_name_that_is_asked_for(pki: Path) -> None:
    asked: list[str | None] = []
    served = context(pki)
    served.sni_callback = lambda _, name, __: asked.append(name)
    with serving(writes(WHOLE), served) as server:
        assert error_of(drive_to(trusted(pki, server.port, "localhost"))) == ""
    assert asked == ["localhost"]


@pytest.mark.parametrize("size", [pytest.param(1, id="a byte a record"), pytest.param(7, id="7 bytes a record")])
def test_an_answer_may_be_cut_into_records_anywhere(pki: Path, size: int) -> None:
    measured = run(pki, writes(*(WHOLE[at : at + size] for at in range(0, len(WHOLE), size))))
    assert (error_of(measured), measured.requests[0].output_ids) == ("", [5])


def test_a_burst_of_records_is_read_to_its_end_and_counted_as_merged(pki: Path) -> None:
    """The server says nothing more, so that what would be left in the TLS object would never come."""
    count = 800
    events = b"".join(event(step([i])) for i in range(count - 1)) + event(step([0], finish="length")) + event(b"[DONE]")
    assert len(events) > 64 << 10
    measured = run(pki, writes(HEAD + events + END))
    assert error_of(measured) == ""
    assert measured.requests[0].output_ids == [*range(count - 1), 0]
    assert 1 <= measured.merged_reads <= 40


def test_a_read_leaves_nothing_in_the_tls_object(pki: Path) -> None:
    with sealed_pair(pki) as (line, server):
        server.sendall(b"x" * 1000)
        select.select([line.sock], [], [], 5)
        assert line.recvmsg(10, 0)[0] == b"x" * 1000
        with pytest.raises(BlockingIOError):
            line.recvmsg(10, 0)


@contextmanager
def sealed_pair(pki: Path) -> Iterator[tuple[Sealed, ssl.SSLSocket]]:
    """Both ends of a connection whose handshake is over, tickets and all."""
    ours, theirs = socket.socketpair()
    accepted: list[ssl.SSLSocket] = []
    thread = threading.Thread(target=lambda: accepted.append(context(pki).wrap_socket(theirs, server_side=True)))
    thread.start()
    client = ssl.create_default_context(cafile=str(pki / "ca.pem")).wrap_socket(ours, server_hostname="localhost")
    thread.join(5)
    poller = select.poll()
    poller.register(client.fileno(), select.POLLIN)
    client.setblocking(False)
    with client, accepted[0] as server:
        line = Sealed(client, poller)
        with pytest.raises(BlockingIOError):
            line.recvmsg(10, 0)
        yield line, server


LENGTHLESS = b"HTTP/1.1 200 OK\r\n\r\ndata: " + step([5], finish="stop") + b"\n\ndata: [DONE]\n\n"
CUT = "the server closed the connection without TLS's close_notify before its answer ended"


@pytest.mark.parametrize(
    ("script", "error"),
    [
        pytest.param(writes(WHOLE, cut=True), "", id="cut after a whole answer"),
        pytest.param(writes(WHOLE, close=True), "", id="closed after a whole answer"),
        pytest.param(writes(WHOLE[:150], cut=True), CUT, id="cut within an answer"),
        pytest.param(writes(LENGTHLESS, cut=True), CUT, id="cut where closing ends the answer"),
        pytest.param(writes(LENGTHLESS, close=True), "", id="closed where closing ends the answer"),
    ],
)
def test_a_cut_connection_is_no_end_of_an_answer(pki: Path, script: Script, error: str) -> None:
    assert error_of(run(pki, script)) == error


def test_a_line_that_is_opened_late_shakes_hands_before_its_request_counts_as_sent(pki: Path) -> None:
    closing = HEAD.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n") + WHOLE[len(HEAD) :]
    with serving(writes(closing, close=True), context(pki)) as server:
        measured = drive_to(trusted(pki, server.port), talks(5), concurrency=1)
        assert server.connections == 5
    assert [row.error for row in measured.requests] == [""] * 5
    assert all(sent > 300_000 for sent in measured.late_send_ns[1:])  # a handshake takes so long; it is not hidden


def test_a_long_request_goes_out_in_parts(pki: Path) -> None:
    async def script(request: Request, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + event(step([len(json.loads(request.body)["prompt_ids"])], "stop")) + event(b"[DONE]") + END)

    (talk,) = talks(1)
    measured = run(pki, script, [replace(talk, first=list(range(400_000)))])
    assert (error_of(measured), measured.requests[0].output_ids) == ("", [400_000])


def test_an_answer_that_comes_before_the_request_is_sent_is_heard(pki: Path) -> None:
    """The server reads no more than the first bytes, and says that it is too much."""
    done = threading.Event()

    def serve(listener: socket.socket) -> None:
        with context(pki).wrap_socket(listener.accept()[0], server_side=True) as peer:
            peer.recv(100)
            peer.sendall(b"HTTP/1.1 413 Too Large\r\ncontent-length: 8\r\n\r\ntoo much")
            done.wait(10)

    (talk,) = talks(1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=[listener])
        thread.start()
        endpoint = trusted(pki, listener.getsockname()[1])
        measured = drive_to(endpoint, [replace(talk, first=list(range(2_000_000)))])
        done.set()
        thread.join(5)
    assert error_of(measured) == "HTTP 413: too much"


@pytest.mark.parametrize(
    ("served", "host", "ca_file", "error"),
    [
        pytest.param(
            "server", "127.0.0.1", "stranger.pem", "the certificate was refused: unable to get local issuer", id="another CA"
        ),
        pytest.param("server", "127.0.0.1", "", "the certificate was refused: ", id="the system's trust"),
        pytest.param(
            "only-localhost", "127.0.0.1", "ca.pem", "the certificate was refused: IP address mismatch", id="another name"
        ),
        pytest.param(
            "server", "127.0.0.1", "none.pem", "the CA file .*none.pem cannot be used: no such file", id="no CA file"
        ),
        pytest.param(
            "server", "no-such.invalid", "ca.pem", r"the name no-such\.invalid was not resolved: ", id="no such name"
        ),
    ],
)
def test_an_endpoint_that_cannot_be_trusted_or_reached_is_a_row(
    pki: Path, served: str, host: str, ca_file: str, error: str
) -> None:
    ca_file = str(pki / ca_file) if ca_file else ""
    with serving(writes(WHOLE), context(pki, served)) as server:
        measured = drive_to(Endpoint(host, server.port, "nonce", tls=True, ca_file=ca_file), talks(3), concurrency=2)
        assert server.requests == []
    assert len(measured.requests) == 3
    for row in measured.requests:
        assert re.match(error, row.error), row.error
        assert "\n" not in row.error


def test_a_server_that_speaks_no_tls_is_a_row(pki: Path) -> None:
    class Connection(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(1)
            self.request.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Connection) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        told = error_of(drive_to(trusted(pki, server.server_address[1])))
        server.shutdown()
        thread.join(5)
    assert re.fullmatch("the TLS handshake failed: (wrong version number|packet length too long|record layer failure)", told)


def test_a_name_that_is_not_resolved_is_a_row_without_tls_too() -> None:
    assert error_of(drive_to(Endpoint("no-such.invalid", 80, "nonce"))).startswith(
        "the name no-such.invalid was not resolved"
    )


def test_the_address_that_answers_is_taken() -> None:
    """As for a server on 127.0.0.1 whose name means ::1 as well."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        lines = Lines(select.poll(), "127.0.0.1", port)
        dead = (socket.AF_INET, ("127.0.0.1", free_port()))
        lines.addresses = [dead, (socket.AF_INET, ("127.0.0.1", port))]
        lines.open_ahead(2)
        assert (lines.addresses, len(lines.idle)) == ([(socket.AF_INET, ("127.0.0.1", port))], 2)
        for line in list(lines.idle):
            lines.drop(line)


# --- proxies


@dataclass
class Gate:
    port: int
    heads: list[bytes] = field(default_factory=list)


@contextmanager
def gate(refusal: bytes = b"") -> Iterator[Gate]:
    """A CONNECT proxy, which refuses all with `refusal` where that is given; it forwards absolute forms as they are."""
    opened = Gate(0)

    class Connection(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            head = b""
            while b"\r\n\r\n" not in head:
                head += self.request.recv(1)
            opened.heads.append(head)
            if refusal:
                self.request.sendall(refusal)
                return
            host, _, port = head.split()[1].decode().rpartition(":")
            with socket.create_connection((host, int(port))) as far:
                for byte in b"HTTP/1.1 200 Connection established\r\nvia: gate\r\n\r\n":
                    self.request.sendall(bytes([byte]))
                pump(self.request, far)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Connection) as server:
        opened.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield opened
        server.shutdown()
        thread.join()


def pump(near: socket.socket, far: socket.socket) -> None:
    """Carry bytes both ways until one end closes."""
    to = {near: far, far: near}
    while True:
        for sock in select.select([near, far], [], [])[0]:
            try:
                data = sock.recv(65_536)
                if not data:
                    return
                to[sock].sendall(data)
            except OSError:
                return


@pytest.mark.parametrize("tls", [pytest.param(True, id="TLS"), pytest.param(False, id="plain")])
def test_a_cell_goes_through_a_proxy(pki: Path, tls: bool) -> None:
    with gate() as proxy, serving(answer_well, context(pki) if tls else None) as server:
        secret = f"me:{SECRET}%40@127.0.0.1:{proxy.port}"
        endpoint = replace(trusted(pki, server.port, "localhost"), tls=tls, proxy=secret)
        measured = drive_to(endpoint, talks(4, turns=2), concurrency=2)
        assert server.connections == 2
        assert all(request.head.startswith(b"POST /generate HTTP/1.1\r\n") for request in server.requests)
    assert [row.error for row in measured.requests] == [""] * 8
    assert measured.clock == ("kernel" if sys.platform == "linux" and not tls else "monotonic")
    assert len(proxy.heads) == 2
    assert proxy.heads[0].startswith(b"CONNECT localhost:%d HTTP/1.1\r\n" % server.port)
    assert base64.b64encode(f"me:{SECRET}@".encode()) in proxy.heads[0]
    assert SECRET not in repr(endpoint) + repr(measured)


REFUSED = b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 4\r\n\r\nno!\n"


@pytest.mark.parametrize(
    ("refusal", "error"),
    [
        pytest.param(REFUSED, "the proxy refused the connection: HTTP/1.1 407 Proxy Authentication Required", id="refused"),
        pytest.param(b"SSH-2.0\r\n\r\n", "the proxy refused the connection: SSH-2.0", id="no proxy"),
        pytest.param(b"HTTP/1.1 200", "the proxy closed the connection without an answer", id="half an answer"),
    ],
)
def test_a_proxy_that_refuses_is_a_row(pki: Path, refusal: bytes, error: str) -> None:
    with gate(refusal) as proxy:
        endpoint = trusted(pki, 443, "example.invalid", proxy=f"me:{SECRET}@127.0.0.1:{proxy.port}")
        measured = drive_to(endpoint, talks(3), concurrency=2)
    assert [row.error for row in measured.requests] == [error] * 3


@pytest.mark.parametrize(
    ("proxy", "error"),
    [
        pytest.param(f"me:{SECRET}@127.0.0.1", "the proxy must be the host:port of an HTTP proxy", id="without a port"),
        pytest.param(f"me:{SECRET}@127.0.0.1:no", "the proxy must be the host:port of an HTTP proxy", id="no number"),
        pytest.param(f"socks5://me:{SECRET}@h:1", "the proxy must be the host:port of an HTTP proxy", id="another kind"),
        pytest.param(f"me:{SECRET}@no-such.invalid:1", "the name no-such.invalid was not resolved", id="no such name"),
    ],
)
def test_a_proxy_that_is_none_is_a_row_that_keeps_its_secret(pki: Path, proxy: str, error: str) -> None:
    told = error_of(drive_to(trusted(pki, 443, proxy=proxy)))
    assert told.startswith(error)
    assert SECRET not in told


def test_nobody_at_the_proxys_port_is_a_row(pki: Path) -> None:
    told = error_of(drive_to(trusted(pki, 443, proxy=f"127.0.0.1:{free_port()}")))
    assert told == "connection refused"


def test_a_proxy_shows_no_secret() -> None:
    proxy = Proxy.of(f"http://me:{SECRET}@[::1]:3128/")
    assert repr(proxy) == "Proxy([::1]:3128)"
    assert proxy.authorization == "Basic " + base64.b64encode(f"me:{SECRET}".encode()).decode()


# --- control calls

OK = b'HTTP/1.1 200 OK\r\ncontent-length: 12\r\nconnection: close\r\n\r\n{"ok": true}'


def test_control_calls_go_the_same_way(pki: Path) -> None:
    with gate() as proxy, serving(writes(OK, close=True), context(pki)) as server:
        direct = trusted(pki, server.port)
        assert get_json(direct, "/facts") == {"ok": True}
        assert get_json(replace(direct, proxy=f"me:{SECRET}@127.0.0.1:{proxy.port}"), "/facts") == {"ok": True}
    assert len(proxy.heads) == 1
    assert base64.b64encode(f"me:{SECRET}".encode()) in proxy.heads[0]


def test_control_calls_trust_nobody_else(pki: Path) -> None:
    with serving(writes(OK, close=True), context(pki)) as server:
        endpoint = replace(trusted(pki, server.port), ca_file=str(pki / "stranger.pem"))
        with pytest.raises(EngineDied, match="CERTIFICATE_VERIFY_FAILED"):
            call(endpoint, "GET", "/facts")
        assert not is_healthy(endpoint, "/health")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"proxy": f"me:{SECRET}@h"}, "must be usable: the proxy must be the host:port", id="no proxy"),
        pytest.param({"ca_file": "/none.pem"}, "must be usable: the CA file /none.pem cannot be used", id="no CA file"),
    ],
)
def test_control_calls_name_a_way_that_cannot_be_gone(pki: Path, change: dict[str, str], message: str) -> None:
    with pytest.raises(EngineFailed, match=message) as failure:
        call(replace(trusted(pki, 443), **change), "GET", "/facts")
    assert SECRET not in str(failure.value)


def test_control_calls_tell_the_proxys_refusal_and_no_secret(pki: Path) -> None:
    with gate(REFUSED) as proxy, pytest.raises(EngineDied, match="407 Proxy Authentication Required") as failure:
        call(trusted(pki, 443, proxy=f"me:{SECRET}@127.0.0.1:{proxy.port}"), "GET", "/facts")
    assert SECRET not in str(failure.value)


def test_an_ipv6_address_stands_in_brackets() -> None:
    assert Endpoint("::1", 80, "nonce").authority == "[::1]:80"
