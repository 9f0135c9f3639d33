"""Owns the search as a function: all cells of the grid and what is recorded → cells to measure, and every decision. Pure.

Does not own how one goal searches. The path is walked anew each time, from its beginning, with the facts of what it asked
for: so it goes the same way after a kill, and whatever else is recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jobs.spec import Cell
from orchestrator.search.best_k import search_best_k
from orchestrator.search.crossover import search_crossover
from orchestrator.search.goodput import search_max_goodput
from orchestrator.search.ground import Question, Spot, questions_of
from orchestrator.search.known import Answer, Facts, Found, Known, Skip, Wish, together
from orchestrator.settings import Goal, Search

GOALS = {Goal.best_k: search_best_k, Goal.crossover: search_crossover, Goal.max_goodput: search_max_goodput}

UNASKED = Skip("no question of this goal asks for it")


@dataclass(frozen=True)
class Decision:
    """One spot, and why it is measured or left out; or an answer, of which `spot` is what it names."""

    round: int
    action: str  # measure | skip | answer
    question: str
    reason: str
    spot: Spot | None = None
    presumed: str = ""
    answer: Answer | None = None


@dataclass(frozen=True)
class Choice:
    """Where a search is. `cells`: all that it has asked for so far, in the grid's order."""

    cells: tuple[Cell, ...]
    is_done: bool
    decisions: tuple[Decision, ...]
    answers: tuple[Answer, ...]


def choose(cells: Sequence[Cell], facts: Facts, search: Search) -> Choice:
    """What to measure next, until there is an answer; `is_done` says that there is nothing left to ask for."""
    questions = questions_of(cells)
    known = Known(facts)
    labels = {spot.id: q.label for q in questions for arm in q.every_arm for spot in arm.spots.values()}
    decisions: list[Decision] = []
    path = together([GOALS[search.goal](question, known, search) for question in questions])
    found = Found()
    number = 0
    while (wishes := _next(path, found)) is not None:
        if not (new := known.ask(wishes)):
            continue
        number += 1
        decisions += [Decision(number, "measure", labels[w.spot.id], w.reason, w.spot) for w in new]
        if not all(known.is_settled(wish.spot) for wish in new):
            return Choice(_asked(cells, known), False, tuple(decisions), ())
    decisions += _ending(number + 1, questions, known, found, labels)
    return Choice(_asked(cells, known), True, tuple(decisions), tuple(found.answers))


def _next(path: Iterator[list[Wish]], found: Found) -> list[Wish] | None:
    """What all questions together want next; None when they have ended, and what they found is added."""
    try:
        return next(path)
    except StopIteration as end:
        for result in end.value:
            found.add(result)
        return None


def _asked(cells: Sequence[Cell], known: Known) -> tuple[Cell, ...]:
    ids = {cell.id for spot in known.asked.values() for cell in spot.cells}
    return tuple(cell for cell in cells if cell.id in ids)


def _ending(
    number: int, questions: Sequence[Question], known: Known, found: Found, labels: dict[str, str]
) -> Iterator[Decision]:
    for question in questions:
        for arm in question.every_arm:
            for spot in arm.spots.values():
                if not known.is_asked(spot):
                    skip = found.skips.get(spot.id, UNASKED)
                    yield Decision(number, "skip", labels[spot.id], skip.reason, spot, skip.presumed)
    for answer in found.answers:
        named = answer.arm.spots.get(answer.load) if answer.arm and answer.load else None
        yield Decision(number, "answer", answer.question.label, answer.text, named, answer=answer)
