"""Driving a cell against servers that behave, misbehave, and lie."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import psutil
import pytest

from jobs.engines.base import Endpoint
from jobs.engines.dialects import HostDialect
from jobs.errors import CellFailed
from jobs.load.arrivals import send_offsets_ns
from jobs.load.base import Measured, Progress, Traffic
from jobs.load.drive import drive
from jobs.load.process import ClientProcess
from jobs.load.wire import Plan
from jobs.spec import Cell, Deployment, Draft, Engine, Load, Model, Sampling, Workload
from jobs.workloads.base import Prompt
from tests.jobs.scripted_server import END, HEAD, Request, Script, chunk, event, serving


@dataclass
class Talk:
    """A conversation whose turn is its first ids and all answers so far."""

    prompt: Prompt
    first: list[int]

    @property
    def n_turns(self) -> int:
        return len(self.prompt.turns)

    def ids(self, answers: Sequence[Sequence[int]]) -> list[int]:
        return self.first + [token for answer in answers for token in answer]


def talks(count: int, turns: int = 1) -> list[Talk]:
    return [Talk(Prompt(f"q{i}", "coding", ("hello",) * turns), [i, i + 1, 7]) for i in range(count)]


def step(ids: list[int], finish: str = "", drafted: int = 0, accepted: int = 0) -> bytes:
    fields = {"ids": ids, "drafted": drafted, "accepted": accepted, "prefill": False, "cut": False, "finish_reason": finish}
    return json.dumps(fields).encode()


def traffic_to(port: int, conversations: list[Talk], **load: object) -> Traffic:
    cell = Cell(
        Deployment(Model(path="m"), Engine(device="cpu"), Draft()),
        Workload(),
        Sampling(),
        Load(**{"request_timeout_s": 5, **load}),
    )
    return Traffic(cell, 1, conversations, Endpoint("127.0.0.1", port, "nonce"), HostDialect())


def run(script: Script, conversations: list[Talk], **load: object) -> Measured:
    with serving(script) as server:
        return drive(traffic_to(server.port, conversations, **load))


async def answer_well(request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Two chunks, 20 ms apart: the first token of the prompt, then its length in two tokens."""
    ids = json.loads(request.body)["prompt_ids"]
    writer.write(HEAD + event(step([ids[0]])))
    await asyncio.sleep(0.02)
    writer.write(event(step([len(ids), 9], finish="stop", drafted=3, accepted=1)) + event(b"[DONE]") + END)


def test_a_cell_becomes_one_row_a_conversation_with_chunk_times() -> None:
    measured = run(answer_well, talks(6), concurrency=2)
    assert [(row.index, row.turn, row.error) for row in measured.requests] == [(i, 0, "") for i in range(6)]
    row = measured.requests[3]
    assert (row.output_ids, row.chunk_tokens, row.prompt_tokens, row.finish_reason) == ([3, 3, 9], [1, 2], 3, "stop")
    assert (row.step_drafted, row.step_accepted, row.question_id, row.category) == ([0, 3], [0, 1], "q3", "coding")
    assert len(row.chunk_gap_ns) == 2
    assert row.chunk_gap_ns[0] > 0
    assert 19e6 < row.chunk_gap_ns[1] < 200e6
    assert len(row.prompt_hash) == len(row.output_hash) == 16
    assert len({row.prompt_hash for row in measured.requests}) == 6


