"""Owns what a draft length that was not measured would give: t_ar * AL / t_sd, from lengths and loads that were. Pure.

Does not own what is done with it: a projection chooses what to measure next, and is no answer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import log
from statistics import fmean, median

from orchestrator.search.ground import Arm, Question
from orchestrator.search.known import Interval, Known

LEAST_MARGIN = 0.02  # of a projection: two measurements of one setting differ by about as much


@dataclass(frozen=True)
class Projector:
    """One draft at several lengths: k → arm."""

    question: Question
    family: Mapping[int, Arm]
    known: Known
    _told: dict[int, list[float]] = field(default_factory=dict, repr=False)  # by how much was asked for: errors

    def projected(self, k: int, load: int) -> Interval | None:
        """The speed-up, moved by what measured ones differ from theirs on average, give or take what they scatter."""
        plain = self._plain(k, load)
        if plain is None:
            return None
        n_asked = len(self.known.asked)
        if n_asked not in self._told:  # they are the same until more is known
            self._told[n_asked] = self._errors()
        off = self._told[n_asked]
        factor = median(off) if off else 1.0
        margin = max([LEAST_MARGIN, *(abs(error / factor - 1) for error in off)])
        value = plain * factor
        return Interval(value, value * (1 - margin), value * (1 + margin))

    def _plain(self, k: int, load: int) -> float | None:
        length, cost = self.length(k), self.cost(k, load)
        return length / cost if length and cost and cost > 0 else None  # a line beyond what was measured may fall below 0

    def length(self, k: int) -> float | None:
        """AL with k, by the acceptance by position of the shortest measured draft that is as long, else of the longest."""
        told = {size: self._lengths(size) for size in self.family}
        told = {size: lengths for size, lengths in told.items() if lengths}
        if not told:
            return None
        longer = [size for size in told if size >= k]
        if longer:
            return told[min(longer)][k - 1]
        lengths = told[max(told)]
        grown = [1.0, *lengths]
        last = grown[-1] - grown[-2]
        rate = last / (grown[-2] - grown[-3]) if len(grown) > 2 and grown[-2] > grown[-3] else 0.5
        return lengths[-1] + sum(last * min(rate, 1.0) ** n for n in range(1, k - len(lengths) + 1))

    def cost(self, k: int, load: int) -> float | None:
        """Step time over the baseline's: on the line between measured lengths at this load, else between those of the
        nearest loads, scaled to what was measured here."""
        here = self._costs(load)
        if len(here) > 1:
            return _on_line(_anchored(here) if k < min(here) else here, k)
        full = {at: costs for at in self._loads() if len(costs := self._costs(at)) > 1}
        if not full:
            return _on_line(_anchored(here), k) if here else None
        scale = 1.0
        for size, measured in here.items():
            scale = measured / self._between(full, size, load)
        return scale * self._between(full, k, load)

    def _between(self, full: Mapping[int, Mapping[float, float]], k: float, load: int) -> float:
        return _on_line({log(at): _on_line(_anchored(costs), k) for at, costs in full.items()}, log(load), is_held=True)

    def _loads(self) -> list[int]:
        return sorted({load for arm in self.family.values() for load in arm.spots})

    def _lengths(self, k: int) -> list[float]:
        """AL by length of this draft, mean over the loads where it was measured."""
        told = [self.known.of(spot).lengths for spot in self.family[k].spots.values()]
        return [fmean(values) for values in zip(*(lengths for lengths in told if len(lengths) >= k), strict=False)]

    def _costs(self, load: int) -> dict[float, float]:
        told = {k: self.known.of(arm.spots.get(load)).step_cost for k, arm in self.family.items()}
        return {k: cost for k, cost in told.items() if cost}

    def _errors(self) -> list[float]:
        """Measured over projected, wherever both are known."""
        return [
            speedup.value / plain
            for k, arm in self.family.items()
            for load, speedup in self.known.speedups(self.question, arm).items()
            if (plain := self._plain(k, load))
        ]


def _anchored(costs: Mapping[float, float]) -> dict[float, float]:
    """A step in which nothing is drafted costs what one of the baseline does."""
    return {0.0: 1.0, **costs}


def _on_line(points: Mapping[float, float], x: float, *, is_held: bool = False) -> float:
    """The value at x on the lines between the points; beyond them on the last line, or its end where that is `is_held`."""
    xs = sorted(points)
    if len(xs) == 1:
        return points[xs[0]]
    if is_held:
        x = min(max(x, xs[0]), xs[-1])
    at = min(max(bisect_left(xs, x), 1), len(xs) - 1)
    x0, x1 = xs[at - 1], xs[at]
    return points[x0] + (points[x1] - points[x0]) * (x - x0) / (x1 - x0)
