"""Owns the ground that is searched: the cells of a grid by question, draft and load, and what a grid must have for that.

Does not own how it is searched. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from jobs.errors import BadInput
from jobs.identity import digest
from jobs.spec import Cell, Deployment, Draft
from orchestrator.labels import told_apart
from orchestrator.settings import Goal, Search


@dataclass(frozen=True)
class Spot:
    """A draft at a load: what is measured or left out together. `cells` are its repeats."""

    cells: tuple[Cell, ...]

    @property
    def first(self) -> Cell:
        return self.cells[0]

    @property
    def load(self) -> int:
        return self.first.load.concurrency

    @cached_property
    def id(self) -> str:
        return self.first.id


@dataclass(frozen=True)
class Arm:
    """A draft, or the baseline, along the loads: concurrency → spot."""

    draft: Draft
    spots: dict[int, Spot]
    label: str  # its name and length, and what tells it from others of the question with the same ones

    @property
    def k(self) -> int:
        return self.draft.k


@dataclass(frozen=True)
class Question:
    """Cells that differ in draft, concurrency and repeat only."""

    label: str
    baseline: Arm | None
    arms: tuple[Arm, ...]  # the speculative ones

    @cached_property
    def every_arm(self) -> tuple[Arm, ...]:
        return (*([self.baseline] if self.baseline else []), *self.arms)

    @cached_property
    def families(self) -> tuple[dict[int, Arm], ...]:
        """The drafts that differ in their length only, k → arm, shortest first."""
        found: dict[str, dict[int, Arm]] = {}
        for arm in sorted(self.arms, key=lambda arm: arm.k):
            found.setdefault(digest(replace(arm.draft, k=0)), {})[arm.k] = arm
        return tuple(found.values())

    def loads_of(self, arm: Arm) -> list[int]:
        """Where the arm can be held against the baseline."""
        return sorted(set(arm.spots) & set(self.baseline.spots if self.baseline else ()))


def questions_of(cells: Sequence[Cell]) -> list[Question]:
    """The cells by question, in the order of the grid. Open loops have no concurrency to search over: they are in none."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.load.kind == "closed":
            groups.setdefault(_undrafted(cell).id, []).append(cell)
    labels = told_apart({id_: _undrafted(group[0]) for id_, group in groups.items()}, _asked)
    return [_question(labels[id_], group) for id_, group in groups.items()]


def _undrafted(cell: Cell) -> Cell:
    """What the cells of a question have in common."""
    return replace(cell.with_draft(Draft()), load=replace(cell.load, concurrency=1), repeat=0)


def _asked(cell: Cell) -> str:
    model, engine = cell.deployment.model, cell.deployment.engine
    return f"{model.name or model.path} {engine.name} {cell.workload.name}"


def _question(label: str, cells: Sequence[Cell]) -> Question:
    found: dict[str, dict[int, list[Cell]]] = {}
    for cell in cells:
        found.setdefault(cell.deployment.id, {}).setdefault(cell.load.concurrency, []).append(cell)
    labels = told_apart({cell.deployment.id: cell.deployment for cell in cells}, _drafted)
    arms = [_arm(labels[id_], by_load) for id_, by_load in found.items()]
    baseline = next((arm for arm in arms if arm.draft.method == "none"), None)
    return Question(label, baseline, tuple(arm for arm in arms if arm is not baseline))


def _arm(label: str, by_load: dict[int, list[Cell]]) -> Arm:
    spots = {load: Spot(tuple(by_load[load])) for load in sorted(by_load)}
    return Arm(next(iter(spots.values())).first.deployment.draft, spots, label)


def _drafted(deployment: Deployment) -> str:
    draft = deployment.draft
    return f"{draft.name or draft.method}{f' k={draft.k}' if draft.k else ''}"


def refuse_unsearchable(cells: Sequence[Cell], search: Search) -> None:
    """`BadInput` for a grid in which there is nothing to search for this goal, or settings that mean nothing."""
    goal = search.goal.value
    if search.coarse < 2:
        raise BadInput(f"`search.coarse` must be at least 2, both ends of the loads: got {search.coarse}.")
    if not 0 < search.tolerance < 1:
        raise BadInput(f"`search.tolerance` must be above 0 and below 1, a share: got {search.tolerance:g}. 0.02 means 2 %.")
    if search.goal is Goal.none:
        return
    questions = questions_of(cells)
    if search.goal is not Goal.best_k and not any(len(arm.spots) > 1 for q in questions for arm in q.every_arm):
        batch = max(cell.deployment.engine.batch for cell in cells)
        loads = ", ".join(sorted({cell.load.label for cell in cells}))
        raise BadInput(
            f"search.goal={goal} must have several loads of one engine to search over: got {loads}, one for each engine "
            f"start; engine.batch={batch} at most. Give loads that fit the batch, as for engine.batch=32: "
            "'axes.load.concurrency=[1,2,4,8,16,32]'."
        )
    if search.goal is Goal.max_goodput:
        _refuse_no_limits(cells)
    elif not any(q.baseline and q.arms for q in questions):
        raise BadInput(
            f"search.goal={goal} must have drafts and their baselines at a closed loop: got none of both. "
            "Name a draft, draft=ngram draft.k=3, and leave `baseline` at none."
        )
    if search.goal is Goal.best_k and not any(len(family) > 1 for q in questions for family in q.families):
        ks = ", ".join(sorted({str(cell.deployment.draft.k) for cell in cells if cell.deployment.is_speculative}))
        raise BadInput(
            f"search.goal={goal} must have several draft lengths of one draft: got draft.k={ks} only. "
            "Give an axis: 'axes.draft.k=[1,2,3,4,6,8]'."
        )


def _refuse_no_limits(cells: Sequence[Cell]) -> None:
    if not any(cell.load.slo_ttft_s or cell.load.slo_tpot_s for cell in cells):
        raise BadInput(
            "search.goal=max_goodput must have limits on latency: got load.slo_ttft_s=0 and load.slo_tpot_s=0, no limit. "
            "Give one in seconds: load.slo_tpot_s=0.05."
        )
