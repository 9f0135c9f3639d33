"""Owns the workloads `structured` and `creative`, whose prompts we wrote. Does not own what makes an answer valid."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jobs.spec import Workload
from jobs.workloads.base import Prompt, refuse_meaningless

DATA = Path(__file__).parent / "data"

MEANINGLESS = {
    "split": "its prompts are one set",
    "path": "its prompts are part of SpecSweep",
    "revision": "its prompts are part of SpecSweep",
    "columns": "it reads no file of yours",
    "isl": "its prompts are whole texts, and none is padded or cut to a length",
    "entropy": "its prompts are of one kind",
}


def read_structured(workload: Workload) -> list[Prompt]:
    """Prompts for JSON, SQL and tool calls, each with what a valid answer keeps (`Prompt.expects`)."""
    return _read(workload, "structured.jsonl")


def read_creative(workload: Workload) -> list[Prompt]:
    """The opposite: stories, poems, dialogues and inventions, which nothing foretells."""
    return _read(workload, "creative.jsonl")


def _read(workload: Workload, file: str) -> list[Prompt]:
    refuse_meaningless(workload, MEANINGLESS)
    return [_prompt(json.loads(line)) for line in (DATA / file).read_text(encoding="utf-8").splitlines()]


def _prompt(row: dict[str, Any]) -> Prompt:
    expects = json.dumps(row.pop("expects")) if "expects" in row else ""
    return Prompt(**{**row, "turns": tuple(row["turns"]), "expects": expects})
