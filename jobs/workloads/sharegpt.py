"""Owns the workload `sharegpt`: dialogues of people with a chat model, as ShareGPT's files have them. Does not own any.

By default the first question of each is asked, as other benchmarks do; `split: dialogue` asks all of them, each after the
recorded answers to those before.
"""

from __future__ import annotations

from typing import Any

from jobs.errors import BadInput
from jobs.spec import Workload
from jobs.workloads.base import Prompt, question_id_of, refuse_meaningless
from jobs.workloads.dialogue import Dialogue, dialogue_of
from jobs.workloads.files import located
from jobs.workloads.jsonl import unique
from jobs.workloads.rows import Row, require, rows_of

CATEGORY = "sharegpt"
FILES = ("ShareGPT_V3_unfiltered_cleaned_split.json", "*.json", "*.jsonl", "*.parquet")
SPLITS = ("", "dialogue")
SPEAKERS = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "chatgpt", "bing", "bard", "assistant"), "assistant"),
    "system": "system",
}
MEANINGLESS = {
    "columns": "its columns are known",
    "isl": "its prompts are as long as they are; none is padded or cut",
    "entropy": "its prompts are not sorted by it",
}


def read_prompts(workload: Workload) -> list[Prompt]:
    """A prompt for each dialogue in which somebody asks something; the others (there are some) have nothing to send."""
    refuse_meaningless(workload, MEANINGLESS)
    if workload.split not in SPLITS:
        raise BadInput(
            '`workload.split` must be "" (the first question) or dialogue for `sharegpt`: got '
            f"{workload.split!r}. Use one of them."
        )
    rows = rows_of(located(workload, FILES))
    require(rows, ["conversations"], "ShareGPT's files have id and conversations; for others use workload=jsonl.")
    prompts = [prompt for row in rows if (prompt := _prompt(row, workload.split == "dialogue"))]
    if not prompts:
        raise BadInput(
            f"a dialogue must have a human's turn: none of the {len(rows)} in {workload.path} has. Name another file."
        )
    return unique(prompts, has_ids=False)


def _prompt(row: Row, is_whole: bool) -> Prompt | None:
    messages = _messages(row)
    first = next((n for n, item in enumerate(messages) if item["role"] == "user" and item["content"].strip()), None)
    if first is None:
        return None
    opening = [item for item in messages[:first] if item["role"] == "system"]
    asked = messages[first:] if is_whole else messages[first : first + 1]
    dialogue: Dialogue = dialogue_of([*opening, *asked], row)
    return Prompt(
        question_id_of("sharegpt", row.text("id"), *dialogue.turns),
        CATEGORY,
        dialogue.turns,
        source="sharegpt",
        src_id=row.text("id"),
        multiturn=len(dialogue.turns) > 1,
        opening=dialogue.opening,
        recorded=dialogue.recorded,
    )


def _messages(row: Row) -> list[dict[str, Any]]:
    said = row.get("conversations")
    if not isinstance(said, list) or not all(isinstance(item, dict) and str(item.get("from")) in SPEAKERS for item in said):
        raise row.wrong(f"`conversations` must be a list of turns from {', '.join(SPEAKERS)}", said, "Correct the row.")
    if not all(isinstance(item.get("value"), str) for item in said):
        raise row.wrong("each turn of `conversations` must have its text in `value`", said, "Correct the row.")
    return [{"role": SPEAKERS[item["from"]], "content": item["value"]} for item in said]
