"""Owns how a run of the command ends: the table, what failed, where everything is, what to type next, the exit code.

Does not own any number: it shows what `storage` says.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from jobs.spec import Cell
from storage.report import find, render_summary, write_report
from storage.views import open_runs

ALL_MEASURED, SOME_FAILED = 0, 1
INVALID = "invalid"
SHOWN = 20  # lines of failures; the rest is a count


def conclude(folder: Path, cells: Sequence[Cell], command: Sequence[str], console: Console) -> int:
    """Tell what came of these cells; the exit code."""
    findings = find([folder])
    console.print(render_summary(findings))
    problems = list(_problems(folder, cells))
    for line in [*problems[:SHOWN], *([f"... and {len(problems) - SHOWN} more"] if len(problems) > SHOWN else [])]:
        _say(console, line)
    _say(console, f"Results: {folder}    Report: {write_report(folder, findings)}")
    _say(console, f"Next: {_next(folder, problems, command)}")
    return SOME_FAILED if problems else ALL_MEASURED


def _problems(folder: Path, cells: Sequence[Cell]) -> Iterator[str]:
    """A line for each cell of this sweep that failed, is invalid, or was not measured."""
    with open_runs([folder]) as runs:
        rows = runs.execute("SELECT cell_id, valid, status, reasons, error FROM cells").fetchall()
    why = {cell_id: "" if valid else _why(*rest) for cell_id, valid, *rest in rows}
    for cell in cells:
        if reason := why.get(cell.id, "not measured yet"):
            yield f"{cell.label}: {reason}"


def _next(folder: Path, problems: Sequence[str], command: Sequence[str]) -> str:
    if all(INVALID in line for line in problems):  # measured, so that a further run would not try again
        return f'python -m storage.query {folder} "SELECT * FROM speedups"'
    return f"{shlex.join(command)}    (tries again what is missing)"


def _why(status: str, reasons: Sequence[str], error: str | None) -> str:
    if status == "ok":
        return f"{INVALID}: {', '.join(reasons)}"
    return f"{status}: {(error or '').strip().splitlines()[0] if (error or '').strip() else ', '.join(reasons)}"


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
