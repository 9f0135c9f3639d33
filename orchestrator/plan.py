"""Owns the plan: cells + what is recorded → the sessions that are still to run, in order. Pure.

Does not own time, Ray, or what a cell means. Run, retry, resume and node loss are this one function.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from jobs.spec import Cell, CellOrder, SessionSpec
from orchestrator.expected import Expectation
from orchestrator.settings import Limits
from storage.rows import FAILED, OK, History


def make_plan(
    cells: Sequence[Cell], history: History, limits: Limits, invocation_id: str, expectation: Expectation
) -> list[SessionSpec]:
    """One session per deployment that has cells left, longest first; [] when everything is measured or given up.

    Failures count only if this invocation made them: the next run of the command tries anew.
    """
    gone = given_up(cells, history, limits, invocation_id)
    left = [cell for cell in unmeasured(cells, history) if cell.id not in gone]
    tries = last_attempts(history)
    starts = Counter(start.deployment_id for start in history.starts if start.invocation_id == invocation_id)
    groups: dict[str, list[Cell]] = defaultdict(list)
    for cell in left:
        groups[cell.deployment.id].append(cell)
    sessions = [
        SessionSpec(
            session_id=f"{deployment_id}-{invocation_id}-{starts[deployment_id]}",
            invocation_id=invocation_id,
            deployment=group[0].deployment,
            orders=tuple(CellOrder(cell, tries.get(cell.id, 0) + 1) for cell in _ordered(group)),
            expected_s=expectation.start_s(deployment_id) + sum(expectation.cell_s(cell) for cell in group),
        )
        for deployment_id, group in groups.items()
    ]
    return sorted(sessions, key=lambda session: -session.expected_s)  # stable: equals stay in the grid's order


def unmeasured(cells: Sequence[Cell], history: History) -> list[Cell]:
    """The cells without an ok attempt."""
    done = {attempt.cell_id for attempt in history.attempts if attempt.status == OK}
    return [cell for cell in cells if cell.id not in done]


def given_up(cells: Sequence[Cell], history: History, limits: Limits, invocation_id: str) -> dict[str, str]:
    """Cells that this invocation tries no more: cell id → the reason."""
    failures = Counter(a.cell_id for a in history.attempts if a.invocation_id == invocation_id and a.status == FAILED)
    dead_starts = Counter(s.deployment_id for s in history.starts if s.invocation_id == invocation_id and s.ready_s is None)
    reasons = {}
    for cell in unmeasured(cells, history):
        if dead_starts[cell.deployment.id] >= limits.max_starts:
            reasons[cell.id] = f"the engine did not start in {dead_starts[cell.deployment.id]} tries (limits.max_starts)"
        elif failures[cell.id] >= limits.max_attempts:
            reasons[cell.id] = f"failed in {failures[cell.id]} tries (limits.max_attempts)"
    return reasons


def _ordered(cells: Sequence[Cell]) -> list[Cell]:
    """Repeat by repeat, every second one backwards: drift over a session then shows as a difference between repeats."""
    by_repeat: dict[int, list[Cell]] = defaultdict(list)
    for cell in cells:
        by_repeat[cell.repeat].append(cell)
    return [cell for repeat in sorted(by_repeat) for cell in (by_repeat[repeat][::-1] if repeat % 2 else by_repeat[repeat])]


def last_attempts(history: History) -> Mapping[str, int]:
    """Cell id → the number of the last recorded try at it."""
    last: dict[str, int] = {}
    for attempt in history.attempts:
        last[attempt.cell_id] = max(attempt.attempt, last.get(attempt.cell_id, 0))
    return last
