"""Stand-ins of our own for SPEED-Bench, its sources, and the words of its prompts: their shapes, none of their texts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from storage.datasets import write_rows

MASK = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH"
HUB = "https://huggingface.co/datasets"
TEN = range(10)

WORDS = '''
class Any:
    def _generate_stackselect_prompt(question, answers, answer):
        prompt = """Choose {{one}}.\\n"""
        prompt += "The asked:\\n"
        prompt += question + "\\n\\n"
        prompt += "The answers:\\n"
        for i, answer in enumerate(answers):
            prompt += f"A{i + 1}: {answer}"
        end_prompt = "Now choose.\\n"
        end_prompt += "Say why.\\n"
        end_prompt += "Say why not.\\n"
        prompt += end_prompt

    def _generate_textsort_prompt(prompt):
        original_instruction = "Give the order. "
        new_instruction = "Write it all out. "
        return prompt.replace(original_instruction, new_instruction, 1)

    def _generate_writing_prompt(contents):
        content = "\\n\\n".join(contents)
        prompt = f"""Go on {{so}}:
{content}
"""

    def _generate_chatrag_bench_prompt(row):
        prompt = "Read:\\n{context}\\nAnswer:\\n{question}"

    def _generate_coser_prompt(row):
        prompt = """You are {character} of {book_name}: {character_profile}; {scenario}; {motivation}; \
{other_character_profiles_str}"""

    def _generate_mmlu_pro_prompt(row, subject):
        prompt = 'Choose, in {subject}: '

    def _generate_hle_prompt(example, hle_train, num_tokens):
        prompt = (
            "Examples "
            "of " + example["category"] + ":\\n\\n"
        )
        prompt += hle_train["demonstration"].iloc[0]
'''


class Letters:
    """An encoding with a token a character."""

    def encode(self, text: str, *, disallowed_special: Any) -> list[int]:
        assert disallowed_special == ()
        return [ord(letter) for letter in text]

    def decode(self, tokens: Iterable[int]) -> str:
        return "".join(map(chr, tokens))


def masked_row(
    number: int, source: str, src_id: str, template: str = "", n_turns: int = 1, **columns: str
) -> dict[str, Any]:
    return {
        "question_id": f"{number:032x}",
        "category": "writing",
        "sub_category": "law",
        "turns": [f"{MASK}\n\n{template}" if template else MASK] * n_turns,
        "source": source,
        "src_id": src_id,
        "difficulty": "",
        "multiturn": n_turns > 1,
        **columns,
    }


ROWS = [
    masked_row(1, "abisee/cnn_dailymail", "c3", "Sum up: {article}"),
    masked_row(2, "cais/hle", "h2"),
    masked_row(3, "livecodebench/code_generation_lite", "l4", "Solve {question} from {starter_code}"),
    masked_row(4, "deepmind/code_contests", "d5", "Solve {question}"),
    masked_row(5, "https://raw.githubusercontent.com/mtbench101/mt-bench-101/a1/data/mtbench101.jsonl", "mtb_6", n_turns=2),
    masked_row(6, "Helsinki-NLP/opus-100", "opus_de-en_7", "Translate {question[de]}"),
    masked_row(7, "nvidia/ChatRAG-Bench", "chatrag_11", n_turns=2),
    masked_row(8, "TIGER-Lab/MMLU-Pro", "range(3, 5)", n_turns=2),
    masked_row(
        9,
        f"{HUB}/ZenMoore/RoleBench/tree/b2/rolebench-eng/instruction-generalization",
        "role_general_2_3",
        "Be {role_name}, {role_description_and_catchphrases}",
        n_turns=2,
    ),
    masked_row(10, f"{HUB}/Neph0s/CoSER/tree/c3", "coser_1"),
]
LONG_ROWS = [
    masked_row(21, f"{HUB}/RUCAIBox/BAMBOO/resolve/d4/meetingpred_4k.jsonl", "meeting_1_3"),
    masked_row(22, "cais/hle", "h5"),
    masked_row(23, "cais/hle", "h6"),
    masked_row(24, f"{HUB}/AdaLEval/stackselect/resolve/e5/stackselect_4k.json", "s1"),
    masked_row(25, f"{HUB}/AdaLEval/textsort/resolve/f6/textsort_4k.json", "textsort_2"),
]
OPEN = {**masked_row(99, "own", "o1"), "turns": ["Nothing is masked here."]}


def write_sources(folder: Path) -> dict[str, Path]:
    """Source name → its folder (or file): what `--source NAME=PATH` takes."""

    def place(source: str, name: str) -> Path:
        path = folder / source.replace("/", "--") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def parquet(source: str, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        write_rows(place(source, name), list(rows))

    def lines(source: str, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        place(source, name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    parquet(
        "abisee/cnn_dailymail", "3.0.0/test-0.parquet", ({"id": f"c{n}", "article": f"article {n}", "x": 0} for n in TEN)
    )
    parquet(
        "cais/hle",
        "data/test-0.parquet",
        (
            {"id": f"h{n}", "question": f"riddle {n}?", "image": "", "rationale": f"because {n}" * 9, "category": "Maths"}
            for n in TEN
        ),
    )
    code = "livecodebench/code_generation_lite"
    lines(
        code,
        "test.jsonl",
        ({"question_id": f"l{n}", "question_content": f"sort {n}", "starter_code": "f()"} for n in (1, 2)),
    )
    lines(
        code,
        "test2.jsonl",
        ({"question_id": f"l{n}", "question_content": f"sort {n}", "starter_code": "g()"} for n in (3, 4)),
    )
    parquet("deepmind/code_contests", "data/test-0.parquet", ({"name": f"d{n}", "description": f"task {n}"} for n in TEN))
    histories = ({"history": [{"user": f"{n} one", "bot": ""}, {"user": f"{n} two", "bot": ""}]} for n in TEN)
    lines("mtbench101/mt-bench-101", "data/mtbench101.jsonl", histories)
    parquet(
        "Helsinki-NLP/opus-100", "de-en/test-0.parquet", ({"translation": {"de": f"Satz {n}", "en": f"{n}"}} for n in TEN)
    )
    for part in ("hybridial", "sqa"):
        said = [{"role": role, "content": f"{part} {role} {n}"} for n in (1, 2) for role in ("user", "assistant")]
        talks = [{"messages": said, "ctxs": [{"text": f"{part} {n}"}, {"text": "more"}]} for n in TEN]
        place("nvidia/ChatRAG-Bench", f"data/{part}/test.json").write_text(json.dumps(talks))
    parquet("TIGER-Lab/MMLU-Pro", "data/test-0.parquet", ({"question": f"which {n}", "options": ["a", "b"]} for n in TEN))
    asked = ({"role": "Ann", "question": f"Ann, who are you {n}?"} for n in TEN)
    lines("ZenMoore/RoleBench", "rolebench-eng/instruction-generalization/general/role_specific/test.jsonl", asked)
    place("ZenMoore/RoleBench", "profiles-eng/desc.json").write_text(json.dumps({"Ann": "a sailor", "Bob": "a cook"}))
    scenes = [
        {
            "book": f"book {n}",
            "scenario": "a storm",
            "major_characters": ["Ann", "Bob"],
            "key_characters": [{"name": "Ann", "motivation": "home"}, {"name": "Bob", "motivation": "soup"}],
            "character_profiles": {"Ann": "a sailor", "Bob": "a cook", "Cid": None},
        }
        for n in TEN
    ]
    scenes[2]["character_profiles"] = {"Eve": "a spy", "Bob": "a cook", "Dan": "a smith", "Ann": "a sailor"}
    place("Neph0s/CoSER", "test/test_set.json").write_text(json.dumps(scenes))
    lines("RUCAIBox/BAMBOO", "meetingpred_4k.jsonl", ({"content": f"A: {n}" * 9} for n in TEN))
    answers = [f"answer {n} " * 20 for n in range(1, 6)]
    lines(
        "AdaLEval/stackselect",
        "stackselect_4k.json",
        ({"question_id": f"s{n}", "question": "why?", "all_answers": answers, "answer": "A4"} for n in TEN),
    )
    lines("AdaLEval/textsort", "textsort_4k.json", ({"prompt": f"Give the order. Parts {n}" + "x" * 2000} for n in TEN))
    place("NVIDIA/Model-Optimizer", "speed.py").write_text(WORDS)
    found = {path.name.replace("--", "/"): path for path in folder.iterdir()}
    found["NVIDIA/Model-Optimizer"] /= "speed.py"
    return found
