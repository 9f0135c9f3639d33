"""A trace as it is driven: each request at its time, with its own limit."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from jobs.engines.base import Endpoint
from jobs.engines.dialects import HostDialect
from jobs.load.base import Traffic
from jobs.load.drive import drive
from jobs.spec import Cell, Deployment, Draft, Engine, Load, Model, Sampling, Workload
from jobs.workloads import load_prompts
from jobs.workloads.tokenize import ChatTokenizer, conversations
from tests.jobs.scripted_server import END, HEAD, Request, event, serving

BYTES = Path(__file__).parents[2] / "jobs/workloads/data/bytes"
STEP = {"ids": [7], "drafted": 0, "accepted": 0, "prefill": False, "cut": False, "finish_reason": "stop"}


async def answer(request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + event(json.dumps(STEP).encode()) + event(b"[DONE]") + END)


def test_each_request_of_a_trace_is_sent_at_its_time_with_its_own_limit(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("timestamp,input_tokens,output_tokens\n70.3,90,900\n70,120,5\n70.1,100,7\n")
    workload = Workload(name="trace", path=str(tmp_path / "t.csv"), output_limit=500)
    cell = Cell(Deployment(Model(path="m"), Engine(), Draft()), workload, Sampling(), Load(kind="replay"))
    made = conversations(load_prompts(workload), ChatTokenizer(BYTES))
    with serving(answer) as server:
        measured = drive(Traffic(cell, 1, made, Endpoint("127.0.0.1", server.port, "nonce"), HostDialect()))
        limits = sorted(json.loads(request.body)["output_limit"] for request in server.requests)
    assert limits == [5, 7, 500], "the workload's own limit still holds"
    assert [row.prompt_tokens for row in measured.requests] == [120, 100, 90]
    assert [round(row.t_sched_ns / 1e6) for row in measured.requests] == [0, 100, 300]
    assert all(row.t_sent_ns >= row.t_sched_ns for row in measured.requests)
