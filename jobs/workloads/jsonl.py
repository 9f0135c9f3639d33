"""Owns the workload `jsonl`: prompts of your own, out of JSON, CSV or Parquet. Does not own the reading of files.

A row asks by `text`, `turns`, `messages` or `token_ids`. What the file calls these and the other COLUMNS is said in
`workload.columns`; `a.b` is b in the object a.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jobs.errors import BadInput
from jobs.spec import Workload
from jobs.workloads.base import Prompt, Template, question_id_of, refuse_meaningless
from jobs.workloads.dialogue import Dialogue, dialogue_of
from jobs.workloads.files import chosen
from jobs.workloads.rows import Row, loaded, require, rows_of

ASKS = ("text", "turns", "messages", "token_ids")
LABELS = ("question_id", "category", "sub_category", "difficulty", "source", "src_id")
COLUMNS = (*ASKS, *LABELS, "system", "tools", "output_limit")
CATEGORY = "own"  # of prompts whose file has no categories
FILES = ("*.jsonl", "*.ndjson", "*.parquet", "*.json", "*.csv")

MEANINGLESS = {
    "isl": "its prompts are as long as they are; none is padded or cut",
    "entropy": "its prompts are not sorted by it; use categories",
}


@dataclass(frozen=True)
class GivenIds:
    """The recipe of a prompt that comes as token ids: they are sent as they are, in no template."""

    ids: tuple[int, ...]
    place: str  # where they were read

    @property
    def isl(self) -> int:
        return len(self.ids)

    def made(self, template: Template) -> tuple[str, list[int]]:
        if max(self.ids) >= template.vocabulary_size:
            raise BadInput(
                f"`token_ids` must be below the size of the model's vocabulary, {template.vocabulary_size}: got "
                f"{max(self.ids)} in {self.place}. Use ids of this model's tokenizer, or send text."
            )
        return told(self.ids), list(self.ids)


def read_prompts(workload: Workload) -> list[Prompt]:
    """The prompts of the files that `workload.path` (and of a folder `workload.split`, a pattern) names."""
    refuse_meaningless(workload, MEANINGLESS)
    names = names_of(workload.columns, COLUMNS)
    rows = rows_of(chosen(workload, FILES))
    require(rows, [names[name] for name in workload.columns])
    asks = [name for name in ASKS if name in workload.columns]
    prompts = [_prompt(row, names, _ask(row, names, asks or ASKS)) for row in rows]
    return unique(prompts, has_ids=rows[0].get(names["question_id"]) is not None)


def names_of(columns: Mapping[str, str], known: Sequence[str]) -> dict[str, str]:
    """Our name of a column → the file's; `BadInput` for a column that we do not know."""
    if unknown := sorted(set(columns) - set(known)):
        raise BadInput(
            f"`workload.columns` must map these to a file's columns: {', '.join(known)}. Got "
            f"{', '.join(map(repr, unknown))}. Use those, as in 'workload.columns={{text: prompt}}'."
        )
    for ours, theirs in columns.items():
        if not isinstance(theirs, str) or not theirs:
            raise BadInput(
                f"`workload.columns.{ours}` must be the name of a column: got {theirs!r}. Write "
                f"'workload.columns={{{ours}: NAME}}'."
            )
    return {**{name: name for name in known}, **columns}


def columns_of(given: Sequence[str]) -> dict[str, str]:
    """`workload.columns` out of a command's `--column OURS=THEIRS`; `BadInput` for one that reads otherwise."""
    pairs = [item.partition("=") for item in given]
    if wrong := [item for item, (ours, _, theirs) in zip(given, pairs, strict=True) if not (ours and theirs)]:
        raise BadInput(f"--column must read OURS=THEIRS: got {wrong[0]!r}. Write --column text=prompt.")
    if twice := [ours for ours, count in Counter(ours for ours, *_ in pairs).items() if count > 1]:
        raise BadInput(f"--column must name each of our columns once: got {twice[0]} twice. Leave one out.")
    return {ours: theirs for ours, _, theirs in pairs}


