"""Owns the workloads of SPEED-Bench: its files, as the hub or other tools have them, and what must be true before a run.

Does not own how masked rows get their texts (`jobs.workloads.prepare`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from jobs.errors import BadInput
from jobs.spec import Workload
from jobs.workloads.base import Prompt, refuse_meaningless
from jobs.workloads.dialogue import Dialogue, dialogue_of
from jobs.workloads.files import located
from jobs.workloads.rows import Row, require, rows_of

MASK = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"
"""How the first turn of a row begins whose text may not be passed on by the data set; its template may follow."""

QUALITATIVE = {
    name: 80
    for name in (
        *("coding", "humanities", "math", "multilingual", "qa", "rag", "reasoning", "roleplay", "stem"),
        *("summarization", "writing"),
    )
}
TIERS = {"low": "low_entropy", "mixed": "mixed", "high": "high_entropy"}
"""`workload.entropy` → category of the throughput split."""
THROUGHPUT = dict.fromkeys(TIERS.values(), 512)
LENGTHS = {1000: "1k", 2000: "2k", 8000: "8k", 16_000: "16k", 32_000: "32k"}
CONFIGS = ("qualitative", *(f"throughput_{k}" for k in LENGTHS.values()), "agentic")
REQUIRED = ("question_id", "category")

NEVER = {"split": "its configuration says which split it is", "columns": "its columns are known"}
NO_TIERS = {"isl": "only its throughput split comes in lengths", "entropy": "only its throughput split comes in tiers"}


def read_qualitative(workload: Workload) -> list[Prompt]:
    """The 880 prompts in 11 categories. How many have several turns is known only when the sources have given their texts:
    a masked row is often a single turn, whatever comes of it."""
    refuse_meaningless(workload, {**NEVER, **NO_TIERS})
    rows = _rows(workload, "qualitative", QUALITATIVE)
    return [prompt_of(row, dialogue_in(row)) for row in _whole(rows, "qualitative", workload.categories)]


def read_throughput(workload: Workload) -> list[Prompt]:
    """The 512 prompts of one length and tier, or the 1536 of all three tiers."""
    refuse_meaningless(workload, NEVER)
    if workload.isl not in LENGTHS:
        known = ", ".join(LENGTHS.values())
        raise BadInput(
            f"`workload.isl` must be a length of SPEED-Bench: got {workload.isl!r}. Known: {known}. Use one of them."
        )
    config = f"throughput_{LENGTHS[workload.isl]}"
    rows = _rows(workload, config, THROUGHPUT)
    wanted = [TIERS[workload.entropy]] if workload.entropy else workload.categories
    kept = [row for row in _whole(rows, config, wanted) if not workload.entropy or row.get("category") in wanted]
    return [prompt_of(row, dialogue_in(row)) for row in kept]


def read_agentic(workload: Workload) -> list[Prompt]:
    """The recorded trajectories, with a request where each of their answers stood; every category of them."""
    refuse_meaningless(workload, {**NEVER, **NO_TIERS})
    return [_trajectory(row) for row in _rows(workload, "agentic", {})]


def patterns_of(config: str) -> tuple[str, ...]:
    """Where the files of a configuration are: in a folder or file of its name, or they are all that there is."""
    return (
        f"{config}/*.parquet",
        f"{config}[.-]*parquet",
        f"{config}/*.jsonl",
        f"{config}.jsonl",
        "/test*.parquet",
        "/test*.jsonl",
    )


def is_masked(turns: Sequence[str]) -> bool:
    """Whether a row's text must still be fetched from its source."""
    return any(turn.startswith(MASK) for turn in turns)


def _rows(workload: Workload, config: str, counts: Mapping[str, int]) -> list[Row]:
    """The rows of a configuration, each category as large as it must be."""
    rows = rows_of(located(workload, patterns_of(config)))
    require(rows, REQUIRED)
    require(rows, ["messages" if rows[0].get("messages") is not None else "turns"])
    ids = Counter(row.text("question_id") for row in rows)
    if twice := [name for name, count in ids.items() if count > 1]:
        raise BadInput(
            f"`question_id` must be unique: {twice[0]!r} occurs {ids[twice[0]]} times in {workload.path}, and {len(twice)} "
            "do in all. Copy it anew."
        )
    _check_counts(Counter(row.text("category") for row in rows), counts, config, workload.path)
    return rows


