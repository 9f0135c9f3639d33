"""Owns the search for the most requests a second within the limits on latency, over drafts and loads. Pure.

Does not own goodput. It presumes that along the load the share of requests within the limits falls, and that a draft's
throughput grows no faster than the fastest that was seen: speculation gains less the fuller the batch is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log

from orchestrator.search.ground import Arm, Question
from orchestrator.search.known import Answer, Found, Interval, Known, Path, Skip, Wish, spread
from orchestrator.settings import Search


@dataclass(frozen=True)
class Reached:
    """What an arm reached at a load."""

    attainment: Interval
    goodput: Interval
    throughput: float
    holds: bool


def search_max_goodput(question: Question, known: Known, search: Search) -> Path[Found]:
    """The baseline's best load; then every draft there; then what could still be better by more than the tolerance."""
    climb = Climb(question, known, search)
    reference = question.every_arm[0]
    yield [
        Wish(reference.spots[at], f"a coarse point of {reference.label}") for at in spread([*reference.spots], search.coarse)
    ]
    while wishes := climb.next_of(reference):
        yield wishes
    at = climb.best_load(reference)
    reason = (
        f"the best load of {reference.label}" if climb.best([reference]) else f"{reference.label} holds the limits nowhere"
    )
    if wishes := [Wish(arm.spots[at], reason) for arm in question.every_arm if arm is not reference and at in arm.spots]:
        yield wishes
    while wishes := [wish for arm in question.every_arm for wish in climb.next_of(arm)]:
        yield wishes
    return climb.found()


class Climb:
    """Where goodput can still rise."""

    def __init__(self, question: Question, known: Known, search: Search) -> None:
        self.question = question
        self.known = known
        self.search = search

    def reached(self, arm: Arm) -> dict[int, Reached]:
        told = {load: self.known.of(spot) for load, spot in arm.spots.items()}
        least = self.known.min_attainment
        return {
            load: Reached(seen.attainment, seen.goodput, seen.throughput, seen.attainment.value >= least)
            for load, seen in told.items()
            if seen.attainment and seen.goodput and seen.throughput
        }

    def best(self, arms: Sequence[Arm]) -> tuple[Arm, int, Reached] | None:
        """The highest goodput at a load that holds; None where not one does."""
        held = [(arm, load, told) for arm in arms for load, told in self.reached(arm).items() if told.holds]
        return max(held, key=lambda one: one[2].goodput.value, default=None)

    def best_load(self, arm: Arm) -> int:
        best = self.best([arm])
        return best[1] if best else min(arm.spots)

    def next_of(self, arm: Arm) -> list[Wish]:
        """The next load of this arm; [] when none can beat the best by more than the tolerance."""
        told, best = self.reached(arm), self.best(self.question.every_arm)
        bar = best[2].goodput.value * (1 + self.search.tolerance) if best else 0.0
        open_loads = {
            load: value for load in arm.spots if (value := self.hoped(arm, load, told)) is not None and value > bar
        }
        if not open_loads:
            return []
        load = self._chosen(sorted(open_loads), told)
        against = f"the best is {bar / (1 + self.search.tolerance):.3g}" if best else "nothing holds yet"
        return [
            Wish(arm.spots[load], f"{arm.label} could reach {open_loads[load]:.3g} requests/s within the limits; {against}")
        ]

    def hoped(self, arm: Arm, load: int, told: Mapping[int, Reached]) -> float | None:
        """The most goodput to hope for at a load that was not asked for; None where the limits cannot hold."""
        if self.known.is_asked(arm.spots[load]) or not told:
            return None
        below = [reached for at, reached in told.items() if at < load]
        if not all(reached.holds for reached in below):
            return None
        attainment = min((reached.attainment.high for reached in below), default=1.0)
        near = min(told, key=lambda at: abs(log(at) - log(load)))
        hoped = told[near].throughput * self.growth(near, load)
        above = [reached.throughput for at, reached in told.items() if at > load]
        return min([hoped, *above]) * attainment

    def growth(self, a: int, b: int) -> float:
        """By how much throughput grows from one load to another: the most that any arm was seen to, else in proportion."""
        seen = [
            _at(curve, b) / _at(curve, a)
            for arm in self.question.every_arm
            if len(curve := {at: told.throughput for at, told in self.reached(arm).items()}) > 1
            and min(curve) <= min(a, b)
            and max(a, b) <= max(curve)
        ]
        return max(seen) if seen else max(b / a, 1.0)

    def _chosen(self, loads: Sequence[int], told: Mapping[int, Reached]) -> int:
        """Halve what lies between a load that holds and one that does not; else one step on from what is known."""
        held = [load for load, reached in told.items() if reached.holds]
        failed = [load for load, reached in told.items() if not reached.holds]
        above = [load for load in loads if load > max(held)] if held else []
        if above and not failed:
            return above[0]
        if above or not held:
            return (above or loads)[len(above or loads) // 2]
        return loads[-1]

    def found(self) -> Found:
        best = self.best(self.question.every_arm)
        return Found([self._answer(best)], self._skips(best))

    def _answer(self, best: tuple[Arm, int, Reached] | None) -> Answer:
        if best is None:
            if any(self.reached(arm) for arm in self.question.every_arm):
                return Answer(self.question, "no load that was measured keeps the limits on latency")
            return Answer(self.question, "unknown: no cell is valid", is_known=False)
        arm, load, reached = best
        share = f"{reached.attainment.value:.0%} of them keep the limits"
        text = f"{arm.label} at {load} gives the most: {reached.goodput} requests/s, {share}"
        return Answer(self.question, text, arm, load, value=reached.goodput)

    def _skips(self, best: tuple[Arm, int, Reached] | None) -> dict[str, Skip]:
        skips = {}
        for arm in self.question.every_arm:
            told = self.reached(arm)
            for load, spot in arm.spots.items():
                if not self.known.is_asked(spot):
                    hoped = self.hoped(arm, load, told)
                    if not told:
                        skips[spot.id] = Skip(f"{arm.label} has no valid point")
                    elif hoped is None:
                        skips[spot.id] = Skip(f"{arm.label} keeps the limits at no load that is as high")
                    elif best:
                        skips[spot.id] = Skip(
                            f"at most {hoped:.3g} requests/s are to be hoped for; {best[2].goodput.value:.3g} are"
                        )
        return skips


def _at(curve: Mapping[int, float], load: int) -> float:
    """On the lines between the points of a curve that reaches so far, both scales logarithmic."""
    left = max(at for at in curve if at <= load)
    right = min(at for at in curve if at >= load)
    share = (log(load) - log(left)) / (log(right) - log(left)) if right > left else 0.0
    return exp(log(curve[left]) * (1 - share) + log(curve[right]) * share)
