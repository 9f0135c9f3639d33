"""Masked rows get their texts from their sources: each of its own shape, none at the cost of another, in any order."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobs.workloads.prepare import words
from jobs.workloads.prepare.__main__ import main
from jobs.workloads.prepare.library import Library, Missing
from jobs.workloads.prepare.turns import REVISIONS, SOURCES
from storage.datasets import read_rows, write_rows
from tests.jobs.speed_bench_sources import LONG_ROWS, MASK, OPEN, ROWS, Letters, write_sources

Run = Callable[..., int]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command on stand-ins: `run(config, rows, without=[...])` with every source at hand but some."""
    monkeypatch.setitem(sys.modules, "tiktoken", SimpleNamespace(get_encoding=lambda name: Letters()))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("jobs.workloads.prepare.library._downloaded", no_web)
    monkeypatch.setenv("SPECSWEEP_CACHE", str(tmp_path / "cache"))
    sources = write_sources(tmp_path / "sources")

    def run(config: str, rows: Sequence[dict[str, Any]], without: Sequence[str] = (), *more: str) -> int:
        (tmp_path / "in" / config).mkdir(parents=True, exist_ok=True)
        write_rows(tmp_path / "in" / config / "test-0.parquet", rows)
        given = [f"--source={name}={path}" for name, path in sources.items() if name not in without]
        return main(
            ["speed_bench", f"--config={config}", f"--output={tmp_path}/out", f"--input={tmp_path}/in", *given, *more]
        )

    return run


def no_web(url: str) -> bytes:
    raise Missing(f"no network for {url}")


def turns(tmp_path: Path, config: str = "qualitative") -> dict[int, list[str]]:
    return {int(row["question_id"], 16): row["turns"] for row in read_rows(tmp_path / "out" / config / "test.parquet")}


def manifest(tmp_path: Path, config: str = "qualitative") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((tmp_path / "out" / config / "manifest.json").read_bytes())
    return found


def test_every_source_of_the_qualitative_split_gives_its_rows_their_texts(tmp_path: Path, run: Run) -> None:
    assert run("qualitative", [OPEN, *ROWS]) == 0
    made = turns(tmp_path)
    bob = "You are Bob of book 1: a cook; a storm; soup; Ann: a sailor"
    ann = "You are Ann of book 1: a sailor; a storm; home; Bob: a cook"
    assert made.pop(10)[0] in (ann, bob)
    assert made == {
        99: ["Nothing is masked here."],
        1: ["Sum up: article 3"],
        2: ["riddle 2?"],
        3: ["Solve sort 4 from g()"],
        4: ["Solve task 5"],
        5: ["6 one", "6 two"],
        6: ["Translate Satz 7"],
        7: ["Read:\nsqa 1\n\nmore\nAnswer:\nsqa user 1", "sqa user 2"],
        8: [
            "Choose, in law: Question: which 3\n\nOptions: (A) a\n(B) b\n\n",
            "Question: which 4\n\nOptions: (A) a\n(B) b\n\n",
        ],
        9: ["Be Ann, a sailor\nAnn, who are you 2?", "who are you 3?"],
    }


def test_characters_come_in_the_order_of_the_table_that_the_reference_makes_of_all_scenes(tmp_path: Path, run: Run) -> None:
    assert run("qualitative", [{**ROWS[9], "src_id": "coser_2"}]) == 0
    said = turns(tmp_path)[10][0]
    assert re.findall(r"(Ann|Bob|Eve|Dan): a ", said) in (["Bob", "Eve", "Dan"], ["Ann", "Eve", "Dan"])


def test_of_a_source_only_the_columns_that_are_asked_for_are_kept(tmp_path: Path) -> None:
    """A source of code problems has gigabytes of test cases beside its questions."""
    (tmp_path / "test.jsonl").write_text('{"id": "a", "tests": "much"}\n')
    write_rows(tmp_path / "test.parquet", [{"id": "b", "tests": "much"}])
    for name in ("test.jsonl", "test.parquet"):
        library = Library({"some/source": tmp_path / name}, tmp_path)
        assert [[*row] for row in library.of_hub("some/source", "", "test*", ("id",))] == [["id"]]


