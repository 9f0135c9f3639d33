"""Owns how the turns of a masked row are made from its source: one function a source, after the reference framework.

Does not own where files come from (library), or the words around them (words). Nothing here depends on the order of rows:
where chance has a part, its seed is the reference's own, or the row's id where the reference has one stream for all rows.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jobs.spec import tokens_of
from jobs.workloads.prepare import tokens, words
from jobs.workloads.prepare.library import Library, Missing, Values

COSER_SEED, SHUFFLE_SEED, SPLIT_SEED = 12347, 42, 42  # the reference's
ROLES_URL = "https://huggingface.co/datasets/ZenMoore/RoleBench/resolve/a57ed54f9613921e4a5f1b63601a558cd5acf971/profiles-eng/desc.json"


@dataclass(frozen=True)
class Kit:
    """What a source's function works with."""

    library: Library
    config: str

    @property
    def length(self) -> int:
        """Tokens of a prompt of this configuration."""
        length = tokens_of(self.config.rpartition("_")[2])
        if not isinstance(length, int):
            raise Missing(f"{self.config} has no length for it")
        return length

    def words(self, function: str, name: str, count: int = 1) -> list[str]:
        """The first texts of a variable in the framework's code."""
        return words.pick(words.words(self.library), function, name, count)

    def fitted(self, prompt: str) -> str:
        return tokens.fitted(prompt, self.length, tokens.encoder(self.library))


def bamboo(row: Values, kit: Kit) -> list[str]:
    """Dialogues to complete and go on with."""
    rows = kit.library.of_web("RUCAIBox/BAMBOO", row["source"])
    contents = [rows[int(n)]["content"] for n in re.findall(r"_(\d+)", row["src_id"])]
    content = "\n\n".join(f"START CONTENT {n}\n\n{text}\n\nEND CONTENT" for n, text in enumerate(contents, 1))
    (order,) = kit.words("_generate_writing_prompt", "prompt")
    return [kit.fitted(order.format(content=content))]


def cnn_dailymail(row: Values, kit: Kit) -> list[str]:
    """An article to summarise."""
    rows = kit.library.of_hub(*_hub("abisee/cnn_dailymail"), "3.0.0/test*", ("id", "article"))
    return [_filled(row, article=_only(rows, "id", row["src_id"])["article"])]


def hle(row: Values, kit: Kit) -> list[str]:
    """A question; in a throughput split with as many others and their answers before it as make the length."""
    columns = ("id", "question", "image", "rationale", "category")
    rows = kit.library.of_hub(*_hub("cais/hle"), "data/test*", columns)
    asked = _only(rows, "id", row["src_id"])
    if kit.config == "qualitative":
        return [asked["question"]]
    encoder = tokens.encoder(kit.library)
    (order,) = kit.words("_generate_hle_prompt", "prompt")
    before = tokens.ids_of(order.format(asked["category"]), encoder)
    question = tokens.ids_of(asked["question"], encoder)
    others = kit.library.once("other half", lambda: _other_half(rows))
    if any(item["id"] == row["src_id"] for item in others):
        raise Missing("its questions are not halved as the reference halves them, so a question might be its own example")
    category = asked["category"]
    pool = kit.library.once(("examples", category), lambda: _examples(others, category, encoder))
    chance = np.random.default_rng(_seed(row["question_id"]))
    while len(before) + len(question) < kit.length:
        before += pool[chance.integers(len(pool))]
    return [encoder.decode([*before[: kit.length - len(question) + 1], *question])]


def livecodebench(row: Values, kit: Kit) -> list[str]:
    """A programming problem, with the code that it starts from."""
    columns = ("question_id", "question_content", "starter_code")
    rows = kit.library.of_hub(*_hub("livecodebench/code_generation_lite"), "/test*.jsonl", columns)
    problem = _only(rows, "question_id", row["src_id"])
    return [_filled(row, question=problem["question_content"], starter_code=problem["starter_code"])]


def code_contests(row: Values, kit: Kit) -> list[str]:
    rows = kit.library.of_hub(*_hub("deepmind/code_contests"), "data/test*", ("name", "description"))
    return [_filled(row, question=_only(rows, "name", row["src_id"])["description"])]


def mt_bench_101(row: Values, kit: Kit) -> list[str]:
    """What the user says in a dialogue."""
    rows = kit.library.of_web("mtbench101/mt-bench-101", row["source"])
    return [entry["user"] for entry in rows[_last_number(row)]["history"]]


def opus(row: Values, kit: Kit) -> list[str]:
    """A sentence to translate."""
    _, pair, number = row["src_id"].split("_")
    rows = kit.library.of_hub(*_hub("Helsinki-NLP/opus-100"), f"{pair}/test*")
    return [_filled(row, question=rows[int(number)]["translation"])]


