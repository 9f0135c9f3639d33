"""Owns the built-in workload `mini`: prompts of our own, in all categories of SPEED-Bench. Does not own their selection."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jobs.spec import Workload
from jobs.workloads.base import Prompt, refuse_meaningless

DATA = Path(__file__).parent / "data" / "mini.jsonl"

MEANINGLESS = {
    "split": "its prompts are one set",
    "path": "its prompts are part of SpecSweep",
    "revision": "its prompts are part of SpecSweep",
    "columns": "it reads no file of yours",
    "entropy": "its prompts are of one kind",
    "isl": "its prompts are whole texts of 30 to 900 tokens, and none is padded or cut to a length",
}
"""Field of `Workload` → why it can mean nothing for `mini`."""


def read_prompts(workload: Workload) -> list[Prompt]:
    """All prompts, in the order of the file; `BadInput` for a field that `mini` could only ignore."""
    refuse_meaningless(workload, MEANINGLESS)
    return [_prompt(json.loads(line)) for line in DATA.read_text(encoding="utf-8").splitlines()]


def _prompt(row: dict[str, Any]) -> Prompt:
    return Prompt(**{**row, "turns": tuple(row["turns"])})
