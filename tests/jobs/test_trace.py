"""Traces of recorded services: their dialects, the texts that stand in, and how they are driven."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from jobs.engines.base import Endpoint
from jobs.engines.dialects import HostDialect
from jobs.errors import BadInput
from jobs.load.arrivals import check_recorded, send_offsets_ns
from jobs.load.base import Traffic
from jobs.load.drive import drive
from jobs.spec import Cell, Deployment, Draft, Engine, Load, Model, Sampling, Workload
from jobs.workloads import load_prompts
from jobs.workloads.tokenize import ChatTokenizer, conversations
from tests.jobs.scripted_server import END, HEAD, Request, event, serving

BYTES = Path(__file__).parents[2] / "jobs/workloads/data/bytes"
STEP = {"ids": [7], "drafted": 0, "accepted": 0, "prefill": False, "cut": False, "finish_reason": "stop"}


@pytest.fixture(scope="module")
def tokenizer() -> ChatTokenizer:
    return ChatTokenizer(BYTES)


TRACES = {
    "Azure": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:50.5000001,600,5\n2023-11-16 18:15:50,400,44\n",
    "Azure 2024": "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2024-05-10 00:00:02.5+00:00,600,5\n2024-05-10 00:00:02+00:00,400,44\n",
    "BurstGPT": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5.5,GPT-4,600,5,605,API log\n"
    "5,GPT-4,400,44,444,API log\n6,GPT-4,50,0,50,API log\n",
    "own": "timestamp,input_tokens,output_tokens\n100.5,600,5\n100,400,44\n",
}


@pytest.mark.parametrize("content", [pytest.param(content, id=name) for name, content in TRACES.items()])
def test_a_trace_gives_times_lengths_and_limits(tmp_path: Path, tokenizer: ChatTokenizer, content: str) -> None:
    (tmp_path / "t.csv").write_text(content)
    prompts = load_prompts(Workload(name="trace", path=str(tmp_path / "t.csv")))
    assert [(prompt.arrival_s, prompt.output_limit) for prompt in prompts] == [(0.0, 44), (pytest.approx(0.5), 5)]
    made = conversations(prompts, tokenizer)
    assert [len(item.ids([])) for item in made] == [400, 600]
    assert made[0].ids([]) == conversations(prompts, tokenizer)[0].ids([])
    times = [item.prompt.arrival_s for item in made]
    assert send_offsets_ns(Load(kind="replay"), 2, 0, times) == [0, pytest.approx(5e8, abs=1e3)]


def test_blocks_that_a_trace_shares_are_shared_by_the_prompts(tmp_path: Path, tokenizer: ChatTokenizer) -> None:
    rows = [
        {"timestamp": at, "input_length": 1500, "output_length": 9, "hash_ids": blocks}
        for at, blocks in ((27_000, [7, 8, 1]), (27_500, [7, 8, 2]), (28_000, [9, 8, 2]))
    ]
    written = tmp_path / "t.jsonl"
    written.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    prompts = load_prompts(Workload(name="trace", path=str(written), limit=3, entropy="low"))
    assert [prompt.arrival_s for prompt in prompts] == [0.0, 0.5, 1.0]
    one, two, three = (item.ids([]) for item in conversations(prompts, tokenizer))
    before = len(tokenizer.around()[0])
    assert [len(ids) for ids in (one, two, three)] == [1500] * 3
    assert one[: before + 1024] == two[: before + 1024]
    assert one[before + 1024 : before + 1100] != two[before + 1024 : before + 1100]
    assert one[before : before + 100] != three[before : before + 100]


def told(tmp_path: Path, rows: list[dict[str, object]]) -> Workload:
    (tmp_path / "t.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return Workload(name="trace", path=str(tmp_path / "t.jsonl"), entropy="low")


def test_bailian_counts_in_seconds_and_blocks_of_16_where_mooncake_has_the_same_columns(
    tmp_path: Path, tokenizer: ChatTokenizer
) -> None:
    session = {"chat_id": 7, "parent_chat_id": -1, "input_length": 1600, "output_length": 9, "type": "text", "turn": 1}
    rows: list[dict[str, object]] = [
        {**session, "timestamp": at, "hash_ids": [*range(20), *range(100 * n, 100 * n + 80)]}
        for n, at in ((1, 61.1), (2, 62.6))
    ]
    prompts = load_prompts(told(tmp_path, rows))
    assert [(prompt.arrival_s, prompt.category) for prompt in prompts] == [(0.0, "text"), (pytest.approx(1.5), "text")]
    one, two = (item.ids([]) for item in conversations(prompts, tokenizer))
    shared = len(tokenizer.around()[0]) + 20 * 16
    assert len(one) == len(two) == 1600
    assert one[:shared] == two[:shared]
    assert one[shared : shared + 16] != two[shared : shared + 16]


def test_blocks_that_a_trace_does_not_share_differ_from_their_first_tokens_on(tmp_path: Path) -> None:
    """There are many more first blocks in a trace than paragraphs in our texts."""
    tokenizer = ChatTokenizer(BYTES)
    rows: list[dict[str, object]] = [
        {"timestamp": n, "input_length": 512, "output_length": 9, "hash_ids": [n]} for n in range(1000)
    ]
    before = len(tokenizer.around()[0])
    made = conversations(load_prompts(told(tmp_path, rows)), tokenizer)
    assert len({tuple(item.ids([])[before : before + 64]) for item in made}) > 980


@pytest.mark.parametrize(
    ("hash_ids", "complaint"),
    [
        pytest.param(7, "`hash_ids` must be a list of hashes: got 7 in line 1", id="a number"),
        pytest.param([1], "`hash_ids` must be one for each block .* of 16, 32, .*: no size fits all", id="too few"),
        pytest.param(list(range(999)), "`hash_ids` must be one for each block", id="too many"),
    ],
)
def test_blocks_that_do_not_fit_the_lengths_are_refused(tmp_path: Path, hash_ids: object, complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        load_prompts(told(tmp_path, [{"timestamp": 1, "input_length": 5000, "output_length": 5, "hash_ids": hash_ids}]))


def test_blocks_that_are_written_as_text_are_the_same_blocks(tmp_path: Path, tokenizer: ChatTokenizer) -> None:
    rows = [{"timestamp": 1, "input_length": 600, "output_length": 5, "hash_ids": given} for given in ([4, 5], "[4, 5]")]
    one, two = (conversations(load_prompts(told(tmp_path, [dict(row)])), tokenizer)[0].ids([]) for row in rows)
    assert one == two


def test_a_limit_takes_the_first_requests_of_a_trace_and_short_ones_are_as_short_as_can_be(
    tmp_path: Path, tokenizer: ChatTokenizer
) -> None:
    rows = "".join(f"{at},{at + 1},3\n" for at in (4, 0, 2, 1, 3))
    (tmp_path / "t.csv").write_text(f"when,in,out\n{rows}")
    columns = {"timestamp": "when", "input_tokens": "in", "output_tokens": "out"}
    prompts = load_prompts(Workload(name="trace", path=str(tmp_path / "t.csv"), columns=columns, limit=3))
    assert [prompt.arrival_s for prompt in prompts] == [0.0, 1.0, 2.0]
    around = sum(map(len, tokenizer.around()))
    assert [len(item.ids([])) for item in conversations(prompts, tokenizer)] == [around + 1] * 3


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        pytest.param(
            "a,b\n1,2\n", r"a trace must have times and lengths: line 2 of t.csv has a, b. Known: TIMESTAMP", id="columns"
        ),
        pytest.param(
            "timestamp,input_tokens,output_tokens\nsoon,1,1\n", "`timestamp` must be a time: .* 'soon' in line 2", id="time"
        ),
        pytest.param(
            "timestamp,input_tokens,output_tokens\nnan,1,1\n", "`timestamp` must be a time: .* 'nan' in line 2", id="no time"
        ),
        pytest.param(
            "timestamp,input_tokens,output_tokens\n1,inf,1\n",
            "`input_tokens` must be a number of tokens: got 'inf'",
            id="endless",
        ),
        pytest.param(
            "timestamp,input_tokens,output_tokens\n1,x,1\n", "`input_tokens` must be a number of tokens: got 'x'", id="count"
        ),
        pytest.param(
            "timestamp,input_tokens,output_tokens\n1,5,0\n", "a trace must have requests with tokens: none", id="all failed"
        ),
    ],
)
def test_a_trace_that_is_none_is_refused(tmp_path: Path, content: str, complaint: str) -> None:
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises(BadInput, match=complaint):
        load_prompts(Workload(name="trace", path=str(tmp_path / "t.csv")))


def test_a_request_of_a_trace_that_is_longer_than_all_texts_is_refused(tmp_path: Path, tokenizer: ChatTokenizer) -> None:
    (tmp_path / "t.csv").write_text("timestamp,input_tokens,output_tokens\n1,900000,1\n")
    prompts = load_prompts(Workload(name="trace", path=str(tmp_path / "t.csv")))
    with pytest.raises(BadInput, match=r"longer than the texts that SpecSweep has, [0-9]+ tokens of this model: got"):
        conversations(prompts, tokenizer)


def test_a_replay_needs_times_from_somewhere() -> None:
    with pytest.raises(BadInput, match=r"`load.replay` must name a file .* or use workload=trace"):
        check_recorded(Load(kind="replay"), [0.5, None])
    assert send_offsets_ns(Load(kind="replay"), 2, 0, [None, None]) == [0, 0], "conversations to warm up have no times"


async def answer(request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + event(json.dumps(STEP).encode()) + event(b"[DONE]") + END)


def test_each_request_of_a_trace_is_sent_at_its_time_with_its_own_limit(tmp_path: Path, tokenizer: ChatTokenizer) -> None:
    (tmp_path / "t.csv").write_text("timestamp,input_tokens,output_tokens\n70.3,90,900\n70,120,5\n70.1,100,7\n")
    workload = Workload(name="trace", path=str(tmp_path / "t.csv"), output_limit=500)
    cell = Cell(Deployment(Model(path="m"), Engine(), Draft()), workload, Sampling(), Load(kind="replay"))
    made = conversations(load_prompts(workload), tokenizer)
    with serving(answer) as server:
        measured = drive(Traffic(cell, 1, made, Endpoint("127.0.0.1", server.port, "nonce"), HostDialect()))
        limits = sorted(json.loads(request.body)["output_limit"] for request in server.requests)
    assert limits == [5, 7, 500], "the workload's own limit still holds"
    assert [row.prompt_tokens for row in measured.requests] == [120, 100, 90]
    assert [round(row.t_sched_ns / 1e6) for row in measured.requests] == [0, 100, 300]
    assert all(row.t_sent_ns >= row.t_sched_ns for row in measured.requests)