def chatrag(row: Values, kit: Kit) -> list[str]:
    """Passages and the questions about them, the first one with the passages."""
    patterns = ("hybridial/test*", "sqa/test*")
    rows = [item for pattern in patterns for item in kit.library.of_hub(*_hub("nvidia/ChatRAG-Bench"), pattern)]
    found = rows[_last_number(row)]
    questions = [message["content"] for message in found["messages"] if message["role"] == "user"]
    (order,) = kit.words("_generate_chatrag_bench_prompt", "prompt")
    context = "\n\n".join(passage["text"] for passage in found["ctxs"])
    return [order.format(context=context, question=questions[0]), *questions[1:]]


def mmlu_pro(row: Values, kit: Kit) -> list[str]:
    """Questions with options that follow each other in the source, one a turn."""
    rows = kit.library.of_hub(*_hub("TIGER-Lab/MMLU-Pro"), "data/test*", ("question", "options"))
    first = int(row["src_id"].partition("(")[2].partition(",")[0])
    asked = [_choices(rows[first + n]) for n in range(len(row["turns"]))]
    (order,) = kit.words("_generate_mmlu_pro_prompt", "prompt")
    return [order.format(subject=row["sub_category"]) + asked[0], *asked[1:]]


def stackselect(row: Values, kit: Kit) -> list[str]:
    """A question and as many of its answers, the best one among them, as make the length."""
    found = _only(kit.library.of_web("AdaLEval/stackselect", row["source"]), "question_id", row["src_id"])
    head, asks, question, lists = kit.words("_generate_stackselect_prompt", "prompt", 4)
    start = head + asks + question.format(question=found["question"]) + lists
    end = "".join(kit.words("_generate_stackselect_prompt", "end_prompt", 3))
    encoder = tokens.encoder(kit.library)
    room = kit.length - sum(len(tokens.ids_of(text, encoder)) for text in (start, end))
    answers = _answers(found["all_answers"], int(found["answer"].strip("A")) - 1, room, encoder)
    random.Random(SHUFFLE_SEED).shuffle(answers)
    return [kit.fitted(start + "".join(_answer(n, text) for n, text in enumerate(answers, 1)) + end)]


def textsort(row: Values, kit: Kit) -> list[str]:
    """Parts of a book to write out in their order, where the source asks for the order only."""
    prompt = kit.library.of_web("AdaLEval/textsort", row["source"])[int(row["src_id"].split("_")[1])]["prompt"]
    (theirs,), (ours,) = (kit.words("_generate_textsort_prompt", f"{which}_instruction") for which in ("original", "new"))
    return [kit.fitted(prompt.replace(theirs, ours, 1))]


def rolebench(row: Values, kit: Kit) -> list[str]:
    """A role to play and what it is asked, one question a turn."""
    kind, numbers = row["src_id"].split("_")[1], [int(n) for n in re.findall(r"_(\d+)", row["src_id"])]
    url = f"{row['source'].replace('/tree/', '/resolve/')}/{kind}/role_specific/test.jsonl"
    rows = kit.library.of_web("ZenMoore/RoleBench", url)
    asked = [rows[n] for n in numbers[: len(row["turns"])]]
    role = asked[0]["role"]
    described = kit.library.of_web("ZenMoore/RoleBench", ROLES_URL)[0][role]
    first = _filled(row, role_name=role, role_description_and_catchphrases=described)
    later = (item["question"].removeprefix(f"{role}, ").removeprefix(f" {role},") for item in asked[1:])
    return [f"{first}\n{asked[0]['question']}", *later]


def coser(row: Values, kit: Kit) -> list[str]:
    """A character of a novel in a scene."""
    url = f"{row['source'].replace('/tree/', '/resolve/')}/test/test_set.json"
    scenes = kit.library.of_web("Neph0s/CoSER", url)
    scene = scenes[int(row["src_id"].split("_")[1])]
    character = str(np.random.default_rng(COSER_SEED).choice(scene["major_characters"]))
    profiles: Mapping[str, Any] = scene["character_profiles"]
    others = [name for name in kit.library.once("characters", lambda: _characters(scenes)) if name in profiles]
    told = [f"{name}: {profiles[name]}" for name in others if name != character and profiles[name] is not None]
    wants = [item["motivation"] for item in scene["key_characters"] if item["name"] == character]
    (order,) = kit.words("_generate_coser_prompt", "prompt")
    holes = {
        "character": character,
        "character_profile": profiles[character],
        "book_name": scene["book"],
        "scenario": scene["scenario"],
        "other_character_profiles_str": "\n\n".join(told),
        "motivation": wants[0] if wants else "No motivation provided",
    }
    return [order.format(**holes)]