def test_prompts_are_sent_before_any_answer_is_needed_and_no_more_than_the_slots_at_once() -> None:
    under_way = most = 0

    async def script(request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await answer_well(request, reader, writer)
        under_way -= 1

    measured = run(script, talks(12), concurrency=3)
    assert len(measured.requests) == 12
    assert most == 3


def test_later_turns_carry_the_answers_before_them_on_one_slot() -> None:
    with serving(answer_well) as server:
        measured = drive(traffic_to(server.port, talks(3, turns=3), concurrency=1))
        prompts = [json.loads(request.body)["prompt_ids"] for request in server.requests]
    assert [(row.index, row.turn) for row in measured.requests] == [(i, turn) for i in range(3) for turn in range(3)]
    assert prompts[:3] == [[0, 1, 7], [0, 1, 7, 0, 3, 9], [0, 1, 7, 0, 3, 9, 0, 6, 9]]
    assert prompts[3] == [1, 2, 7]
    assert [row.prompt_tokens for row in measured.requests[:3]] == [3, 6, 9]


def test_a_later_turn_is_due_when_the_answer_before_it_ended() -> None:
    measured = run(answer_well, talks(1, turns=2), concurrency=1)
    first, second = measured.requests
    ended = first.t_sent_ns + sum(first.chunk_gap_ns)
    assert ended <= second.t_sched_ns <= second.t_sent_ns
    assert second.t_sched_ns - ended < 50e6
    assert list(measured.late_send_ns) == [row.t_sent_ns - row.t_sched_ns for row in measured.requests]


def test_connections_are_kept_and_opened_ahead() -> None:
    with serving(answer_well) as server:
        drive(traffic_to(server.port, talks(10), concurrency=2))
        assert (len(server.requests), server.connections) == (10, 2)


@pytest.mark.parametrize(
    ("load", "offsets_ms"),
    [
        pytest.param({"kind": "constant", "rate": 50.0}, [20, 40, 60, 80], id="constant"),
        pytest.param({"kind": "poisson", "rate": 50.0}, None, id="poisson"),
    ],
)
def test_an_open_loop_sends_at_its_times_whatever_is_under_way(
    load: dict[str, object], offsets_ms: list[int] | None
) -> None:
    async def slow(request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.2)
        await answer_well(request, reader, writer)

    measured = run(slow, talks(4), **load)
    due = [row.t_sched_ns for row in measured.requests]
    assert due == ([ms * 1_000_000 for ms in offsets_ms] if offsets_ms else send_offsets_ns(Load(**load), 4, 0))
    assert all(0 <= row.t_sent_ns - row.t_sched_ns < 100e6 for row in measured.requests)
    assert all(row.t_sent_ns < measured.requests[0].t_sent_ns + 200e6 for row in measured.requests)


async def refuse_with_body(request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 500 Oops\r\ncontent-length: 14\r\n\r\nout of memory\n")


async def refuse_in_silence(request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")


async def close_half_way(request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + event(step([1])))
    writer.close()


async def close_at_once(request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def reset(request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + event(step([1])))
    await writer.drain()
    await asyncio.sleep(0.02)
    writer.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def talk_garbage(request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"SSH-2.0-OpenSSH_9.7\r\n" + b"\x00\xff" * 5_000_000)


async def send_garbage_in_chunks(request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + chunk(b"\xfe\xff" * 5_000_000) + END)


async def never_end(request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + event(step([1])))
    await asyncio.sleep(30)


async def say_nothing(request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(30)


async def drip_the_head(request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    for place in range(len(HEAD)):
        writer.write(HEAD[place : place + 1])
        await asyncio.sleep(0.05)


async def forget_done(request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + event(step([1], finish="stop")) + END)


async def give_up_half_way(request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + event(step([1])) + event(b'{"error": "CUDA out of memory"}') + END)


async def say_nothing_in_200(request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + END)


FAULTS = [
    pytest.param(refuse_with_body, "HTTP 500: out of memory", 0, id="5xx with a body"),
    pytest.param(refuse_in_silence, "HTTP 404 without a body", 0, id="4xx without a body"),
    pytest.param(close_half_way, "the server closed the connection before its answer ended", 1, id="half-closed"),
    pytest.param(
        close_at_once, "the server closed the connection before its answer ended", 0, id="closed without an answer"
    ),
    pytest.param(reset, "connection reset by peer", 1, id="reset"),
    pytest.param(talk_garbage, "the answer is not HTTP", 0, id="10 MB that are not HTTP"),
    pytest.param(send_garbage_in_chunks, "the answer has no event", 0, id="10 MB that are not events"),
    pytest.param(never_end, "timed out after 1 s with", 1, id="a stream that stops"),
    pytest.param(say_nothing, "timed out after 1 s with 0 bytes received", 0, id="accepts and never answers"),
    pytest.param(drip_the_head, "timed out after 1 s with", 0, id="slow-loris headers"),
    pytest.param(forget_done, "the stream must end with [DONE]", 1, id="DONE is missing"),
    pytest.param(give_up_half_way, "the engine gave up: CUDA out of memory", 1, id="an error event in mid-stream"),
    pytest.param(say_nothing_in_200, "the answer has no event", 0, id="200 and nothing"),
]


@pytest.mark.parametrize(("fault", "error", "chunks"), FAULTS)
def test_a_failed_request_is_a_row_and_stops_no_other(fault: Script, error: str, chunks: int) -> None:
    async def script(request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_faulty = json.loads(request.body)["prompt_ids"][0] == 1
        await (fault if is_faulty else answer_well)(request, reader, writer)

    measured = run(script, talks(5), concurrency=2, request_timeout_s=1.0)
    rows = {row.index: row for row in measured.requests}
    assert rows[1].error.startswith(error)
    assert len(rows[1].chunk_tokens) == len(rows[1].chunk_gap_ns) == chunks
    assert [rows[i].error for i in (0, 2, 3, 4)] == [""] * 4


def test_nobody_listens_and_every_request_is_a_row() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    measured = drive(traffic_to(port, talks(5), concurrency=2))
    assert [row.error for row in measured.requests] == ["connection refused"] * 5
    assert measured.duration_ns == 0


def test_a_failed_turn_ends_its_conversation_and_frees_the_slot() -> None:
    async def script(request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ids = json.loads(request.body)["prompt_ids"]
        await (give_up_half_way if ids[0] == 0 and len(ids) > 3 else answer_well)(request, reader, writer)

    measured = run(script, talks(2, turns=3), concurrency=1)
    assert [(row.index, row.turn, bool(row.error)) for row in measured.requests] == [
        *[(0, 0, False), (0, 1, True)],
        *[(1, 0, False), (1, 1, False), (1, 2, False)],
    ]


def test_a_kept_connection_that_the_server_closed_is_tried_again_once() -> None:
    async def close_after_one(request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answer_well(request, reader, writer)
        await writer.drain()
        await reader.read(1)  # the next request comes, and is never read
        writer.close()

    measured = run(close_after_one, talks(3), concurrency=1)
    assert [row.error for row in measured.requests] == ["", "", ""]


def test_connection_close_is_obeyed() -> None:
    async def once(request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
        writer.write(event(step([1], finish="stop")) + event(b"[DONE]") + END)
        await writer.drain()
        writer.close()

    with serving(once) as server:
        measured = drive(traffic_to(server.port, talks(4), concurrency=2))
        assert server.connections == 4
    assert [row.error for row in measured.requests] == [""] * 4


def test_an_answer_that_ends_with_its_connection_is_whole() -> None:
    async def old_style(request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\ndata: " + step([1, 2], finish="stop") + b"\n\ndata: [DONE]\n\n")
        writer.close()

    measured = run(old_style, talks(2), concurrency=1)
    assert [(row.error, list(row.output_ids)) for row in measured.requests] == [("", [1, 2])] * 2


def test_a_prompt_that_fills_the_socket_is_sent_whole() -> None:
    async def read_late(request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answer_well(request, reader, writer)

    long = [replace(talk, first=[talk.first[0], *range(1_000_000)]) for talk in talks(2)]
    measured = run(read_late, long, concurrency=2)
    assert [(row.error, row.prompt_tokens) for row in measured.requests] == [("", 1_000_001)] * 2


def test_chunks_that_share_a_read_are_counted() -> None:
    async def at_once(request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + event(step([1])) + event(step([2])) + event(step([3], finish="stop")) + event(b"[DONE]") + END)

    measured = run(at_once, talks(4), concurrency=1)
    assert measured.merged_reads == 4
    assert [list(row.chunk_gap_ns[1:]) for row in measured.requests] == [[0, 0]] * 4


def test_a_cell_that_takes_too_long_is_given_up() -> None:
    started = time.monotonic()

    measured = run(say_nothing, talks(2), concurrency=1, cell_timeout_s=3, request_timeout_s=60)

    assert "`load.cell_timeout_s`: got 0 of 2 conversations after 3 s" in measured.timed_out
    assert [row.error for row in measured.requests] == ["the cell's time was up"]  # the second was never sent
    assert time.monotonic() - started < 60


@pytest.mark.parametrize(
    ("load", "told"),
    [
        pytest.param({"concurrency": 1}, "in a row that had no token after 0.4 s", id="one request at a time"),
        pytest.param({"concurrency": 3}, "in a row that had no token after 0.4 s", id="several at once"),
        pytest.param({"kind": "constant", "rate": 50.0}, "", id="an open loop sends all: its end is near"),
    ],
)
def test_an_engine_that_no_longer_answers_is_not_asked_for_everything_else(load: dict[str, object], told: str) -> None:
    measured = run(say_nothing, talks(40), request_timeout_s=0.4, **load)
    assert told in measured.timed_out
    assert (len(measured.requests) < 40) == bool(told) == bool(measured.timed_out)


def test_answers_that_are_slower_than_their_time_are_no_hang() -> None:
    measured = run(never_end, talks(4), concurrency=1, request_timeout_s=0.4)
    assert measured.timed_out == ""
    assert [row.chunk_tokens for row in measured.requests] == [[1]] * 4
    assert all(row.error.startswith("timed out after 0.4 s") for row in measured.requests)


def test_who_answers_in_between_is_asked_to_the_end() -> None:
    async def script(request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_faulty = json.loads(request.body)["prompt_ids"][0] % 2
        await (say_nothing if is_faulty else answer_well)(request, reader, writer)

    measured = run(script, talks(8), concurrency=1, request_timeout_s=1.0)
    assert measured.timed_out == ""
    assert [bool(row.error) for row in measured.requests] == [False, True] * 4


def test_who_stops_to_answer_at_the_very_end_has_answered_the_others() -> None:
    async def script(request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_last = json.loads(request.body)["prompt_ids"][0] > 3
        await (say_nothing if is_last else answer_well)(request, reader, writer)

    measured = run(script, talks(6), concurrency=2, request_timeout_s=1.5)
    assert measured.timed_out == ""
    assert [bool(row.error) for row in measured.requests] == [False] * 4 + [True] * 2


def test_a_client_that_dies_fails_the_cell_with_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    children: list[ClientProcess] = []
    real = ClientProcess.__init__

    def remember(self: ClientProcess, plan: Plan) -> None:
        real(self, plan)
        children.append(self)
        threading.Timer(0.5, self.child.kill).start()

    monkeypatch.setattr(ClientProcess, "__init__", remember)
    with pytest.raises(CellFailed, match=r"the load client must live as long as its cell: it ended with code -9"):
        run(say_nothing, talks(2), concurrency=1)
    assert children[0].child.poll() == -9


def test_the_client_dies_with_its_worker() -> None:
    program = (
        "import sys; sys.path.insert(0, '.')\n"
        "from jobs.load.process import ClientProcess\nfrom jobs.load.wire import Plan\n"
        "client = ClientProcess(Plan('127.0.0.1', 9, 1, 10**9, ()))\nprint(client.child.pid, flush=True)\nsys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout is not None
        client = psutil.Process(int(worker.stdout.readline()))
        assert client.is_running()
        worker.kill()
        client.wait(5)


def test_progress_and_batches_are_told_while_the_cell_runs() -> None:
    told: list[Progress] = []
    batches: list[int] = []

    async def slowly(request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.1)
        await answer_well(request, reader, writer)

    with serving(slowly) as server:
        traffic = traffic_to(server.port, talks(35), concurrency=2)
        traffic = replace(
            traffic, on_progress=told.append, on_requests=lambda rows: batches.append(len(rows)), rows_a_batch=10
        )
        measured = drive(traffic)
    assert (batches, len(measured.requests), len(measured.late_send_ns)) == ([10, 10, 10], 5, 35)
    assert len(told) >= 2
    assert all(progress.total == 35 for progress in told)
    assert told[-1].tokens_per_s > 0
    assert [progress.done for progress in told] == sorted(progress.done for progress in told)


def test_several_clients_share_the_slots_and_every_conversation_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.load.drive.STREAMS_A_CLIENT", 2)
    measured = run(answer_well, talks(11, turns=2), concurrency=5)
    assert [(row.index, row.turn, row.error) for row in measured.requests] == [
        (i, t, "") for i in range(11) for t in range(2)
    ]


def test_the_client_confesses() -> None:
    measured = run(answer_well, talks(4), concurrency=2)
    assert measured.clock == ("kernel" if sys.platform == "linux" else "monotonic")
    assert not measured.clock_stepped
    assert 0 < measured.client_cpu_share < 1
    assert measured.loop_lag_ns_max > 0
    assert len(measured.late_send_ns) == 4
    assert measured.duration_ns >= max(row.t_sent_ns + sum(row.chunk_gap_ns) for row in measured.requests) - max(
        row.t_sent_ns for row in measured.requests
    )
