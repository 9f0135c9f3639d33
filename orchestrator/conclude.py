"""Owns how a run of the command ends: the table, what failed, where everything is, what to type next, the exit code.

Does not own any number: it shows what `storage` says.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.console import Console

from jobs.spec import Cell
from orchestrator.labels import cell_labels
from storage.places import Place
from storage.report import find, render_summary, write_report
from storage.rows import OK
from storage.views import open_runs

ALL_MEASURED, SOME_FAILED = 0, 1
SHOWN = 20  # lines of failures; the rest is a count


class Problem(NamedTuple):
    """What a cell lacks. A measured one is invalid: a further run would not try it again."""

    text: str
    is_measured: bool


def conclude(
    folder: Place, cells: Sequence[Cell], command: Sequence[str], console: Console, notes: Sequence[str] = ()
) -> int:
    """Tell what came of these cells, and the notes; the exit code."""
    findings = find([folder])
    console.print(render_summary(findings))
    problems = list(_problems(folder, cells))
    lines = [problem.text for problem in problems]
    for line in [*notes, *lines[:SHOWN], *([f"... and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else [])]:
        _say(console, line)
    _say(console, f"Results: {folder}    Report: {write_report(folder, findings)}")
    _say(console, f"Next: {_next(folder, problems, command)}")
    return SOME_FAILED if problems else ALL_MEASURED


def _problems(folder: Place, cells: Sequence[Cell]) -> Iterator[Problem]:
    """One for each cell of this sweep that failed, is invalid, or was not measured."""
    with open_runs([folder]) as runs:
        rows = runs.execute("SELECT cell_id, valid, status, reasons, error FROM cells").fetchall()
    found = {cell_id: None if valid else _problem(*rest) for cell_id, valid, *rest in rows}
    labels = cell_labels(cells)
    for cell in cells:
        if problem := found.get(cell.id, Problem("not measured yet", is_measured=False)):
            yield problem._replace(text=f"{labels[cell.id]}: {problem.text}")


def _next(folder: Place, problems: Sequence[Problem], command: Sequence[str]) -> str:
    if all(problem.is_measured for problem in problems):
        return f'python -m storage.query {folder} "SELECT * FROM speedups"'
    return f"{shlex.join(command)}    (tries again what is missing)"


def _problem(status: str, reasons: Sequence[str], error: str | None) -> Problem:
    if status == OK:
        return Problem(f"invalid: {', '.join(reasons)}", is_measured=True)
    said = (error or "").strip().splitlines()
    return Problem(f"{status}: {said[0] if said else ', '.join(reasons)}", is_measured=False)


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
