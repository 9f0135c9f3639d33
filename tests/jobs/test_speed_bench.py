"""SPEED-Bench as files of the hub and of other tools have it, and what is refused before a run."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jobs.errors import BadInput
from jobs.spec import Workload
from jobs.workloads import load_prompts
from jobs.workloads.speed_bench import LENGTHS, MASK, QUALITATIVE, THROUGHPUT
from storage.datasets import write_rows

WHOLE = Workload(name="speed_bench_qualitative")
LONG = Workload(name="speed_bench_throughput", isl="8k")
REVISION = "487aa718444e816458d1a0a52bfce7a454285cf4"


def rows_of(counts: dict[str, int], multiturn: int = 0) -> list[dict[str, Any]]:
    """Rows sorted by category, as the files are; the first ones of several turns."""
    categories = [category for category in sorted(counts) for _ in range(counts[category])]
    return [
        {
            "question_id": f"{n:032x}",
            "category": category,
            "sub_category": "",
            "turns": [f"{category} {n}, turn {turn}" for turn in range(2 if n < multiturn else 1)],
            "source": "cais/hle",
            "src_id": str(n),
            "difficulty": "",
            "multiturn": n < multiturn,
        }
        for n, category in enumerate(categories)
    ]


MULTITURN = 167  # as many as the paper says; others count 185
ROWS = rows_of(QUALITATIVE, MULTITURN)


def written(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        write_rows(path, rows)
    else:
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def with_messages(row: dict[str, Any]) -> dict[str, Any]:
    said = [{"role": "user", "content": turn} for turn in row["turns"]]
    return {**{name: value for name, value in row.items() if name != "turns"}, "messages": said}


def masked(rows: Sequence[dict[str, Any]], category: str) -> list[dict[str, Any]]:
    """As the hub has them: where the texts of a whole conversation are left out, one turn stands for all of them."""
    return [{**row, "turns": [f"{MASK} USING IT"]} if row["category"] == category else row for row in rows]


def test_a_file_of_the_hub_and_one_of_other_tools_in_any_order_are_the_same_prompts(tmp_path: Path) -> None:
    shuffled = random.Random(1).sample(ROWS, len(ROWS))
    places = [
        written(tmp_path / "a/qualitative/test-00000-of-00001.parquet", ROWS).parents[1],
        written(tmp_path / "b/qualitative.jsonl", [with_messages(row) for row in shuffled]),
        written(tmp_path / "c/test.parquet", shuffled).parent,
    ]
    read = [load_prompts(replace(WHOLE, path=str(place))) for place in places]
    assert len(read[0]) == 880
    assert sum(prompt.multiturn for prompt in read[0]) == MULTITURN
    assert read[0] == read[1] == read[2]


def test_a_limit_takes_as_many_of_each_category(tmp_path: Path) -> None:
    path = written(tmp_path / "qualitative.parquet", ROWS)
    drawn = load_prompts(replace(WHOLE, path=str(path), limit=33, seed=4))
    assert set(Counter(prompt.category for prompt in drawn).values()) == {3}
    assert drawn != load_prompts(replace(WHOLE, path=str(path), limit=33, seed=5))


def test_one_length_and_tier_of_the_throughput_split(tmp_path: Path) -> None:
    written(tmp_path / "throughput_8k/test-0.parquet", rows_of(THROUGHPUT))
    written(tmp_path / "throughput_1k/test-0.parquet", [])
    everything = load_prompts(replace(LONG, path=str(tmp_path)))
    assert Counter(prompt.category for prompt in everything) == THROUGHPUT
    low = load_prompts(replace(LONG, path=str(tmp_path), entropy="low"))
    assert {prompt.category for prompt in low} == {"low_entropy"}
    assert len(low) == 512


def test_a_masked_row_is_refused_with_the_command_that_resolves_it_but_whole_categories_run(tmp_path: Path) -> None:
    path = written(tmp_path / "qualitative.parquet", masked(masked(ROWS, "stem"), "math"))
    command = "python -m jobs.workloads.prepare speed_bench --config qualitative --output data/speed_bench"
    with pytest.raises(
        BadInput,
        match=rf"160 of 880 rows of qualitative are masked .math 80, stem 80.,.*`{command}`.*categories=\[coding,hum",
    ):
        load_prompts(replace(WHOLE, path=str(path)))
    with pytest.raises(BadInput, match="must be whole"):
        load_prompts(replace(WHOLE, path=str(path), categories=["qa", "stem"]))
    assert len(load_prompts(replace(WHOLE, path=str(path), categories=["qa", "rag"]))) == 160
    jsonl = written(tmp_path / "masked.jsonl", [with_messages(row) for row in masked(ROWS, "stem")])
    with pytest.raises(BadInput, match="80 of 880 rows of qualitative are masked"):
        load_prompts(replace(WHOLE, path=str(jsonl)))


def test_a_file_whose_conversations_are_masked_down_to_a_turn_is_masked_not_broken(tmp_path: Path) -> None:
    """The hub's own file has fewer conversations of several turns than there are when the sources have given their texts."""
    path = written(tmp_path / "qualitative.parquet", masked(ROWS, "coding"))
    with pytest.raises(BadInput, match=r"80 of 880 rows of qualitative are masked .coding 80.,.*--config qualitative"):
        load_prompts(replace(WHOLE, path=str(path)))
    assert len(load_prompts(replace(WHOLE, path=str(path), categories=["humanities", "math"]))) == 160
    blank = [{**row, "turns": [MASK, ""]} if row["category"] == "stem" else row for row in ROWS]
    with pytest.raises(BadInput, match=r"80 of 880 rows of qualitative are masked .stem 80."):
        load_prompts(replace(WHOLE, path=str(written(tmp_path / "blank.parquet", blank))))
    whole = written(tmp_path / "whole.parquet", rows_of(QUALITATIVE, 185))
    assert sum(prompt.multiturn for prompt in load_prompts(replace(WHOLE, path=str(whole)))) == 185


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        pytest.param("hello", "`messages` must be a list of messages: got 'hello' in line 9 of", id="text"),
        pytest.param(5, "`messages` must be a list of messages: got 5 in line 9 of", id="a number"),
        pytest.param(["hello"], "a message must have one of the roles .*: got 'hello' in line 9 of", id="texts"),
        pytest.param({"role": "user"}, "`messages` must be a list of messages: got {'role'", id="one message"),
        pytest.param(
            [{"role": "user", "content": [{"type": "text", "text": f"{MASK} USING IT"}]}],
            "1 of 880 rows of qualitative are masked",
            id="a mask in parts",
        ),
    ],
)
def test_messages_of_another_shape_are_refused_and_hide_no_mask(tmp_path: Path, messages: Any, complaint: str) -> None:
    rows = [with_messages(row) for row in ROWS]
    rows[8]["messages"] = messages
    with pytest.raises(BadInput, match=complaint):
        load_prompts(replace(WHOLE, path=str(written(tmp_path / "qualitative.jsonl", rows))))


