"""`python -m jobs.workloads.select`: a pool in, a benchmark out that `workload=jsonl` runs; every mistake is one line."""

from __future__ import annotations

import csv
import hashlib
import json
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobs.spec import Workload
from jobs.workloads import load_prompts, reader_of
from jobs.workloads.base import Prompt
from jobs.workloads.select.__main__ import main
from jobs.workloads.select.benchmark import Wish, pick, uniform_draws
from jobs.workloads.select.choose import Vectors, mean_similarity
from jobs.workloads.select.picture import map_of, principal
from jobs.workloads.select.pool import text_of
from storage.datasets import write_rows

Run = Callable[..., int]
WORDS = ("apple", "river", "stone", "quick", "sort", "window", "garden", "tax", "engine", "moon", "soup", "letter", "bridge")


def rows(count: int = 24, categories: Sequence[str] = ("code", "talk")) -> list[dict[str, Any]]:
    random = np.random.default_rng(5)
    return [
        {"text": f"Prompt {n}: {' '.join(random.choice(WORDS, 3 + n % 11))}.", "category": categories[n % len(categories)]}
        for n in range(count)
    ]


def vectors(count: int, seed: int = 1) -> Vectors:
    return (np.random.default_rng(seed).standard_normal((count, 8)) + 0.4).astype(np.float32)


def write_jsonl(path: Path, found: Sequence[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in found), encoding="utf-8")
    return path


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """The command on the pool in pool.jsonl, with vectors of its own for its 24 rows: `run("--seed=3", ...)`."""
    np.save(tmp_path / "vectors.npy", vectors(24))
    write_jsonl(tmp_path / "pool.jsonl", rows())

    def run(*more: str, path: str = "pool.jsonl", output: str = "out", count: str = "4") -> int:
        given = [f"--per-category={count}", f"--output={tmp_path / output}", f"--vectors={tmp_path / 'vectors.npy'}"]
        return main([str(tmp_path / path), *given, *more])

    return run


def picked(folder: Path) -> list[Prompt]:
    return load_prompts(Workload(name="jsonl", path=str(folder / "prompts.jsonl")))


def texts(folder: Path) -> set[str]:
    return {text_of(prompt) for prompt in picked(folder)}


def manifest(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "manifest.json").read_bytes())
    return found


# ---------------------------------------------------------------------------------------------------------- what comes out


def test_a_pool_becomes_a_benchmark_that_the_workload_jsonl_reads(
    tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run() == 0
    assert Counter(prompt.category for prompt in picked(tmp_path / "out")) == {"code": 4, "talk": 4}
    assert texts(tmp_path / "out") <= {row["text"] for row in rows()}
    told = capsys.readouterr()
    assert f"Run it: workload=jsonl workload.path={tmp_path / 'out/prompts.jsonl'}" in told.out
    assert not told.err, "progress is for terminals"
    whole_folder = Workload(name="jsonl", path=str(tmp_path / "out"), split="*.jsonl")
    assert {prompt.question_id for prompt in load_prompts(whole_folder)} == {p.question_id for p in picked(tmp_path / "out")}


def test_the_manifest_says_all_that_it_takes_to_make_it_again(tmp_path: Path, run: Run) -> None:
    run("--seed=7", "--strata=2", "--near=0.99")
    told = manifest(tmp_path / "out")
    assert (told["seed"], told["strata"], told["near"], told["per_category"]) == (7, 2, 0.99, 4)
    assert told["pool"]["prompts"] == 24
    assert told["embedding"]["model_sha256"] == hashlib.sha256((tmp_path / "vectors.npy").read_bytes()).hexdigest()
    for name, sha256 in told["output"].items():
        assert hashlib.sha256((tmp_path / "out" / name).read_bytes()).hexdigest() == sha256
    assert set(told["output"]) == {path.name for path in (tmp_path / "out").iterdir()} - {"manifest.json"}
    assert set(told["categories"]) == {"code", "talk"}


def test_the_choice_has_less_similarity_than_uniform_draws_and_than_greedy_alone(tmp_path: Path, run: Run) -> None:
    run()
    for category in manifest(tmp_path / "out")["categories"].values():
        assert category["similarity"] < category["uniform_p5"]
        assert category["similarity"] <= category["greedy_similarity"]


def test_the_similarity_that_is_told_is_that_of_the_prompts_in_the_file(tmp_path: Path, run: Run) -> None:
    run()
    place = {row["text"]: n for n, row in enumerate(rows())}
    unit = vectors(24) / np.linalg.norm(vectors(24), axis=1, keepdims=True)
    for name, told in manifest(tmp_path / "out")["categories"].items():
        ours = [place[text_of(p)] for p in picked(tmp_path / "out") if p.category == name]
        products = unit[ours].astype(np.float64) @ unit[ours].T
        assert told["similarity"] == pytest.approx((products.sum() - np.trace(products)) / 12, abs=1e-6)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "manifest.json"}


