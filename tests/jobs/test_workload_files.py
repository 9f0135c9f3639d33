"""Prompts that come from files: every dialect, and every mistake in one line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jobs.errors import BadInput
from jobs.spec import Workload
from jobs.workloads import load_prompts
from jobs.workloads.__main__ import main
from jobs.workloads.base import Prompt
from jobs.workloads.tokenize import ChatTokenizer, check_lengths, conversations
from storage.datasets import write_rows

BYTES = Path(__file__).parents[2] / "jobs/workloads/data/bytes"
EIGHT = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
LOG = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Is it raining?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "1", "function": {"name": "look", "arguments": '{"at": 1}'}}],
    },
    {"role": "tool", "content": "rain", "tool_call_id": "1"},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": [{"type": "text", "text": "And now?"}]},
]


@pytest.fixture(scope="module")
def tokenizer() -> ChatTokenizer:
    return ChatTokenizer(BYTES)


def lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def own(path: Path, **fields: Any) -> list[Prompt]:
    return load_prompts(Workload(name="jsonl", path=str(path), **fields))


def test_the_same_rows_are_the_same_prompts_in_every_format_and_order(tmp_path: Path) -> None:
    rows = [{"text": f"Tell me, in words, of {n},\nplease", "category": "ab"[n % 2]} for n in range(6)]
    lines(tmp_path / "p.jsonl", rows)
    lines(tmp_path / "p.ndjson", reversed(rows))
    (tmp_path / "p.json").write_text(json.dumps(rows))
    write_rows(tmp_path / "p.parquet", rows)
    (tmp_path / "p.csv").write_text("text,category\n" + "".join(f'"{row["text"]}",{row["category"]}\n' for row in rows))
    read = [own(tmp_path / f"p.{suffix}", limit=4) for suffix in ("jsonl", "ndjson", "json", "parquet", "csv")]
    assert len(read[0]) == 4
    assert [prompt.category for prompt in read[0]].count("a") == 2
    assert read.count(read[0]) == 5


def test_columns_are_mapped_into_objects_too(tmp_path: Path) -> None:
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 7}
    path = lines(tmp_path / "batch.jsonl", [{"custom_id": "r-1", "body": body, "team": 3}])
    columns = {
        "question_id": "custom_id",
        "messages": "body.messages",
        "output_limit": "body.max_tokens",
        "category": "team",
    }
    assert own(path, columns=columns) == [Prompt("r-1", "3", ("Hello",), output_limit=7)]


def test_users_messages_alone_are_turns_and_recorded_answers_are_kept(tmp_path: Path, tokenizer: ChatTokenizer) -> None:
    path = lines(
        tmp_path / "p.jsonl", [{"question_id": "own", "messages": LOG[1:2] * 2}, {"question_id": "log", "messages": LOG}]
    )
    prompts = {prompt.question_id: prompt for prompt in own(path)}
    assert prompts["own"].turns == ("Is it raining?", "Is it raining?")
    assert [item["content"] for item in prompts["own"].messages(["No."])] == ["Is it raining?", "No.", "Is it raining?"]
    log = prompts["log"]
    assert log.turns == ("Is it raining?", "rain", "And now?")
    assert [len(log.messages([""] * n)) for n in range(3)] == [2, 4, 6]
    assert log.messages(["", "what the model says"])[2]["tool_calls"][0]["function"]["arguments"] == {"at": 1}
    (conversation,) = conversations([log], tokenizer)
    said = tokenizer.plain_ids("Nothing.")
    assert "Yes." in tokenizer.decode(conversation.ids([said, said]))
    assert "Nothing." not in tokenizer.decode(conversation.ids([said, said]))


def test_token_ids_are_sent_as_they_are_if_the_model_knows_them(tmp_path: Path, tokenizer: ChatTokenizer) -> None:
    good, bad = (
        lines(tmp_path / "g.jsonl", [{"token_ids": [5, 9, 9]}]),
        lines(tmp_path / "b.jsonl", [{"token_ids": [5, 999_999]}]),
    )
    (conversation,) = conversations(own(good), tokenizer)
    assert conversation.ids([]) == [5, 9, 9]
    with pytest.raises(BadInput, match=r"vocabulary, 258: got 999999 in line 1 of b.jsonl"):
        conversations(own(bad), tokenizer)


def test_a_system_prompt_comes_first_and_a_prompts_own_limit_counts(tmp_path: Path, tokenizer: ChatTokenizer) -> None:
    path = lines(tmp_path / "p.jsonl", [{"text": "Hi", "system": "Be kind.", "output_limit": 10}])
    (prompt,) = own(path)
    assert [item["role"] for item in prompt.messages([])] == ["system", "user"]
    assert [prompt.limit(limit) for limit in (256, 10, 4)] == [10, 10, 4]
    made = conversations([prompt], tokenizer)
    check_lengths(made, output_limit=10_000, max_length=len(made[0].ids([])) + 10)
    with pytest.raises(BadInput, match="1 × 10 for answers"):
        check_lengths(made, output_limit=10_000, max_length=len(made[0].ids([])) + 9)


def test_what_only_a_chat_template_can_say_is_refused_without_one(tmp_path: Path, tokenizer: ChatTokenizer) -> None:
    path = lines(tmp_path / "p.jsonl", [{"text": "Hi", "tools": [{"type": "function", "function": {"name": "look"}}]}])
    with pytest.raises(BadInput, match=r"has tools, which that of .*bytes does not have a place for"):
        conversations(own(path), tokenizer)


def test_equal_rows_stay_two_prompts_and_ids_of_a_file_must_differ(tmp_path: Path) -> None:
    assert len({prompt.question_id for prompt in own(lines(tmp_path / "p.jsonl", [{"text": "Hi"}] * 3))}) == 3
    with pytest.raises(BadInput, match="`question_id` must be unique: got 'a' twice"):
        own(lines(tmp_path / "q.jsonl", [{"text": "Hi", "question_id": "a"}] * 2))


@pytest.mark.parametrize(
    ("name", "content", "fields", "complaint"),
    [
        pytest.param(
            "p.jsonl", None, {}, "`workload.path` must be a file, a folder or a hub id: got .*p.jsonl", id="absent"
        ),
        pytest.param("p.txt", "hi", {}, "must be one of .csv, .json, .jsonl, .ndjson, .parquet: got p.txt", id="suffix"),
        pytest.param("p.jsonl", "", {}, "a workload must have prompts: .*p.jsonl has no row", id="empty"),
        pytest.param("p.jsonl", '{"text": "a"}\n{"text": \n', {}, "line 2 of p.jsonl is not .*column", id="bad line"),
        pytest.param("p.jsonl", "[1]", {}, r"must be a JSON object: line 1 of p.jsonl is \[1\]", id="no object"),
        pytest.param("p.json", "[{", {}, "a .json file must be JSON: .*line 1 column 3", id="bad JSON"),
        pytest.param("p.json", "[1]", {}, "item 1 of p.json is 1", id="no object in a list"),
        pytest.param("p.parquet", "PAR", {}, "must be readable as Parquet: .*p.parquet is not", id="bad Parquet"),
        pytest.param("p.csv", "text,category\nhi\n", {}, "as many fields as its header, 2: line 2 of p.csv", id="short CSV"),
        pytest.param("p.csv", "text\na,b\n", {}, "as many fields as its header, 1: line 2", id="long CSV"),
        pytest.param(
            "p.jsonl",
            '{"prompt": "a"}',
            {},
            "must ask by one of text, .*: line 1 of p.jsonl has none, but prompt",
            id="columns",
        ),
        pytest.param(
            "p.jsonl",
            '{"text": "a", "turns": ["a"]}',
            {},
            "line 1 of p.jsonl has 2 of them, text and turns. Say which",
            id="two ways to ask",
        ),
        pytest.param(
            "p.jsonl", '{"text": "a"}', {"columns": {"txt": "text"}}, "`workload.columns` .* Got 'txt'", id="unknown column"
        ),
        pytest.param(
            "p.jsonl",
            '{"text": "a"}',
            {"columns": {"category": "topic"}},
            "p.jsonl must have a column `topic`: it has text",
            id="mapped to nothing",
        ),
        pytest.param(
            "p.jsonl", '{"text": "a"}\n{}', {}, "ask by one of text, .*: line 2 of p.jsonl has none, but nothing", id="a gap"
        ),
        pytest.param(
            "p.jsonl", '{"text": 5}', {}, r"`text` must be text, none of it blank: got 5 in line 1", id="text that is none"
        ),
        pytest.param(
            "p.jsonl", '{"turns": ["a", ""]}', {}, "`turns` must be a list of texts, none of it blank: got", id="empty turn"
        ),
        pytest.param(
            "p.jsonl", '{"token_ids": [1, true]}', {}, "`token_ids` must be a list of token ids: got", id="token ids"
        ),
        pytest.param("p.jsonl", '{"messages": "a"}', {}, "`messages` must be a list of messages: got 'a'", id="messages"),
        pytest.param("p.jsonl", '{"messages": [{"role": "bot"}]}', {}, "one of the roles system, .*: got", id="role"),
        pytest.param(
            "p.jsonl", '{"messages": [{"role": "system", "content": "a"}]}', {}, "must ask something: got", id="no question"
        ),
        pytest.param(
            "p.jsonl",
            '{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}',
            {},
            "content of a message must be text: got",
            id="picture",
        ),
        pytest.param("p.jsonl", '{"text": "a", "output_limit": -1}', {}, "`output_limit` must be a number of", id="limit"),
        pytest.param("p.jsonl", '{"text": "a"}', {"isl": 10}, "`workload.isl` does not exist for `jsonl`", id="length"),
        pytest.param("p.jsonl", '{"text": "a"}', {"revision": "a" * 40}, "no manifest.json beside", id="revision"),
        pytest.param("p.jsonl", b'{"text": "\xff"}', {}, "must be UTF-8: line 1", id="encoding"),
        pytest.param("p.jsonl", r'{"text": "\ud800 hi"}', {}, r"line 1 of p.jsonl has half a one, \\ud800", id="surrogate"),
        pytest.param("p.json", r'[{"text": "\uDFFF hi"}]', {}, r"p.json has half a one, \\udfff", id="surrogate in JSON"),
        pytest.param(
            "p.csv", 'turns\n"[""\\ud800 hi""]"\n', {}, r"line 2 of p.csv has half a one, \\ud800", id="surrogate in CSV"
        ),
        pytest.param("p.jsonl", '{"text": ' + "[" * 100_000, {}, "nested a thousand deep", id="deep nesting"),
        pytest.param("p.jsonl", '{"text": "a", "n": ' + "9" * 5000 + "}", {}, "or hold longer numbers", id="long number"),
        pytest.param("p.jsonl", '{"text": " "}', {}, "none of it blank: got ' ' in line 1", id="blank"),
        pytest.param(
            "p.jsonl", '{"text": null}\n{"text": "a"}', {}, "line 1 of p.jsonl has none, but nothing", id="null in the first"
        ),
        pytest.param(
            "p.jsonl",
            '{"text": "a"}',
            {"columns": {"text": {"a": "b"}}},
            "must be the name of a column: got {",
            id="mapping",
        ),
        pytest.param(
            "p.jsonl", '{"text": "a"}', {"columns": {"text": ""}}, "must be the name of a column: got ''", id="no name"
        ),
        pytest.param(
            "p.jsonl",
            '{"messages": [{"role": "user", "content": null}]}',
            {},
            "message must say something",
            id="null message",
        ),
        pytest.param(
            "p.jsonl", '{"messages": [{"role": "tool", "content": "a"}]}', {}, "must ask something: got", id="only a tool"
        ),
        pytest.param(
            "p.jsonl", '{"text": "a"}', {"split": "*"}, "`workload.split` picks files of a folder: got", id="split"
        ),
        pytest.param("p.csv", "text,text\na,b\n", {}, "must differ: p.csv has text twice", id="twins"),
        pytest.param("p.jsonl", '{"text": "a", "output_limit": NaN}', {}, "must be a number of tokens: got nan", id="NaN"),
        pytest.param(
            "p.jsonl", '{"text": "a", "output_limit": Infinity}', {}, "must be a number of tokens: got inf", id="endless"
        ),
        pytest.param(
            "p.jsonl",
            '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": 3}]}',
            {},
            "`tool_calls` must be a list of calls: got 3 in line 1",
            id="a number of calls",
        ),
    ],
)
def test_every_mistake_in_a_file_is_one_line(
    tmp_path: Path, name: str, content: str | bytes | None, fields: dict[str, Any], complaint: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(BadInput, match=complaint) as refusal:
        own(tmp_path / name, **fields)
    assert "\n" not in str(refusal.value)


def test_a_half_character_with_its_other_half_is_text(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text(r'{"text": "\ud83d\ude00"}')
    assert own(tmp_path / "p.jsonl")[0].turns == ("😀",)


def test_each_row_asks_in_its_own_way(tmp_path: Path) -> None:
    rows = [{"text": "a"}, {"turns": ["b", "c"]}, {"messages": LOG[1:2]}, {"token_ids": [5, 6]}]
    prompts = own(lines(tmp_path / "p.jsonl", rows))
    assert {prompt.turns for prompt in prompts} == {("a",), ("b", "c"), ("Is it raining?",), ("2 token ids",)}


def test_a_folder_of_several_kinds_of_files_leaves_none_out_without_a_word(tmp_path: Path) -> None:
    lines(tmp_path / "a.jsonl", [{"text": "a"}])
    (tmp_path / "b.csv").write_text("text\nb\n")
    with pytest.raises(BadInput, match=r"files of one kind: .* has 1 .jsonl, and beside them b.csv. .*split='\*.jsonl'"):
        own(tmp_path)
    assert [prompt.turns for prompt in own(tmp_path, split="*.csv")] == [("b",)]


def test_of_a_folder_the_split_picks_files(tmp_path: Path) -> None:
    (tmp_path / "main").mkdir()
    lines(tmp_path / "main/test-0.jsonl", [{"text": "a"}])
    lines(tmp_path / "main/test-1.jsonl", [{"text": "b"}])
    lines(tmp_path / "main/train-0.jsonl", [{"text": "c"}])
    assert {prompt.turns[0] for prompt in own(tmp_path, split="main/test-*.jsonl")} == {"a", "b"}
    with pytest.raises(BadInput, match=r"must hold a file that matches dev\*: it has main/test-0.jsonl, main/test-1.jsonl"):
        own(tmp_path, split="dev*")


@pytest.mark.parametrize(
    ("revision", "complaint"),
    [
        pytest.param("main", "`workload.revision` must be a commit .*: got 'main' for openai/gsm8k", id="moving"),
        pytest.param("", "`workload.revision` must be a commit .*: got ''", id="none"),
        pytest.param("0" * 40, "a data set that the hub gives: got 'openai/gsm8k' at revision '0000.*HF_TOKEN", id="no hub"),
    ],
)
def test_a_data_set_of_the_hub_needs_a_commit_and_the_hub(
    monkeypatch: pytest.MonkeyPatch, revision: str, complaint: str
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(BadInput, match=complaint):
        load_prompts(Workload(name="jsonl", path="openai/gsm8k", revision=revision))


def test_without_the_hub_its_cache_serves_the_commit_that_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    kept = tmp_path / "datasets--openai--gsm8k/snapshots" / ("a" * 40) / "main"
    kept.mkdir(parents=True)
    lines(kept / "test-0.jsonl", [{"question": "How many?"}])
    asked = Workload(name="jsonl", path="openai/gsm8k", revision="a" * 40, split="main/test*", columns={"text": "question"})
    assert [prompt.turns for prompt in load_prompts(asked)] == [("How many?",)]
    with pytest.raises(BadInput, match=r"a data set that the hub gives: got 'openai/gsm8k' at revision 'bbbb"):
        load_prompts(replace(asked, revision="b" * 40))


def test_mt_bench_and_spec_bench_are_read_and_counted(tmp_path: Path) -> None:
    eighty = [{"question_id": i, "category": name, "turns": ["a", "b"]} for i, name in enumerate(EIGHT * 10)]
    more = ("translation", "summarization", "qa", "math_reasoning", "rag")
    rest = [{"question_id": 80 + i, "category": name, "turns": ["a"]} for i, name in enumerate(more * 80)]
    mt = Workload(name="mt_bench", path=str(lines(tmp_path / "question.jsonl", eighty)))
    assert [prompt.multiturn for prompt in load_prompts(mt)] == [True] * 80
    (tmp_path / "data").mkdir()
    lines(tmp_path / "data/question.jsonl", [*eighty, *rest])
    assert len(load_prompts(Workload(name="spec_bench", path=str(tmp_path / "data")))) == 480
    named = [{"prompt_id": i, "category": row["category"], "prompt": row["turns"]} for i, row in enumerate(eighty)]
    write_rows(tmp_path / "mt.parquet", named)
    assert load_prompts(replace(mt, path=str(tmp_path / "mt.parquet"))) == load_prompts(mt)
    lines(tmp_path / "question.jsonl", [*eighty[:-1], {**eighty[-1], "question_id": 0}])
    assert len({prompt.question_id for prompt in load_prompts(mt)}) == 80, "metrics are paired by it"
    lines(tmp_path / "question.jsonl", eighty[:-1])
    with pytest.raises(BadInput, match=r"`mt_bench` must have its number .*: got 9 of humanities .not 10. in"):
        load_prompts(mt)


def test_sharegpt_asks_the_first_question_or_all_with_the_recorded_answers(tmp_path: Path) -> None:
    talk = [("gpt", "Welcome"), ("human", "One?"), ("gpt", "1"), ("human", "Two?"), ("gpt", "2")]
    rows = [
        {"id": "a", "conversations": [{"from": who, "value": text} for who, text in talk]},
        {"id": "b", "conversations": []},
    ]
    (tmp_path / "s.json").write_text(json.dumps(rows))
    workload = Workload(name="sharegpt", path=str(tmp_path / "s.json"))
    (first,) = load_prompts(workload)
    assert (first.turns, first.recorded, first.src_id) == (("One?",), (), "a")
    (whole,) = load_prompts(replace(workload, split="dialogue"))
    assert whole.turns == ("One?", "Two?")
    assert [item["content"] for item in whole.messages(["other"])] == ["One?", "1", "Two?"]
    (tmp_path / "s.json").write_text(json.dumps([{"id": "c", "conversations": [{"from": ["human"], "value": "One?"}]}]))
    with pytest.raises(BadInput, match="`conversations` must be a list of turns from human, user"):
        load_prompts(workload)
    (tmp_path / "s.json").write_text(json.dumps(rows[1:]))
    with pytest.raises(BadInput, match="a dialogue must have a human's turn: none of the 1"):
        load_prompts(workload)


def test_the_command_shows_a_file_of_yours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = lines(tmp_path / "p.jsonl", [{"prompt": "Hi", "team": "red"}, {"prompt": "Ho", "team": "blue"}])
    given = ["jsonl", f"--path={path}", "--column=text=prompt", "--column=category=team", f"--model={BYTES}"]
    assert main(given) == 0
    told = capsys.readouterr().out
    assert "blue" in told
    assert "tokens" in told
    assert main(["jsonl", f"--path={path}", "--column=text"]) == 2
    assert capsys.readouterr().err == "--column must read OURS=THEIRS: got 'text'. Write --column text=prompt.\n"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        pytest.param(["synthetic", "--isl=1.5k", f"--model={BYTES}"], "`workload.isl` must be tokens.*got '1.5k'", id="isl"),
        pytest.param(["synthetic", "--isl=-1"], "`workload.isl` must be tokens.*got '-1'", id="negative"),
        pytest.param(
            ["synthetic", "--isl=1k", "--entropy=LOW"], "`workload.entropy` must be one of low,.*got 'LOW'", id="tier"
        ),
        pytest.param(["mini", "--column=text=x"], "`workload.columns` does not exist for `mini`", id="ignored"),
        pytest.param(["jsonl", "--column=text=a", "--column=text=b"], "once: got text twice", id="twice"),
    ],
)
def test_the_command_refuses_what_a_sweep_refuses(given: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(given) == 2
    said = capsys.readouterr().err
    assert re.search(told, said)
    assert said.count("\n") == 1