def test_a_masked_tier_keeps_only_itself_from_running(tmp_path: Path) -> None:
    written(tmp_path / "throughput_8k.parquet", masked(rows_of(THROUGHPUT), "mixed"))
    assert len(load_prompts(replace(LONG, path=str(tmp_path), entropy="high"))) == 512
    with pytest.raises(BadInput, match=r"512 of 1536 rows of throughput_8k are masked .mixed 512."):
        load_prompts(replace(LONG, path=str(tmp_path), entropy="mixed"))


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        pytest.param(
            [row for row in ROWS if row["category"] != "qa"], "must have every category: got none of qa in", id="a category"
        ),
        pytest.param(ROWS[1:], r"number of rows in each category: got 79 of coding \(not 80\)", id="count"),
        pytest.param(
            [{**ROWS[0], "category": "art"}, *ROWS[1:]], r"got 1 of art \(not 0\), 79 of coding", id="unknown category"
        ),
        pytest.param([*ROWS[:-1], ROWS[0]], "`question_id` must be unique: '0+' occurs 2 times", id="twice"),
        pytest.param(
            [{"question_id": row["question_id"], "category": row["category"]} for row in ROWS],
            "must have a column `turns`: it has category, question_id",
            id="columns",
        ),
        pytest.param(
            [{**ROWS[0], "turns": ["a", ""]}, *ROWS[1:]],
            r"`turns` must be a list of texts, none of it empty: got \['a', ''\] in row 1",
            id="an empty turn",
        ),
    ],
)
def test_what_is_not_all_of_the_qualitative_split_is_refused(
    tmp_path: Path, rows: list[dict[str, Any]], complaint: str
) -> None:
    path = written(tmp_path / "qualitative.parquet", rows)
    with pytest.raises(BadInput, match=complaint) as refusal:
        load_prompts(replace(WHOLE, path=str(path)))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("workload", "complaint"),
    [
        pytest.param(replace(LONG, isl="4k"), "a length of SPEED-Bench: got 4000. Known: 1k, 2k, 8k, 16k, 32k", id="length"),
        pytest.param(replace(LONG, isl=0), "a length of SPEED-Bench: got 0", id="no length"),
        pytest.param(replace(WHOLE, isl="8k"), "`workload.isl` does not exist for `speed_bench_qual", id="needless length"),
        pytest.param(
            replace(WHOLE, entropy="low"), "`workload.entropy` does not exist for `speed_bench_q", id="needless tier"
        ),
        pytest.param(replace(WHOLE, split="test"), "`workload.split` does not exist for", id="split"),
        pytest.param(WHOLE, "`workload.path` must be given for `speed_bench_qualitative`", id="no path"),
        pytest.param(
            replace(WHOLE, path="nvidia/SPEED-Bench", revision="main"),
            "must be a commit .* got 'main' for nvidia",
            id="branch",
        ),
        pytest.param(
            replace(WHOLE, path="nvidia/SPEED-Bench", revision=REVISION),
            "hub gives: got 'nvidia/SPEED-Bench' at",
            id="offline",
        ),
        pytest.param(replace(LONG, path="{files}"), r"must hold a file that matches throughput_8k/\*.parquet", id="config"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workload: Workload, complaint: str
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    written(tmp_path / "qualitative/test.parquet", ROWS)
    with pytest.raises(BadInput, match=complaint) as refusal:
        load_prompts(replace(workload, path=workload.path.format(files=tmp_path)))
    assert "\n" not in str(refusal.value)


def test_files_of_another_revision_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "qualitative/test.parquet", ROWS)
    asked = replace(WHOLE, path=str(tmp_path), revision=REVISION)
    with pytest.raises(BadInput, match=r"`workload.revision` must be that of the files: .* and no manifest.json beside"):
        load_prompts(asked)
    path.with_name("manifest.json").write_text(json.dumps({"revision": REVISION}))
    assert len(load_prompts(asked)) == 880
    with pytest.raises(BadInput, match=rf"got '{'0' * 40}', and .*manifest.json says '{REVISION}'"):
        load_prompts(replace(asked, revision="0" * 40))


def test_every_length_of_the_throughput_split_has_its_name() -> None:
    assert all(Workload(isl=name).isl == tokens for tokens, name in LENGTHS.items())


def test_a_trajectory_is_asked_where_its_recorded_answers_stood(tmp_path: Path) -> None:
    call = {"id": "7", "type": "function", "function": {"name": "look", "arguments": '{"at": "sky"}'}}
    turns = [
        {"role": "system", "content": "Use tools.", "tool_calls": None, "tool_call_id": None},
        {"role": "user", "content": "Rain?", "tool_calls": None, "tool_call_id": None},
        {"role": "assistant", "content": None, "tool_calls": [call], "tool_call_id": None},
        {"role": "tool", "content": "rain", "tool_calls": None, "tool_call_id": "7"},
        {"role": "assistant", "content": "Yes.", "tool_calls": None, "tool_call_id": None},
    ]
    tools = [{"type": "function", "function": {"name": "look"}}]
    row = {"question_id": "t1", "category": "airline", "turns": turns, "extras": json.dumps({"tools": json.dumps(tools)})}
    path = written(tmp_path / "agentic/test-0.parquet", [row])
    (prompt,) = load_prompts(Workload(name="speed_bench_agentic", path=str(path)))
    assert prompt.tools == tuple(tools)
    assert prompt.turns == ("Rain?", "rain")
    first, second = prompt.messages([]), prompt.messages(["No."])
    assert [item["role"] for item in first] == ["system", "user"]
    assert first[0] == {"role": "system", "content": "Use tools."}
    assert second[2]["tool_calls"][0]["function"]["arguments"] == {"at": "sky"}
    assert second[3] == {"role": "tool", "content": "rain", "tool_call_id": "7"}
    broken = written(tmp_path / "broken.jsonl", [{**row, "extras": '{"tools": "none"}'}])
    with pytest.raises(BadInput, match=r"`extras` must be JSON: got .* in line 1 of broken.jsonl"):
        load_prompts(Workload(name="speed_bench_agentic", path=str(broken)))
