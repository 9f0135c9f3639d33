"""Owns the way from a workload to a pool of texts, and from prompts back to rows that `workload=jsonl` reads.

Does not own the reading of files, or which prompts are picked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobs.errors import BadInput
from jobs.spec import Workload
from jobs.workloads import reader_of
from jobs.workloads.base import Prompt
from jobs.workloads.jsonl import LABELS
from jobs.workloads.stratify import of_categories

IN_TEXT = "\n\n"  # between the turns of a prompt, where its text is embedded


@dataclass(frozen=True)
class Pool:
    """Prompts by their id, so that a file's order does not matter; the place of each in its files; how many these hold."""

    prompts: list[Prompt]
    places: list[int]
    in_files: int


def read_pool(workload: Workload) -> Pool:
    """The prompts of the workload's categories; `BadInput` for those that are more than words, which rows would lose."""
    found = reader_of(workload.name)(workload)
    for prompt in found:
        if reason := _no_text(prompt):
            raise BadInput(
                f"a pool must be prompts in words: {prompt.question_id} of `{workload.name}` {reason}. Use another workload."
            )
    place_of = {prompt.question_id: place for place, prompt in enumerate(found)}
    wanted = of_categories(found, workload.categories, workload.name)
    prompts = sorted(wanted, key=lambda prompt: prompt.question_id)
    return Pool(prompts, [place_of[prompt.question_id] for prompt in prompts], len(found))


def _no_text(prompt: Prompt) -> str:
    if prompt.recipe:
        return "is made of token ids"
    if prompt.expects:
        return "says what a valid answer is"
    return "has a time at which it came" if prompt.arrival_s is not None else ""


def text_of(prompt: Prompt) -> str:
    """What is embedded: what is asked, turn by turn, without the system prompt and the answers on record."""
    return IN_TEXT.join(prompt.turns)


def rows_for(prompts: Sequence[Prompt]) -> list[dict[str, Any]]:
    """The rows of a file that `workload=jsonl` reads as these very prompts: all ask by `turns`, or all by `messages`."""
    has_messages = any(prompt.recorded or _is_more_than_system(prompt.opening) for prompt in prompts)
    return [_row(prompt, has_messages=has_messages) for prompt in prompts]


def _is_more_than_system(opening: Sequence[Mapping[str, Any]]) -> bool:
    return bool(opening) and [dict(item) for item in opening] != [{"role": "system", "content": opening[0]["content"]}]


def _row(prompt: Prompt, *, has_messages: bool) -> dict[str, Any]:
    row: dict[str, Any] = {name: value for name in LABELS if (value := getattr(prompt, name))}
    if has_messages:
        said = [message for part in prompt.recorded for message in part]
        row["messages"] = [*prompt.opening, *(said or ({"role": "user", "content": turn} for turn in prompt.turns))]
    else:
        row["turns"] = list(prompt.turns)
        row |= {"system": prompt.opening[0]["content"]} if prompt.opening else {}
    row |= {"tools": list(prompt.tools)} if prompt.tools else {}
    return row | ({"output_limit": prompt.output_limit} if prompt.output_limit else {})