def unique(prompts: Sequence[Prompt], has_ids: bool) -> list[Prompt]:
    """The prompts, each with an id of its own: a second one of the same text gets a number; ids of a file must be unique."""
    seen: Counter[str] = Counter()
    kept = []
    for prompt in prompts:
        seen[prompt.question_id] += 1
        count = seen[prompt.question_id]
        if has_ids and count > 1:
            raise BadInput(f"`question_id` must be unique: got {prompt.question_id!r} twice. Map another column, or none.")
        kept.append(prompt if count == 1 else replace(prompt, question_id=question_id_of(prompt.question_id, count)))
    return kept


def told(ids: Sequence[int]) -> str:
    """What stands for a prompt that has no text."""
    return f"{len(ids)} token ids"


def _ask(row: Row, names: Mapping[str, str], asks: Sequence[str]) -> str:
    """By which of `asks` (those that are mapped, or all) the row asks: the only one that it has."""
    found = [name for name in asks if row.get(names[name]) is not None]
    if len(found) == 1:
        return found[0]
    filled = sorted(name for name, value in row.values.items() if value is not None)
    has = f"{len(found)} of them, {' and '.join(found)}" if found else f"none, but {', '.join(filled) or 'nothing at all'}"
    raise BadInput(
        f"a row must ask by one of {', '.join(names[name] for name in asks)}: {row.place} has {has}. Say which it is: "
        "'workload.columns={text: NAME}'."
    )


def _prompt(row: Row, names: Mapping[str, str], ask: str) -> Prompt:
    ids = _ids(row, names[ask]) if ask == "token_ids" else ()
    dialogue = Dialogue((), (told(ids),)) if ids else _dialogue(row, names[ask], ask)
    opening = ({"role": "system", "content": row.text(names["system"])},) if row.get(names["system"]) else ()
    if opening and (dialogue.opening or ids):
        raise row.wrong("`system` must be for rows without a system prompt", ask, "Leave the column out.")
    labels: dict[str, Any] = {name: row.text(names[name]) for name in LABELS}
    labels["question_id"] = labels["question_id"] or _content_id(row, names[ask])
    labels["category"] = labels["category"] or CATEGORY
    return Prompt(
        **labels,
        turns=dialogue.turns,
        multiturn=len(dialogue.turns) > 1,
        opening=opening or dialogue.opening,
        recorded=dialogue.recorded,
        tools=_tools(row, names["tools"]),
        output_limit=row.count(names["output_limit"]),
        recipe=GivenIds(ids, row.place) if ids else None,
    )


def _dialogue(row: Row, column: str, ask: str) -> Dialogue:
    value = structured(row, column)
    if ask == "messages":
        return dialogue_of(value, row)
    turns = value if ask == "turns" else [row.get(column)]
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) and turn.strip() for turn in turns):
        what, example = ("a list of texts", '["...", "..."]') if ask == "turns" else ("text", '"..."')
        raise row.wrong(
            f"`{column}` must be {what}, none of it blank", row.get(column), f"Write {example}, or take the row out."
        )
    return Dialogue((), tuple(turns))


def _ids(row: Row, column: str) -> tuple[int, ...]:
    ids = structured(row, column)
    if not isinstance(ids, list) or not ids or not all(type(id_) is int and id_ >= 0 for id_ in ids):
        raise row.wrong(f"`{column}` must be a list of token ids", ids, "Write [1, 2, 3].")
    return tuple(ids)


def _tools(row: Row, column: str) -> tuple[Mapping[str, Any], ...]:
    tools = structured(row, column) or []
    if not isinstance(tools, list) or not all(isinstance(tool, Mapping) for tool in tools):
        raise row.wrong(f"`{column}` must be a list of tools", tools, "Write them as the chat API does.")
    return tuple(tools)


def structured(row: Row, column: str) -> Any:
    """A value, which CSV (and some Parquet) can only hold as JSON text."""
    value = row.get(column)
    if isinstance(value, str) and value.lstrip().startswith(("[", "{")):
        try:
            return loaded(value, row.place)
        except json.JSONDecodeError:
            return value
    return value


def _content_id(row: Row, column: str) -> str:
    """An id for a row that has none: of its content, so that the order of the file does not matter."""
    return question_id_of(json.dumps(row.get(column), sort_keys=True, default=str), row.text("system"))