def test_the_same_seed_gives_the_same_files_to_the_byte(tmp_path: Path, run: Run) -> None:
    run("--seed=3", output="one")
    run("--seed=3", output="two")
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")


def test_seeds_begin_in_different_places() -> None:
    """With many prompts alike, several choices are as good, and the seed decides."""
    pool = [Prompt(f"{n:032x}", "all", (f"text {n}",)) for n in range(40)]
    unit = np.eye(40, dtype=np.float32)
    choices = {tuple(pick(pool, unit, Wish(3, seed=seed)).chosen) for seed in range(6)}
    assert len(choices) > 1


def test_the_order_of_the_file_does_not_matter(tmp_path: Path, run: Run) -> None:
    run(output="one")
    order = np.random.default_rng(2).permutation(24)
    write_jsonl(tmp_path / "pool.jsonl", [rows()[n] for n in order])
    np.save(tmp_path / "vectors.npy", vectors(24)[order])
    run(output="two")
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")


def test_near_duplicates_go_before_anything_is_picked(tmp_path: Path, run: Run) -> None:
    found = vectors(24)
    found[6:12] = found[0] * 2  # another length, the same direction
    np.save(tmp_path / "vectors.npy", found)
    assert run(count="8") == 0
    with (tmp_path / "out/near_duplicates.csv").open() as file:
        left_out = list(csv.DictReader(file))
    assert len(left_out) == 6
    assert len({row["kept"] for row in left_out}) == 1
    assert all(float(row["similarity"]) > 0.999 for row in left_out)
    alike = {rows()[n]["text"] for n in (0, *range(6, 12))}
    assert len(texts(tmp_path / "out") & alike) <= 1
    assert "6 prompts were left out" in (tmp_path / "out/report.md").read_text()


