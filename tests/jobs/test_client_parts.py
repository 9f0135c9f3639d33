"""The parts of the load client that need no server: the agenda, the wire, the clocks, the outbox."""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.load import clock, outbox
from jobs.load.agenda import ANY, Agenda, Turn
from jobs.load.client import Client
from jobs.load.outbox import Outbox
from jobs.load.wire import Message, Plan, Reply, Unpacker, pack
from tests.jobs.scripted_server import END, HEAD, Request, event, serving


def turn(index: int, number: int = 0, *, has_more: bool = False, t_due: int = ANY) -> Turn:
    return Turn(index, number, has_more, t_due, b"")


def agenda_of(slots: int, *turns: Turn) -> Agenda:
    agenda = Agenda(slots)
    for each in turns:
        agenda.add(each)
    agenda.start(1000)
    return agenda


def ready(agenda: Agenda) -> list[tuple[int, int, int]]:
    """Conversation, turn and due time of what is to be sent now."""
    taken = [(each.index, each.turn, each.t_due) for each in agenda.ready]
    agenda.ready.clear()
    return taken


def test_a_closed_loop_fills_its_slots_and_each_end_admits_the_next() -> None:
    turns = [turn(i) for i in range(4)]
    agenda = agenda_of(2, *turns)
    assert ready(agenda) == [(0, 0, 1000), (1, 0, 1000)]
    agenda.end(turns[1], 1500, failed=False)
    assert ready(agenda) == [(2, 0, 1500)]
    agenda.end(turns[0], 1600, failed=True)
    assert ready(agenda) == [(3, 0, 1600)]
    assert not agenda.is_over
    agenda.end(turns[2], 1700, failed=False)
    agenda.end(turns[3], 1700, failed=False)
    assert agenda.is_over


def test_a_conversation_keeps_its_slot_until_its_last_turn() -> None:
    first = turn(0, has_more=True)
    agenda = agenda_of(1, first, turn(1))
    ready(agenda)
    agenda.end(first, 1500, failed=False)
    assert ready(agenda) == []
    second = turn(0, 1)
    agenda.go_on(second)
    assert ready(agenda) == [(0, 1, 1500)]
    agenda.end(second, 1900, failed=False)
    assert ready(agenda) == [(1, 0, 1900)]


@pytest.mark.parametrize(
    "by_failure", [pytest.param(True, id="its turn failed"), pytest.param(False, id="the worker released it")]
)
def test_a_conversation_that_ends_early_frees_its_slot(by_failure: bool) -> None:
    first = turn(0, has_more=True)
    agenda = agenda_of(1, first, turn(1))
    ready(agenda)
    agenda.end(first, 1500, failed=by_failure)
    if not by_failure:
        agenda.release(0)
    assert ready(agenda) == [(1, 0, 1500)]


def test_an_open_loop_calls_turns_at_their_time() -> None:
    agenda = agenda_of(0, turn(0, t_due=50), turn(1, t_due=20), turn(2, t_due=90))
    assert agenda.until_due(1000, 500) == 20
    agenda.call(1019)
    assert ready(agenda) == []
    agenda.call(1050)
    assert ready(agenda) == [(1, 0, 1020), (0, 0, 1050)]
    assert agenda.until_due(1100, 500) == 0
    assert agenda.until_due(1000, 10) == 10


MESSAGES = st.lists(st.tuples(st.sampled_from(["send", "tick"]), st.integers(), st.binary(max_size=300)), max_size=8)


@given(messages=MESSAGES, size=st.integers(1, 400))
def test_messages_survive_any_cut(messages: list[tuple[str, int, bytes]], size: int) -> None:
    wire = b"".join(pack(message) for message in messages)
    unpacker = Unpacker()
    heard = [message for at in range(0, len(wire), size) for message in unpacker.feed(wire[at : at + size])]
    assert heard == messages


def test_the_outbox_never_blocks_and_loses_nothing() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        box = Outbox(ours)
        messages = [("reply", i, bytes(50_000)) for i in range(100)]
        for message in messages:
            box.say(message)
        assert box.flush()  # the pipe is full
        unpacker, heard = Unpacker(), []
        while box.queue:
            heard += unpacker.feed(theirs.recv(1 << 20))
            box.flush()
        ours.close()
        while data := theirs.recv(1 << 20):
            heard += unpacker.feed(data)
    assert heard == messages