def _check_counts(found: Mapping[str, int], counts: Mapping[str, int], config: str, path: str) -> None:
    remedy = "Copy it anew, or send what you have as your own prompts (workload=jsonl)."
    if missing := sorted(set(counts) - set(found)):
        raise BadInput(
            f"SPEED-Bench {config} must have every category: got none of {', '.join(missing)} in {path}. It has "
            f"{', '.join(sorted(found))}. {remedy}"
        )
    if counts and (wrong := sorted(name for name in found if found[name] != counts.get(name, 0))):
        told = ", ".join(f"{found[name]} of {name} (not {counts.get(name, 0)})" for name in wrong)
        raise BadInput(f"SPEED-Bench {config} must have its number of rows in each category: got {told} in {path}. {remedy}")


def _whole(rows: Sequence[Row], config: str, wanted: Sequence[str]) -> list[Row]:
    """The rows, if no category that is wanted ([] = all) has a masked one; `BadInput` tells how to get their texts."""
    masked = [row for row in rows if is_masked(dialogue_in(row).turns)]
    touched = Counter(row.text("category") for row in masked)
    if not (touched if not wanted else set(wanted) & set(touched)):
        return list(rows)
    whole = sorted({row.text("category") for row in rows} - set(touched))
    others = f" or use only what is whole already: 'workload.categories=[{','.join(whole)}]'" if whole else ""
    told = ", ".join(f"{name} {count}" for name, count in sorted(touched.items()))
    raise BadInput(
        f"SPEED-Bench must be whole before it is run: {len(masked)} of {len(rows)} rows of {config} are masked ({told}), "
        f"and their texts must come from their sources. Run `python -m jobs.workloads.prepare speed_bench --config {config} "
        f"--output data/speed_bench`, then set workload.path=data/speed_bench{others}."
    )


def dialogue_in(row: Row) -> Dialogue:
    """What is asked in a row, whichever of the two columns has it; `BadInput` for what is no list of texts."""
    turns = row.get("turns")
    if turns is None:
        return dialogue_of(row.get("messages"), row)
    if not isinstance(turns, list) or not all(isinstance(turn, str) for turn in turns) or not _is_said(turns):
        raise row.wrong("`turns` must be a list of texts, none of it empty", turns, "Copy the data set anew.")
    return Dialogue((), tuple(turns))


def _is_said(turns: Sequence[str]) -> bool:
    """Whether each turn says something; those after a mask need not, of which only the number counts."""
    return bool(turns) and (turns[0].startswith(MASK) or all(turns))


def _trajectory(row: Row) -> Prompt:
    """`turns` are chat messages here, and `extras` has the tools that they call, as JSON in JSON."""
    messages = row.get("turns") if row.get("turns") is not None else row.get("messages")
    return prompt_of(row, dialogue_of(messages, row), _tools(row))


def _tools(row: Row) -> tuple[Mapping[str, Any], ...]:
    try:
        extras = _loaded(row.get("extras") or {})
        tools = _loaded(extras.get("tools") or []) if isinstance(extras, Mapping) else None
    except ValueError as error:
        raise row.wrong("`extras` must be JSON", str(error), "Copy the data set anew.") from None
    if not isinstance(tools, list):
        raise row.wrong("`extras.tools` must be a list of tools", tools, "Copy the data set anew.")
    return tuple(tools)


def _loaded(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


def prompt_of(row: Row, dialogue: Dialogue, tools: tuple[Mapping[str, Any], ...] = ()) -> Prompt:
    """A prompt with the columns that SPEED-Bench and its kin have."""
    return Prompt(
        question_id=row.text("question_id"),
        category=row.text("category"),
        turns=dialogue.turns,
        sub_category=row.text("sub_category"),
        source=row.text("source"),
        src_id=row.text("src_id"),
        difficulty=row.text("difficulty"),
        multiturn=len(dialogue.turns) > 1,
        opening=dialogue.opening,
        recorded=dialogue.recorded,
        tools=tools,
    )