REVISIONS = {
    "abisee/cnn_dailymail": "96df5e686bee6baa90b8bee7c28b81fa3fa6223d",  # the reference pins none
    "cais/hle": "021a3d71f516a7ac28ceb8d284969902edf1edeb",
    "livecodebench/code_generation_lite": "0fe84c3912ea0c4d4a78037083943e8f0c4dd505",
    "deepmind/code_contests": "802411c3010cb00d1b05bad57ca77365a3c699d6",
    "Helsinki-NLP/opus-100": "805090dc28bf78897da9641cdf08b61287580df9",
    "nvidia/ChatRAG-Bench": "af6c7d420ddddf21f54f8ab3394bbf462aad2577",
    "TIGER-Lab/MMLU-Pro": "30527804ea8854662078e457808040d872ecdf29",
}
"""Sources that are data sets of the hub. The others are files at the addresses that rows name, with their revisions."""

SOURCES: dict[str, Callable[[Values, Kit], list[str]]] = {
    "RUCAIBox/BAMBOO": bamboo,
    "abisee/cnn_dailymail": cnn_dailymail,
    "cais/hle": hle,
    "livecodebench/code_generation_lite": livecodebench,
    "deepmind/code_contests": code_contests,
    "mtbench101/mt-bench-101": mt_bench_101,
    "Helsinki-NLP/opus-100": opus,
    "nvidia/ChatRAG-Bench": chatrag,
    "TIGER-Lab/MMLU-Pro": mmlu_pro,
    "AdaLEval/stackselect": stackselect,
    "AdaLEval/textsort": textsort,
    "ZenMoore/RoleBench": rolebench,
    "Neph0s/CoSER": coser,
}
"""What a row's `source` contains → its function."""


def _hub(name: str) -> tuple[str, str]:
    return name, REVISIONS[name]


def _only(rows: Iterable[Values], key: str, value: str) -> Values:
    for row in rows:
        if row[key] == value:
            return row
    raise Missing(f"it has no row with {key} {value!r}")


def _filled(row: Values, **holes: Any) -> str:
    """The template that follows the mask in the row, with its holes filled."""
    template: str = row["turns"][0].partition("\n\n")[2]
    return template.format(**holes)


def _characters(scenes: Sequence[Values]) -> dict[str, None]:
    """All names in the order in which they first appear: the reference's reader makes one table of all scenes, and each
    scene's profiles are in the order of that table's columns.
    """
    return dict.fromkeys(name for scene in scenes for name in scene["character_profiles"])


def _last_number(row: Values) -> int:
    return int(row["src_id"].rpartition("_")[2])


def _seed(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def _choices(item: Values) -> str:
    options = "\n".join(f"({chr(ord('A') + n)}) {option}" for n, option in enumerate(item["options"]))
    return f"Question: {item['question']}\n\nOptions: {options}\n\n"


def _other_half(rows: Sequence[Values]) -> list[Values]:
    """The questions that are never asked, halved as `datasets.Dataset.train_test_split(0.5, seed=42)` halves them."""
    order = np.random.default_rng(SPLIT_SEED).permutation(len(rows))
    return [rows[n] for n in order[-(-len(rows) // 2) :]]


def _examples(rows: Sequence[Values], category: str, encoder: tokens.Encoder) -> list[list[int]]:
    """The questions of a category, without pictures, with their answers, as token ids."""
    kept = [item for item in rows if item["category"] == category and not item["image"]]
    if not kept:
        raise Missing(f"it has no other question of category {category!r}")
    return [tokens.ids_of(f"Question: {item['question']}\n\nAnswer: {item['rationale']}\n\n", encoder) for item in kept]


def _answer(number: int, text: str) -> str:
    return f"A{number}:\n\n{text}\n\n"


def _answers(answers: Sequence[str], best: int, room: int, encoder: tokens.Encoder) -> list[str]:
    """The first answers, up to one that is too long beside the best one, which comes first if it is not among them.

    As in the reference, their lengths do not add up: `fitted` cuts what is too long in all.
    """

    def length(n: int) -> int:
        return len(tokens.ids_of(_answer(n + 1, answers[n]), encoder))

    room -= length(best)
    others = [n for n in range(len(answers)) if n != best]
    n_short = next((i for i, n in enumerate(others) if length(n) > room), len(others))
    last = others[n_short - 1] if n_short else 0
    kept = list(answers[: last + 1])
    return kept if last >= best else [answers[best], *kept]
