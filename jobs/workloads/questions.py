"""Owns the workloads `spec_bench` and `mt_bench`: a question.jsonl of which the number in each category is known.

Does not own their texts: `workload.path` names the file, as its authors publish it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from jobs.errors import BadInput
from jobs.spec import Workload
from jobs.workloads.base import Prompt, refuse_meaningless
from jobs.workloads.dialogue import Dialogue
from jobs.workloads.files import located
from jobs.workloads.jsonl import unique
from jobs.workloads.rows import Row, require, rows_of
from jobs.workloads.speed_bench import prompt_of

EIGHT = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
MT_BENCH = dict.fromkeys(EIGHT, 10)
SPEC_BENCH = {**MT_BENCH, **dict.fromkeys(("translation", "summarization", "qa", "math_reasoning", "rag"), 80)}
PATTERNS = ("question.jsonl", "*/question.jsonl", "*.jsonl", "*.parquet")

MEANINGLESS = {
    "split": "it has one",
    "columns": "its columns are known",
    "isl": "its prompts are whole texts",
    "entropy": "its prompts are not sorted by it",
}


def read_mt_bench(workload: Workload) -> list[Prompt]:
    """80 questions of two turns in 8 categories."""
    return _read(workload, MT_BENCH)


def read_spec_bench(workload: Workload) -> list[Prompt]:
    """480 questions in 13 categories: those of MT-Bench, and 80 of each of 5 tasks of one turn."""
    return _read(workload, SPEC_BENCH)


def _read(workload: Workload, counts: Mapping[str, int]) -> list[Prompt]:
    refuse_meaningless(workload, MEANINGLESS)
    rows = rows_of(located(workload, PATTERNS))
    column = "turns" if rows[0].get("turns") is not None else "prompt"  # as the hub's copy of MT-Bench calls it
    require(rows, ["category", column if column in rows[0].values else "turns"])
    prompts = [_prompt(row, column, number) for number, row in enumerate(rows)]
    found = Counter(prompt.category for prompt in prompts)
    if found != counts:
        names = sorted(name for name in {*found, *counts} if found[name] != counts.get(name, 0))
        told = ", ".join(f"{found[name]} of {name} (not {counts.get(name, 0)})" for name in names)
        raise BadInput(
            f"`{workload.name}` must have its number of questions in each category: got {told} in {workload.path}. "
            "Copy it anew, or send what you have as your own prompts (workload=jsonl)."
        )
    return unique(prompts, has_ids=False)


def _prompt(row: Row, column: str, number: int) -> Prompt:
    turns = row.get(column)
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) and turn for turn in turns):
        raise row.wrong(f"`{column}` must be a list of texts", turns, "Copy the file anew.")
    prompt = prompt_of(row, Dialogue((), tuple(turns)))
    return replace(prompt, question_id=prompt.question_id or row.text("prompt_id") or str(number))
