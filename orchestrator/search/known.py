"""Owns what a search may know and what it says: facts of measured spots, wishes, answers. Does not own where facts are from.

A goal is a generator: it yields the spots that it wants next, each with its reason, goes on when they are measured, and
returns what it found. As it sees only what it asked for, its path is the same whatever else is recorded.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from orchestrator.search.ground import Arm, Question, Spot

T = TypeVar("T")


class Interval(NamedTuple):
    """A value with the bounds of its noise."""

    value: float
    low: float
    high: float

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.value:.3g} ({self.low:.3g} to {self.high:.3g})"


@dataclass(frozen=True)
class Seen:
    """What is known of a measured spot; None = it does not tell, or it is invalid."""

    speedup: Interval | None = None  # against the baseline
    lengths: Sequence[float] = ()  # AL with 1, 2, ... k drafted tokens, by its acceptance by position
    step_cost: float | None = None  # its step time over the baseline's
    attainment: Interval | None = None  # share of the requests that meet every limit on latency
    goodput: Interval | None = None  # requests a second that do
    throughput: float | None = None  # requests a second that were answered at all


@dataclass(frozen=True)
class Facts:
    """What is recorded, as a search sees it: cell id → what is known of its spot."""

    seen: Mapping[str, Seen] = field(default_factory=dict)
    settled: frozenset[str] = frozenset()  # cells that are measured, or given up
    min_attainment: float = 0.9  # for a load to hold


class Wish(NamedTuple):
    spot: Spot
    reason: str


@dataclass(frozen=True)
class Answer:
    """What was found of a question: words, and the draft and load that they name."""

    question: Question
    text: str
    arm: Arm | None = None  # None = no draft
    load: int | None = None
    pays_to: int | None = None  # crossover: the last load before it, and ...
    costs_from: int | None = None  # ... the first one after it
    value: Interval | None = None
    is_known: bool = True  # False = nothing that is valid tells


class Skip(NamedTuple):
    """Why a spot is not searched, and what it is presumed to be: 'faster', 'slower', 'not best', or '' for nothing."""

    reason: str
    presumed: str = ""


@dataclass
class Found:
    """What a goal returns: its answers, and why the rest was left out, by `Spot.id`."""

    answers: list[Answer] = field(default_factory=list)
    skips: dict[str, Skip] = field(default_factory=dict)

    def add(self, other: Found) -> None:
        self.answers += other.answers
        self.skips |= other.skips


Path = Generator[list[Wish], None, T]


class Known:
    """The facts of the spots that were asked for."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self.asked: dict[str, Spot] = {}
        self.min_attainment = facts.min_attainment

    def ask(self, wishes: Iterable[Wish]) -> list[Wish]:
        """Note the wishes; those that are new."""
        new = {wish.spot.id: wish for wish in reversed([*wishes]) if wish.spot.id not in self.asked}
        self.asked |= {spot_id: wish.spot for spot_id, wish in new.items()}
        return [*reversed(new.values())]

    def is_asked(self, spot: Spot) -> bool:
        return spot.id in self.asked

    def of(self, spot: Spot | None) -> Seen:
        """What is known of a spot; nothing of one that was not asked for."""
        found = self._facts.seen.get(spot.id) if spot and spot.id in self.asked else None
        return found or Seen()

    def is_settled(self, spot: Spot) -> bool:
        return all(cell.id in self._facts.settled for cell in spot.cells)

    def speedups(self, question: Question, arm: Arm) -> dict[int, Interval]:
        """Load → speed-up, where one was measured."""
        told = {load: self.of(arm.spots[load]).speedup for load in question.loads_of(arm)}
        return {load: speedup for load, speedup in told.items() if speedup}


def pair(question: Question, arm: Arm, load: int, reason: str) -> list[Wish]:
    """A draft at a load, and the baseline that it is held against."""
    base = [Wish(question.baseline.spots[load], f"the baseline of {arm.label} there")] if question.baseline else []
    return [*base, Wish(arm.spots[load], reason)]


def together(paths: Sequence[Path[T]]) -> Path[list[T]]:
    """Several searches side by side: each round asks what all of them want; their results in order."""
    results: dict[int, T] = {}
    running = dict(enumerate(paths))
    while running:
        wishes: list[Wish] = []
        for at, path in [*running.items()]:
            try:
                wishes += next(path)
            except StopIteration as end:
                results[at] = end.value
                del running[at]
        if wishes:
            yield wishes
    return [results[at] for at in sorted(results)]


def spread(values: Sequence[int], n: int) -> list[int]:
    """`n` of the values in order, both ends among them, as even as can be."""
    if n >= len(values):
        return [*values]
    return [values[round(at * (len(values) - 1) / (n - 1))] for at in range(n)]
