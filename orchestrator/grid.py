"""Owns what a grid means: combinations of folders and field axes → cells, each checked. Pure.

Does not own composition of conf/ (config), the order of cells (plan), or what an engine can do (its adapter).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from jobs.errors import BadInput
from jobs.spec import Cell, Deployment, Draft
from jobs.workloads import Read, reading_once
from orchestrator.rules import Problem, problem_of
from orchestrator.settings import PARTS


@dataclass(frozen=True)
class Point:
    """One combination of folders of conf/: what was chosen (folder → choice), and the fields that it gave, as plain data."""

    choices: Mapping[str, str]
    parts: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Grid:
    """What is done at every point. `fields`: "draft.k" → its values; `exclude`: each a partial match, key → values."""

    fields: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    exclude: Sequence[Mapping[str, Sequence[Any]]] = ()
    repeats: int = 1
    baseline: bool = True
    folders: Sequence[str] = ()  # which folders are axes: only to say where a cell comes from


@dataclass(frozen=True)
class Candidate:
    """A cell and where in the grid it comes from."""

    cell: Cell
    choices: Mapping[str, str]
    origin: str

    def value(self, key: str) -> Any:
        """What an exclude compares: the choice of a folder, or the field after normalisation."""
        if "." not in key:
            return self.choices.get(key)
        section, name, *rest = key.split(".")
        value = getattr(_part(self.cell, section), name)
        for step in rest:
            value = value.get(step) if isinstance(value, dict) else None
        return value


def expand(points: Iterable[Point], grid: Grid) -> list[Cell]:
    """The cells of a grid in its order, without duplicates; `BadInput` for the first that breaks a rule."""
    if grid.repeats < 1:
        raise BadInput(f"`repeats` must be at least 1: got {grid.repeats}.")
    kept = [item for item in _with_baselines(points, grid) if not _is_excluded(item, grid.exclude)]
    if not kept:
        raise BadInput("the grid must leave at least one cell: every one is excluded. Remove a rule of `exclude`.")
    _refuse_problems(kept)
    return [item.cell for item in kept]


def _with_baselines(points: Iterable[Point], grid: Grid) -> Iterable[Candidate]:
    unique: dict[str, Candidate] = {}
    for item in _candidates(points, grid):
        if grid.baseline and item.cell.deployment.is_speculative:
            unique.setdefault(item.cell.pair_id, _baseline_of(item))
        unique.setdefault(item.cell.id, item)
    return unique.values()


def _baseline_of(item: Candidate) -> Candidate:
    cell = item.cell.with_draft(Draft(name="none"))
    return Candidate(cell, {**item.choices, "draft": "none"}, f"the baseline of {item.origin}" if item.origin else "")


def _candidates(points: Iterable[Point], grid: Grid) -> Iterator[Candidate]:
    for point in points:
        for values in product(*grid.fields.values()):
            chosen = dict(zip(grid.fields, values, strict=True))
            parts = _parts(point, chosen)
            deployment = Deployment(parts["model"], parts["engine"], parts["draft"])
            origin = _origin(point, grid.folders, chosen)
            for repeat in range(grid.repeats):
                cell = Cell(deployment, parts["workload"], parts["sampling"], parts["load"], repeat)
                yield Candidate(cell, point.choices, origin)


def _parts(point: Point, chosen: Mapping[str, Any]) -> dict[str, Any]:
    plain = {name: dict(deepcopy(point.parts[name])) for name in PARTS}
    for key, value in chosen.items():
        *path, last = key.split(".")
        target: Any = plain
        for step in path:
            target = target[step]
        target[last] = deepcopy(value)
    return {name: schema(**plain[name]) for name, schema in PARTS.items()}


def _origin(point: Point, folders: Sequence[str], chosen: Mapping[str, Any]) -> str:
    told = [f"{folder}={point.choices[folder]}" for folder in folders] + [f"{key}={value}" for key, value in chosen.items()]
    return " ".join(told)


def _is_excluded(item: Candidate, rules: Sequence[Mapping[str, Sequence[Any]]]) -> bool:
    return any(all(item.value(key) in values for key, values in rule.items()) for rule in rules)


def _refuse_problems(items: Sequence[Candidate]) -> None:
    known: dict[str, Problem | None] = {}
    read = reading_once()
    found = [(item, problem) for item in items if (problem := _problem(item.cell, known, read))]
    if not found:
        return
    first, problem = found[0]
    touched = sum(other.text == problem.text for _, other in found)
    origin = f" Found at {first.origin}" if first.origin else " Found"
    raise problem.kind(f"{problem.text}{origin}: {touched} of {len(items)} cells.")


def _problem(cell: Cell, known: dict[str, Problem | None], read: Read) -> Problem | None:
    """A rule sees no repeat, so the verdict of one repeat holds for all."""
    key = repr((cell.deployment, cell.workload, cell.sampling, cell.load))
    if key not in known:
        known[key] = problem_of(cell, read)
    return known[key]


def _part(cell: Cell, section: str) -> Any:
    return getattr(cell.deployment if section in ("model", "engine", "draft") else cell, section)