def test_strata_keep_the_lengths_of_the_pool(tmp_path: Path, run: Run) -> None:
    run("--strata=4")
    for name in ("code", "talk"):
        lengths = sorted((len(row["text"]), row["text"]) for row in rows() if row["category"] == name)
        ranks = {text: n for n, (_, text) in enumerate(lengths)}
        found = [ranks[text_of(p)] * 4 // len(ranks) for p in picked(tmp_path / "out") if p.category == name]
        assert sorted(found) == [0, 1, 2, 3]


def test_the_report_has_a_line_a_category_and_the_map_is_a_picture(tmp_path: Path, run: Run) -> None:
    run()
    report = (tmp_path / "out/report.md").read_text()
    assert "| code | 12 | 12 | 4 |" in report
    assert "| talk | 12 | 12 | 4 |" in report
    assert "**mean of categories**" in report
    root = ElementTree.parse(tmp_path / "out/map.svg").getroot()
    assert len(root.findall(".//{*}circle")) == 24 + 8 + 2  # the pool, the choice, the legend


# -------------------------------------------------------------------------------------------------------------- what goes in


def dialogue(n: int) -> list[dict[str, Any]]:
    said = [("user", f"First {n}"), ("assistant", "Yes."), ("user", f"Second {n}")]
    return [{"role": role, "content": content} for role, content in said]


ROWS = {
    "turns with a system prompt": [
        {"turns": [f"One {n}", f"Two {n}"], "system": "Be kind.", "question_id": n} for n in range(24)
    ],
    "dialogues on record": [{"messages": dialogue(n), "category": "talk", "output_limit": 40} for n in range(24)],
    "messages of a developer": [
        {"messages": [{"role": "developer", "content": "x"}, {"role": "user", "content": f"Ask {n}"}]} for n in range(24)
    ],
    "tools and labels": [
        {"text": f"Ask {n}", "tools": [{"type": "function", "function": {"name": "f"}}], "source": "s", "src_id": str(n)}
        for n in range(24)
    ],
}


@pytest.mark.parametrize("found", [pytest.param(found, id=name) for name, found in ROWS.items()])
def test_what_is_picked_is_sent_as_the_pool_would_send_it(tmp_path: Path, run: Run, found: list[dict[str, Any]]) -> None:
    write_jsonl(tmp_path / "pool.jsonl", found)
    assert run(count="5") == 0
    before = {p.question_id: p for p in reader_of("jsonl")(Workload(name="jsonl", path=str(tmp_path / "pool.jsonl")))}
    after = picked(tmp_path / "out")
    assert len(after) == 5
    for prompt in after:
        assert prompt == before[prompt.question_id]
        assert prompt.messages([""] * (len(prompt.turns) - 1)) == before[prompt.question_id].messages(
            [""] * (len(prompt.turns) - 1)
        )


def test_parquet_and_a_folder_of_files_are_pools_too(tmp_path: Path, run: Run) -> None:
    run(output="one")
    write_rows(tmp_path / "pool.parquet", rows())
    assert run(path="pool.parquet", output="two") == 0
    (tmp_path / "folder").mkdir()
    write_jsonl(tmp_path / "folder/a.jsonl", rows()[:10])
    write_jsonl(tmp_path / "folder/b.jsonl", rows()[10:])
    assert run(path="folder", output="three") == 0
    assert texts(tmp_path / "one") == texts(tmp_path / "two") == texts(tmp_path / "three")


def test_columns_of_other_names_are_mapped_and_come_out_under_ours(tmp_path: Path, run: Run) -> None:
    run(output="one")
    write_jsonl(tmp_path / "pool.jsonl", [{"ask": row["text"], "team": row["category"]} for row in rows()])
    assert run("--column=text=ask", "--column=category=team", output="two") == 0
    assert texts(tmp_path / "one") == texts(tmp_path / "two")
    assert {prompt.category for prompt in picked(tmp_path / "two")} == {"code", "talk"}


def test_one_category_can_be_asked_for_and_vectors_still_belong_to_the_whole_file(tmp_path: Path, run: Run) -> None:
    run(output="both")
    assert run("--category=talk", output="one") == 0
    assert texts(tmp_path / "one") == {text_of(p) for p in picked(tmp_path / "both") if p.category == "talk"}


def test_prompts_without_categories_are_one_category(tmp_path: Path, run: Run) -> None:
    write_jsonl(tmp_path / "pool.jsonl", [{"text": row["text"]} for row in rows()])
    assert run(count="6") == 0
    assert {prompt.category for prompt in picked(tmp_path / "out")} == {"own"}


# ---------------------------------------------------------------------------------------------------------------- mistakes


def code_of(act: Callable[[], int]) -> object:
    """The exit code, however it comes."""
    try:
        return act()
    except SystemExit as ended:
        return ended.code


@pytest.mark.parametrize(
    ("words", "says"),
    [
        pytest.param(["--per-category=0"], "--per-category must be at least 1: got 0", id="nothing of each category"),
        pytest.param(["--per-category=13"], "got 13; code has 12, talk has 12. Use 12,", id="more than a category has"),
        pytest.param(["--seed=-1"], "--seed must be at least 0: got -1", id="a seed below nothing"),
        pytest.param(["--strata=0"], "--strata must be at least 1: got 0", id="no strata"),
        pytest.param(["--near=0"], "--near must be a similarity over 0", id="all are near"),
        pytest.param(["--near=nan"], "--near must be a similarity over 0", id="near what"),
        pytest.param(["--column=text"], "--column must read OURS=THEIRS: got 'text'", id="half a column"),
        pytest.param(["--column=words=text"], "`workload.columns` must map", id="a column that we have not"),
        pytest.param(["--category=poems"], "categories of `jsonl`: got poems", id="an unknown category"),
        pytest.param(["--workload=poems"], "must be a known workload: got 'poems'", id="an unknown workload"),
        pytest.param(["--vectors=nowhere.npy"], "--vectors must be a .npy file", id="no vectors"),
        pytest.param(["--output=README.md"], "README.md is a file", id="a file for a folder"),
        pytest.param(["--seed=x"], "argument --seed: invalid int value: 'x'. See --help.", id="a seed that is no number"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(
    tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    assert code_of(lambda: run(*words)) == 2
    errors = capsys.readouterr().err.strip()
    assert says in errors
    assert "\n" not in errors
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("found", "says"),
    [
        pytest.param(vectors(23), "24 rows", id="too few rows"),
        pytest.param(np.ones(24, np.float32), "24 rows", id="one number a row"),
        pytest.param(np.ones((24, 3), np.int64), "int64", id="whole numbers"),
        pytest.param(np.zeros((24, 3), np.float32), "24 of --vectors", id="no direction"),
        pytest.param(np.full((24, 3), np.nan), "24 of --vectors", id="not a number"),
        pytest.param(np.array([{}] * 24), "--vectors must be a .npy file", id="objects"),
    ],
)
def test_vectors_that_cannot_be_used_are_refused(
    tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str], found: np.ndarray, says: str
) -> None:
    np.save(tmp_path / "vectors.npy", found, allow_pickle=True)
    assert run() == 2
    errors = capsys.readouterr().err.strip()
    assert says in errors
    assert "\n" not in errors


@pytest.mark.parametrize(
    ("workload", "row", "says"),
    [
        pytest.param("structured", None, "says what a valid answer is", id="answers that are judged"),
        pytest.param("jsonl", {"token_ids": [1, 2, 3]}, "is made of token ids", id="token ids"),
        pytest.param(
            "trace", {"timestamp": 5, "input_length": 30, "output_length": 4}, "is made of token ids", id="a trace"
        ),
    ],
)
def test_prompts_that_rows_could_not_hold_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], workload: str, row: dict[str, Any] | None, says: str
) -> None:
    given = [str(write_jsonl(tmp_path / "pool.jsonl", [row]))] if row else []
    assert main([*given, "--per-category=1", f"--output={tmp_path / 'out'}", f"--workload={workload}"]) == 2
    errors = capsys.readouterr().err.strip()
    assert f"a pool must be prompts in words: {says}" in re.sub(r": \w{32} of `\w+`", ":", errors)
    assert "\n" not in errors


# ------------------------------------------------------------------------------------------------------------------ pieces


def test_uniform_draws_have_the_similarity_of_the_pool_on_average() -> None:
    unit = vectors(60) / np.linalg.norm(vectors(60), axis=1, keepdims=True)
    assert uniform_draws(unit, 10, seed=0).mean() == pytest.approx(mean_similarity(unit), abs=0.02)


def test_the_map_shows_the_two_directions_in_which_vectors_differ_most() -> None:
    random = np.random.default_rng(0)
    spread = random.standard_normal((200, 5)).astype(np.float32) * np.array([9, 0.1, 4, 0.1, 0.1], np.float32) + 3
    places, share = principal(spread)
    assert abs(np.corrcoef(places[:, 0], spread[:, 0])[0, 1]) > 0.999
    assert abs(np.corrcoef(places[:, 1], spread[:, 2])[0, 1]) > 0.999
    assert share > 0.99
    assert np.allclose(places.mean(axis=0), 0, atol=1e-3)


def test_names_on_the_map_are_escaped_and_every_place_lies_in_it() -> None:
    drawn = map_of(vectors(30), {"a<b & c": np.array([1, 2])}, "Title <1>", seed=0)
    circles = ElementTree.fromstring(drawn).findall(".//{*}circle")
    assert all(0 <= float(dot.attrib["cx"]) <= 720 and 0 <= float(dot.attrib["cy"]) <= 700 for dot in circles)
    assert "a&lt;b &amp; c" in drawn
