"""The built-in workload: its columns, its lengths, and that it has in it what it speaks of."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from jobs.spec import Workload
from jobs.workloads import load_prompts
from jobs.workloads.__main__ import main
from jobs.workloads.base import Prompt
from jobs.workloads.mini import DATA

COLUMNS = ["question_id", "category", "sub_category", "turns", "source", "src_id", "difficulty", "multiturn"]
CATEGORIES = {
    "coding",
    "humanities",
    "math",
    "multilingual",
    "qa",
    "rag",
    "reasoning",
    "roleplay",
    "stem",
    "summarization",
    "writing",
}
GRADED = {"coding", "humanities", "math", "stem"}

PROMPTS = load_prompts(Workload())
BY_CATEGORY: dict[str, list[Prompt]] = defaultdict(list)
for _prompt in PROMPTS:
    BY_CATEGORY[_prompt.category].append(_prompt)

each_prompt = pytest.mark.parametrize("prompt", [pytest.param(prompt, id=prompt.src_id) for prompt in PROMPTS])


def test_a_row_has_the_columns_of_speed_bench_in_their_order() -> None:
    rows = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]
    assert [list(row) for row in rows] == [COLUMNS] * len(rows)
    assert [
        Prompt(**{**row, "turns": tuple(row["turns"])}) for row in sorted(rows, key=lambda row: row["question_id"])
    ] == sorted(PROMPTS, key=lambda prompt: prompt.question_id)


def test_there_are_at_least_seven_prompts_in_each_of_the_eleven_categories() -> None:
    assert set(BY_CATEGORY) == CATEGORIES
    assert min(len(prompts) for prompts in BY_CATEGORY.values()) >= 7


def test_every_category_has_a_conversation_of_several_turns() -> None:
    assert {prompt.category for prompt in PROMPTS if prompt.multiturn} == CATEGORIES
    assert {len(prompt.turns) for prompt in PROMPTS} == {1, 2, 3}


@each_prompt
def test_ids_follow_from_the_source(prompt: Prompt) -> None:
    assert prompt.source == "specsweep/mini"
    assert re.fullmatch(rf"{prompt.category}-\d\d", prompt.src_id)
    assert prompt.question_id == hashlib.sha256(f"{prompt.source}/{prompt.src_id}".encode()).hexdigest()[:32]


@each_prompt
def test_columns_agree_with_each_other(prompt: Prompt) -> None:
    assert prompt.multiturn == (len(prompt.turns) > 1)
    assert all(turn == turn.strip() and turn for turn in prompt.turns)
    assert prompt.sub_category
    assert prompt.difficulty in ({"easy", "medium", "hard"} if prompt.category in GRADED else {""})


def test_no_text_and_no_id_occurs_twice() -> None:
    turns = Counter(turn for prompt in PROMPTS for turn in prompt.turns)
    assert turns.most_common(1)[0][1] == 1
    assert len({prompt.question_id for prompt in PROMPTS}) == len({prompt.src_id for prompt in PROMPTS}) == len(PROMPTS)


def test_prompts_have_in_them_what_they_speak_of() -> None:
    words = {prompt.src_id: len(" ".join(prompt.turns).split()) for prompt in PROMPTS}
    assert min(words[prompt.src_id] for prompt in BY_CATEGORY["summarization"]) >= 200, "a passage to summarise"
    assert min(words[prompt.src_id] for prompt in BY_CATEGORY["rag"]) >= 150, "documents to answer from"
    assert sum("```" in prompt.turns[0] for prompt in BY_CATEGORY["coding"]) >= 5, "code to change"


def test_multilingual_prompts_are_in_several_scripts() -> None:
    text = " ".join(turn for prompt in BY_CATEGORY["multilingual"] for turn in prompt.turns)
    scripts = {unicodedata.name(letter).split()[0] for letter in text if letter.isalpha()}
    assert scripts >= {"LATIN", "CYRILLIC", "ARABIC", "DEVANAGARI", "HIRAGANA", "CJK"}


def test_lengths_suit_a_small_model_even_before_its_tokenizer_is_there() -> None:
    """About 3.5 characters of English are a token; the exact bounds are tested on the real model's tokenizer."""
    characters = [sum(map(len, prompt.turns)) for prompt in PROMPTS]
    assert min(characters) > 20
    assert max(characters) < 900 * 5


def test_the_command_lists_every_category_with_its_count(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mini"]) == 0
    cells = [
        [cell.strip() for cell in line.split("│")[1:-1]] for line in capsys.readouterr().out.splitlines() if "│" in line
    ]
    listed = {name: int(count) for name, count, _ in cells}
    assert listed == {**{name: len(prompts) for name, prompts in BY_CATEGORY.items()}, "all": len(PROMPTS)}


def test_the_command_says_in_one_line_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mini", "--model", str(tmp_path / "absent")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "`model.path` must be" in err
    assert "absent" in err