def test_prompts_of_the_throughput_split_have_their_length(tmp_path: Path, run: Run) -> None:
    assert run("throughput_1k", LONG_ROWS) == 0
    made = {name: texts[0] for name, texts in turns(tmp_path, "throughput_1k").items()}
    assert {name: len(text) for name, text in made.items()} == {21: 1000, 22: 1001, 23: 1001, 24: 1000, 25: 1000}
    assert made[21].startswith("Go on {so}:\nSTART CONTENT 1\n\nA: 1A: 1")
    assert "START CONTENT 2\n\nA: 3" in made[21]
    assert made[21].endswith("END CONTENT\n" + ("Answer now please.\n" * 99)[: 1000 - made[21].rindex("END CONTENT") - 12])
    assert made[22].startswith("Examples of Maths:\n\nQuestion: riddle ")
    assert made[22].endswith("riddle 5?")
    assert made[24].startswith("Choose {{one}}.\nThe asked:\nwhy?\n\nThe answers:\nA1:\n\nanswer ")
    assert made[25].startswith("Write it all out. Parts 2xxx")


def test_a_question_is_never_among_the_examples_and_the_order_of_rows_does_not_matter(tmp_path: Path, run: Run) -> None:
    run("throughput_2k", LONG_ROWS)
    forward = turns(tmp_path, "throughput_2k")
    assert forward[22][0].count("riddle 5?") == 1
    assert forward[22][0][:300] != forward[23][0][:300]
    run("throughput_2k", LONG_ROWS[::-1])
    assert turns(tmp_path, "throughput_2k") == forward
    run("throughput_2k", LONG_ROWS[2:3])
    assert turns(tmp_path, "throughput_2k") == {23: forward[23]}


