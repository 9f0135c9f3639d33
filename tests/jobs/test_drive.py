"""Driving a cell against servers that behave, misbehave, and lie."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from jobs.engines.base import Endpoint
from jobs.engines.dialects import HostDialect
from jobs.load.base import Measured, Traffic
from jobs.load.drive import drive
from jobs.spec import Cell, Deployment, Draft, Engine, Load, Model, Sampling, Workload
from jobs.workloads.base import Prompt
from tests.jobs.scripted_server import END, HEAD, Request, Script, event, serving


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
        Deployment(Model(path="m"), Engine(device="cpu"), Draft()), Workload(), Sampling(), Load(request_timeout_s=5, **load)
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


if __name__ == "__main__":
    pytest.main([__file__])
