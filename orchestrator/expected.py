"""Owns how long something is expected to take: from what is recorded, else from a rule of thumb. Pure.

Does not own metrics: these are guesses for order and for the eye, never for an answer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from jobs.spec import Cell, Workload
from storage.rows import OK, Attempt, History

GUESSED_START_S = 20.0
GUESSED_TOKENS_PER_S = 50.0  # of one stream


@dataclass(frozen=True)
class Expectation:
    """Durations of recorded kin, and how many prompts a workload has."""

    n_prompts: Callable[[Workload], int]
    of_cells: Mapping[str, float] = field(default_factory=dict)  # id → median duration of the cell's recorded repeats
    of_deployments: Mapping[str, float] = field(default_factory=dict)
    starts: Mapping[str, float] = field(default_factory=dict)
    any_start_s: float = GUESSED_START_S
    n_recorded: int = 0

    def start_s(self, deployment_id: str) -> float:
        """From the start of an engine to its first cell."""
        return self.starts.get(deployment_id, self.any_start_s)

    def cell_s(self, cell: Cell) -> float:
        """Of the same cell in other repeats, else of other cells of the deployment, else tokens at a guessed speed."""
        kin = self.of_cells.get(cell.id) or self.of_deployments.get(cell.deployment.id)
        return kin or self._guess(cell)

    @property
    def source(self) -> str:
        """Where the numbers come from, in words."""
        guess = f"a guess of {GUESSED_TOKENS_PER_S:g} tokens/s a stream"
        return f"{self.n_recorded} recorded cells, and {guess} where there is none" if self.n_recorded else guess

    def _guess(self, cell: Cell) -> float:
        streams = min(cell.load.concurrency, cell.deployment.engine.batch)
        return self.n_prompts(cell.workload) * cell.workload.output_limit / (GUESSED_TOKENS_PER_S * streams)


def expect(cells: Sequence[Cell], history: History, n_prompts: Callable[[Workload], int]) -> Expectation:
    """What the record says of these cells and their deployments."""
    done = [attempt for attempt in history.attempts if attempt.status == OK]
    starts = [(start.deployment_id, start.ready_s) for start in history.starts if start.ready_s is not None]
    return Expectation(
        n_prompts=n_prompts,
        of_cells=_of_repeats(cells, done) if done else {},
        of_deployments=_medians([(a.deployment_id, a.duration_s) for a in done]),
        starts=_medians(starts),
        any_start_s=median(seconds for _, seconds in starts) if starts else GUESSED_START_S,
        n_recorded=len(done),
    )


def _of_repeats(cells: Sequence[Cell], done: Sequence[Attempt]) -> dict[str, float]:
    first = {cell.id: replace(cell, repeat=0).id for cell in cells}
    known = _medians([(first[attempt.cell_id], attempt.duration_s) for attempt in done if attempt.cell_id in first])
    return {cell_id: known[kin] for cell_id, kin in first.items() if kin in known}


def _medians(pairs: Sequence[tuple[str, float]]) -> dict[str, float]:
    groups: dict[str, list[float]] = defaultdict(list)
    for key, value in pairs:
        groups[key].append(value)
    return {key: median(values) for key, values in groups.items()}