def test_a_question_that_would_be_its_own_example_is_not_made(
    tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("throughput_1k", [{**LONG_ROWS[1], "src_id": "h4"}]) == 1
    assert "so a question might be its own example" in capsys.readouterr().out


def test_one_source_that_is_not_there_takes_no_other_with_it(
    tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("qualitative", [OPEN, *ROWS], ["cais/hle", "ZenMoore/RoleBench", "NVIDIA/Model-Optimizer"]) == 1
    told = capsys.readouterr().out
    assert "cais/hle: 1 rows have no text: the hub does not give it (" in told
    assert "ZenMoore/RoleBench: 1 rows have no text: no network for https://huggingface.co/datasets/ZenMoore" in told
    assert "Neph0s/CoSER: 1 rows have no text: no network for https://raw.githubusercontent.com/NVIDIA" in told
    masked = {name for name, texts in turns(tmp_path).items() if texts[0].startswith(MASK)}
    assert masked == {2, 7, 8, 9, 10}
    assert manifest(tmp_path)["masked"] == 5
    assert manifest(tmp_path)["sources"]["cais/hle"]["missing"].popitem()[1] == 1


def test_a_second_run_makes_only_what_is_missing(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[str] = []
    for name, make in SOURCES.items():
        monkeypatch.setitem(SOURCES, name, lambda row, kit, make=make: made.append(row["source"]) or make(row, kit))
    run("qualitative", ROWS, ["cais/hle"])
    assert len(made) == len(ROWS)
    made.clear()
    assert run("qualitative", ROWS) == 0
    assert made == ["cais/hle"]
    first = turns(tmp_path)
    made.clear()
    assert run("qualitative", [*ROWS, OPEN]) == 0
    assert len(made) == len(ROWS), "other files of the data set: nothing of before is of them"
    assert {name: texts for name, texts in turns(tmp_path).items() if name != 99} == first


def test_progress_is_shown_on_a_terminal_source_by_source(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert run("qualitative", ROWS[:2]) == 0
    shown = capsys.readouterr().err
    assert all(f"qualitative: {source}" in shown for source in ("abisee/cnn_dailymail", "cais/hle"))
    assert "100%" in shown


def test_what_was_made_is_summed_up_though_a_later_configuration_is_refused(
    tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("qualitative", ROWS[:1], [], "--config=all") == 2
    told = capsys.readouterr()
    assert f"qualitative: {tmp_path}/out/qualitative/manifest.json" in told.out
    assert "must hold a file that matches throughput_1k/*.parquet" in told.err


def test_the_manifest_says_of_what_and_from_where(tmp_path: Path, run: Run) -> None:
    run("qualitative", ROWS)
    said = manifest(tmp_path)
    assert said["revision"] == ""
    assert said["input"] == {"test-0.parquet": sha256(tmp_path / "in/qualitative/test-0.parquet")}
    assert said["output"] == {"test.parquet": sha256(tmp_path / "out/qualitative/test.parquet")}
    assert (said["rows"], said["masked"]) == (len(ROWS), 0)
    code = said["sources"]["livecodebench/code_generation_lite"]
    assert set(code["read"]) == {"test.jsonl", "test2.jsonl"}
    assert code["from"].startswith("local ")
    assert set(said["sources"]) == {name for name in SOURCES if "AdaLEval" not in name and "BAMBOO" not in name}


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        pytest.param({"src_id": "c77"}, "abisee/cnn_dailymail: .*it has no row with id 'c77'", id="no such row"),
        pytest.param({"source": "some/new"}, "some/new: .*no source that SpecSweep knows", id="unknown source"),
        pytest.param(
            {"source": "TIGER-Lab/MMLU-Pro", "src_id": "x"}, "not of the shape that it had .ValueError", id="another src_id"
        ),
        pytest.param(
            {"source": ROWS[4]["source"], "src_id": "mtb_99"},
            "not of the shape that it had .IndexError",
            id="too few",
        ),
        pytest.param(
            {"turns": [f"{MASK}\n\n{{author}}"]}, "not of the shape that it had .KeyError: 'author'", id="another template"
        ),
    ],
)
def test_a_row_that_cannot_be_made_says_why(
    tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str], change: dict[str, Any], why: str
) -> None:
    assert run("qualitative", [{**ROWS[0], **change}, ROWS[3]]) == 1
    assert re.search(why, capsys.readouterr().out)
    assert turns(tmp_path)[4] == ["Solve task 5"]


def test_a_row_cannot_send_us_to_another_host(tmp_path: Path) -> None:
    library = Library({}, tmp_path)
    for url in ("https://127.0.0.1/BAMBOO.jsonl", "http://huggingface.co/x.jsonl", "file:///etc/passwd"):
        with pytest.raises(Missing, match=r"its address is not at huggingface.co, "):
            library.of_web("RUCAIBox/BAMBOO", url)


def test_without_tiktoken_only_what_has_a_length_is_missing(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    assert run("throughput_1k", LONG_ROWS) == 1
    assert (
        "cais/hle: 2 rows have no text: its length is in tokens of o200k_base, which needs tiktoken"
        in capsys.readouterr().out
    )
    assert run("qualitative", ROWS) == 0


def test_words_that_have_changed_are_noticed() -> None:
    with pytest.raises(Missing, match="it is not Python"):
        words.words_of("def f(:")
    found = words.words_of("def f():\n    prompt = 'a'\n    prompt += 1 + 2\n    prompt += 'b'\n")
    assert found == {("f", "prompt"): ["a", "b"]}
    with pytest.raises(Missing, match="`f` sets `prompt` 2 times, not 3"):
        words.pick(found, "f", "prompt", 3)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        pytest.param(
            ["--source=me=."], "--source must name a source: got 'me'. Known: RUCAIBox/BAMBOO", id="unknown source"
        ),
        pytest.param(
            ["--source=cais/hle=nowhere"], "--source must read NAME=PATH, .* 'cais/hle=nowhere'", id="no such path"
        ),
        pytest.param(["--source=cais/hle=~nobody-here/x"], "--source must read NAME=PATH", id="no such home for a source"),
        pytest.param(["--input=~nobody-here/x"], "`workload.path` must be a file, a folder or a hub id", id="no such home"),
        pytest.param(["--input=nowhere/at/all"], "`workload.path` must be a file, a folder or a hub id", id="no input"),
        pytest.param(["--revision=" + "1" * 40], "`workload.revision` must be that of the files: got '1111", id="revision"),
        pytest.param(
            ["--output={tmp_path}/in"], "--output must be another folder than the files of --input", id="onto itself"
        ),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str], options: list[str], complaint: str
) -> None:
    assert run("qualitative", ROWS, [], *(option.format(tmp_path=tmp_path) for option in options)) == 2
    told = capsys.readouterr().err
    assert re.search(complaint, told)
    assert len(told.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        pytest.param({"turns": MASK}, "`turns` must be a list of texts, none of it empty: got 'FULL", id="text"),
        pytest.param({"turns": []}, r"`turns` must be a list of texts, none of it empty: got \[\]", id="nothing"),
        pytest.param({"turns": 5}, "`turns` must be a list of texts, none of it empty: got 5", id="a number"),
        pytest.param({}, "`messages` must be a list of messages: got None", id="neither column"),
        pytest.param({"messages": [MASK]}, "a message must have one of the roles", id="texts for messages"),
        pytest.param({"messages": [{"role": "user"}]}, "a user's message must say something", id="no content"),
        pytest.param(
            {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi."}]},
            r"`messages` of SPEED-Bench must be a user's only: got \['system', 'user'\] in line 1 of .* the hub's files",
            id="a system prompt that would be lost",
        ),
        pytest.param(
            {"messages": [{"role": role, "content": "Hi."} for role in ("user", "assistant", "user")]},
            r"must be a user's only: got \['user', 'assistant', 'user'\]",
            id="an answer that would be lost",
        ),
    ],
)
def test_rows_of_another_shape_are_refused_not_called_whole(
    tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str], said: dict[str, Any], complaint: str
) -> None:
    rest = {name: value for name, value in ROWS[0].items() if name != "turns"}
    (tmp_path / "q.jsonl").write_text(json.dumps({**rest, **said}))
    assert main(["speed_bench", "--config=qualitative", f"--input={tmp_path}/q.jsonl", f"--output={tmp_path}/out"]) == 2
    told = capsys.readouterr().err
    assert re.search(complaint, told)
    assert len(told.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("extras", "got"),
    [
        pytest.param([{"a": 1}, "text"], "cannot mix struct and non-struct, .* in 'extra'", id="an object and a text"),
        pytest.param([1, 2**70], "Python int too large .* in 'extra'", id="a number beyond any type"),
        pytest.param([{}, {}], "Cannot write struct type 'extra' with no child field .*", id="objects of nothing"),
    ],
)
def test_a_column_that_cannot_be_written_is_named_in_one_line_with_what_to_do(
    tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str], extras: list[Any], got: str
) -> None:
    (tmp_path / "q.jsonl").write_text("".join(f"{json.dumps({**OPEN, 'extra': extra})}\n" for extra in extras))
    assert run("qualitative", [], [], f"--input={tmp_path}/q.jsonl") == 2
    remedy = "Give that column one type in the files that were read, or take it out"
    rule = "each column of a data set must be of one type"
    assert re.fullmatch(rf"{rule}: got {got}\. {remedy}\.\n", capsys.readouterr().err)


def test_of_the_turns_after_a_mask_only_their_number_counts(tmp_path: Path, run: Run) -> None:
    assert run("qualitative", [{**ROWS[7], "turns": [MASK, ""]}]) == 0
    assert len(turns(tmp_path)[8]) == 2


def test_masked_messages_are_made_whole_like_turns(tmp_path: Path, run: Run) -> None:
    rest = {name: value for name, value in ROWS[3].items() if name != "turns"}
    said = [{"role": "user", "content": turn} for turn in ROWS[3]["turns"]]
    (tmp_path / "q.jsonl").write_text(json.dumps({**rest, "messages": said}))
    assert run("qualitative", [], [], f"--input={tmp_path}/q.jsonl") == 0
    assert turns(tmp_path) == {4: ["Solve task 5"]}


def test_every_source_of_the_hub_is_pinned() -> None:
    assert set(REVISIONS) < set(SOURCES)
    assert all(len(revision) == 40 for revision in REVISIONS.values())
