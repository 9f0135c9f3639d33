"""Owns one search beside its run: what it learns from the run, the rows of its decisions, and what is told at the end.

Does not own the choice (path), or the run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence

from jobs.spec import Cell
from orchestrator.search.facts import facts_of, limits_of
from orchestrator.search.path import Choice, Decision, choose
from orchestrator.settings import Goal, Search
from storage.places import Place
from storage.rows import DecisionRow


class Searching:
    """The search that a sweep asks for; with `search.goal: none` it chooses every cell, and decides nothing."""

    def __init__(self, cells: Sequence[Cell], search: Search) -> None:
        self.cells = cells
        self.search = search
        self.is_on = search.goal is not Goal.none
        self.id = _id(cells, search) if self.is_on else None
        self.choice = Choice(tuple(cells), not self.is_on, (), ())

    def look(self, folder: Place, settled: Collection[str]) -> Choice:
        """Where the search is, by what is recorded; `settled`: ids of cells from which nothing more is to come."""
        if self.is_on:
            self.choice = choose(self.cells, facts_of(folder, self.search, settled, self.cells), self.search)
        return self.choice

    def rows(self) -> list[DecisionRow]:
        """Every decision so far: a row a cell, and a row an answer."""
        return [row for number, decision in enumerate(self.choice.decisions) for row in self._rows(number, decision)]

    def _rows(self, number: int, decision: Decision) -> Iterator[DecisionRow]:
        answer = decision.answer
        cells = decision.spot.cells if decision.spot else ()
        for cell in cells[:1] if answer else cells:
            yield self._row(number, decision, cell)
        if answer and not cells:
            yield self._row(number, decision, None)

    def _row(self, number: int, decision: Decision, cell: Cell | None) -> DecisionRow:
        answer = decision.answer
        draft = cell.deployment.draft if cell else answer.arm.draft if answer and answer.arm else None
        return DecisionRow(
            search_id=self.id or "",
            number=number,
            round=decision.round,
            action=decision.action,
            goal=self.search.goal.value,
            metric=self.search.metric.value,
            question=decision.question,
            reason=decision.reason,
            presumed=decision.presumed,
            cell_id=cell.id if cell else "",
            deployment_id=cell.deployment.id if cell else "",
            pair_id=cell.pair_id if cell else "",
            draft=draft.name or draft.method if draft else "",
            k=draft.k if draft else None,
            concurrency=cell.load.concurrency if cell else answer.load if answer else None,
            pays_to=answer.pays_to if answer else None,
            costs_from=answer.costs_from if answer else None,
            **(answer.value._asdict() if answer and answer.value else {}),
        )

    def told(self) -> Iterator[str]:
        """How many of the grid's cells it took, and what was answered."""
        if not self.is_on:
            return
        n, most, goal = len(self.choice.cells), len(self.cells), self.search.goal.value
        if not self.choice.is_done:
            yield f"search.goal={goal}: no answer yet; {n} of {most} cells were asked for so far."
            return
        is_known = any(answer.is_known for answer in self.choice.answers)
        told = "cells were enough" if is_known else "cells told nothing that is valid"
        yield f"search.goal={goal}: {n} of {most} {told} ({n / most:.0%}); {most - n} are not searched."
        several = len({answer.question.label for answer in self.choice.answers}) > 1
        for answer in self.choice.answers:
            yield f"  {answer.question.label}: {answer.text}" if several else f"  {answer.text}"

    def foretold(self) -> str:
        """What a plan says of it."""
        n, most = len(self.choice.cells), len(self.cells)
        more = (
            "nothing more, the answer is there"
            if self.choice.is_done
            else f"then only where the answer lies, {most} at most"
        )
        return f"search.goal={self.search.goal.value}: {n} of the grid's {most} cells to begin with, {more}"


def _id(cells: Sequence[Cell], search: Search) -> str:
    asked = (search.goal.value, search.metric.value, search.coarse, search.tolerance)
    limits = sorted({limits_of(cell) for cell in cells})  # no part of a cell's id
    text = "/".join([*map(str, [*asked, limits]), *(cell.id for cell in cells)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