def test_the_outbox_keeps_ended_turns_back_until_they_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "KEEP_BYTES", 1000)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        box = Outbox(ours)
        box.keep(("reply", bytes(400)))
        box.keep(("reply", bytes(400)))
        assert (len(box.kept), len(box.queue)) == (2, 0)
        box.keep(("reply", bytes(400)))
        assert (len(box.kept), len(box.queue), box.kept_bytes) == (0, 3, 0)


def test_the_outbox_is_full_until_enough_was_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "MOST_UNHEARD", 1_000_000)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        box = Outbox(ours)
        for _ in range(30):
            box.say(("reply", bytes(50_000)))
        box.flush()
        assert box.is_full
        heard = 0
        while box.queue:
            heard += len(theirs.recv(1 << 20))
            box.flush()
        assert (box.is_full, box.queued_bytes) == (False, 0)
        assert heard > 1_000_000


def test_a_client_that_nobody_hears_sends_no_more_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "MOST_UNHEARD", 20_000)
    monkeypatch.setattr(outbox, "KEEP_BYTES", 1_000)
    arrived: list[float] = []

    async def answer(request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.append(time.monotonic())
        writer.write(HEAD + event(b"x" * 10_000) + END)

    ours, theirs = socket.socketpair()
    with serving(answer) as server, ours, theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        ours.setblocking(False)
        client = Client(ours, Plan("127.0.0.1", server.port, 2, 10**10, ()), Unpacker())
        for index in range(100):
            client.obey(("send", index, 0, False, ANY, b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"))
        client.obey(("open",))
        client.obey(("start", time.monotonic_ns()))
        gc.unfreeze()  # the client's process is its own, this one is not
        loop = threading.Thread(target=lambda: (client.run(), client.confess()))
        loop.start()
        time.sleep(0.5)
        unheard = len(arrived)
        told = list(hear_all(theirs))
        loop.join(10)
        for line in list(client.lines.others.values()):
            client.lines.drop(line)
    assert 2 <= unheard < 20, "what the pipe and the outbox hold, and the two on their way"
    assert sorted(message[1] for message in told if message[0] == "reply") == list(range(100))
    late_ns = [reply.t_sent - reply.t_due for name, *rest in told if name == "reply" for reply in [Reply(*rest)]]
    assert max(late_ns) > 300e6, "and what waited is recorded as late"
    assert all(not turn.reads and not turn.request for _, turn, _ in client.deadlines)


def hear_all(pipe: socket.socket) -> Iterator[Message]:
    """Every message until the client has said its last."""
    unpacker = Unpacker()
    while True:
        for message in unpacker.feed(pipe.recv(1 << 20)):
            yield message
            if message[0] == "end":
                return


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux stamps what arrives on TCP")
def test_the_kernel_stamps_arrival_and_not_reading() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as sock:
        assert clock.ask_for_stamps(sock)
        peer, _ = listener.accept()
        with peer:
            for _ in range(3):  # the kernel takes a moment to begin with it
                before = time.monotonic_ns()
                peer.send(b"x")
                after = time.monotonic_ns()
                time.sleep(0.05)
                _, ancillary, _, _ = sock.recvmsg(10, clock.STAMP_BYTES)
    arrived = clock.wall_ns(clock.raw_stamp(ancillary)) - clock.wall_minus_monotonic_ns()
    assert before - 50_000 <= arrived <= after + 50_000


def test_an_interrupted_look_at_the_clocks_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first sample takes 5 ms between its readings, the second is tight."""
    monotonic = iter([0, 5_000_000, 6_000_000, 6_000_200])
    wall = iter([1_000_004_900_000, 1_000_006_000_100])
    monkeypatch.setattr(clock.time, "monotonic_ns", lambda: next(monotonic))
    monkeypatch.setattr(clock.time, "time_ns", lambda: next(wall))
    assert clock.wall_minus_monotonic_ns() == 1_000_000_000_000


def test_after_a_step_of_the_wall_clock_no_kernel_stamp_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        client = Client(ours, Plan("127.0.0.1", 9, 1, 10**9, ()), Unpacker())
        base = client.offset
        assert client.offset_since_last() == (base if client.lines.has_stamps else -1)
        assert not client.clock_stepped
        monkeypatch.setattr("jobs.load.client.wall_minus_monotonic_ns", lambda: base + 3_000_000)
        assert client.offset_since_last() == -1
        assert client.clock_stepped
        assert client.offset_since_last() == -1, "others in flight have stamps from before it"
