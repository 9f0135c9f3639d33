"""Owns the search for the draft length that serves fastest at each load. Pure. Does not own speed-ups or projections."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from orchestrator.search.ground import Arm, Question
from orchestrator.search.known import Answer, Found, Interval, Known, Path, Skip, Wish, pair, spread, together
from orchestrator.search.project import Projector
from orchestrator.settings import Search

NEIGHBOUR, ALONE = 1.05, 1.15
"""How much better than projected a length may be: next to the best one, since between measured lengths a step costs less
than the line between them says (its cost is convex); and where but one length was measured at this load."""


def search_best_k(question: Question, known: Known, search: Search) -> Path[Found]:
    """For each draft: the shortest and longest at coarse loads, what can still win there, then loads where they differ."""
    found = Found()
    if question.baseline:
        for result in (yield from together([_of_family(question, family, known, search) for family in question.families])):
            found.add(result)
    return found


def _of_family(question: Question, family: Mapping[int, Arm], known: Known, search: Search) -> Path[Found]:
    hunt = Hunt(question, family, known, search)
    loads = sorted({load for arm in family.values() for load in question.loads_of(arm)})
    visited = spread(loads, search.coarse)
    if wishes := [
        wish for load in visited for k in (min(family), max(family)) for wish in hunt.wish(k, load, "a coarse point")
    ]:
        yield wishes
    while True:
        wishes = [wish for load in visited for wish in hunt.contender(load)]
        if not wishes:
            between = [load for a, b in pairwise(visited) for load in hunt.between(a, b, loads)]
            wishes = [wish for load in between for wish in hunt.contender(load)]
            visited = sorted({*visited, *between})
        if not wishes:
            return hunt.found(loads, visited)
        yield wishes


class Hunt:
    """What can still win, of one draft at several lengths."""

    def __init__(self, question: Question, family: Mapping[int, Arm], known: Known, search: Search) -> None:
        self.question = question
        self.family = family
        self.known = known
        self.search = search
        self.projector = Projector(question, family, known)

    def wish(self, k: int, load: int, reason: str) -> list[Wish]:
        arm = self.family[k]
        return pair(self.question, arm, load, reason) if load in self.question.loads_of(arm) else []

    def measured(self, load: int) -> dict[int, Interval]:
        told = {k: self.known.of(arm.spots.get(load)).speedup for k, arm in self.family.items()}
        return {k: speedup for k, speedup in told.items() if speedup}

    def best(self, load: int) -> tuple[int, Interval] | None:
        """The length with the highest measured speed-up; 0 where none is above 1."""
        told = self.measured(load)
        if not told:
            return None
        k = max(told, key=lambda k: told[k].value)
        return (k, told[k]) if told[k].value > 1 else (0, Interval(1.0, 1.0, 1.0))

    def contender(self, load: int) -> list[Wish]:
        """The unmeasured length with the highest projection, if it can win by more than the tolerance."""
        best = self.best(load)
        bar = best[1].value * (1 + self.search.tolerance) if best else 0.0
        left = {k: self.projector.projected(k, load) for k, arm in self.family.items() if self._is_open(arm, load)}
        can_win = {k: told for k, told in left.items() if told and told.high * self._slack(k, load) > bar}
        if not can_win:
            return []
        k = max(can_win, key=lambda k: can_win[k].value)
        against = f"k={best[0]} has {best[1].value:.2f}" if best else "nothing is measured there yet"
        return self.wish(k, load, f"k={k} is projected to be {can_win[k]} times as fast; {against}")

    def _slack(self, k: int, load: int) -> float:
        told = self.measured(load)
        if len(told) == 1:
            return ALONE
        order = sorted(self.family)
        best = max(told, key=lambda size: told[size].value, default=k)
        return NEIGHBOUR if abs(order.index(k) - order.index(best)) == 1 else 1.0

    def _is_open(self, arm: Arm, load: int) -> bool:
        return load in self.question.loads_of(arm) and not self.known.is_asked(arm.spots[load])

    def between(self, a: int, b: int, loads: list[int]) -> list[int]:
        """The load in the middle, where the lengths that are best on both sides differ by more than noise."""
        inside = [load for load in loads if a < load < b]
        left, right = self.best(a), self.best(b)
        if not inside or (left and right and self._is_same(left[0], right[0], a, b)):
            return []
        return [inside[len(inside) // 2]]

    def _is_same(self, left: int, right: int, a: int, b: int) -> bool:
        """Each side's best does as well on the other side, but for what a further cell is not worth."""
        if left == right:
            return True
        slack = 1 + self.search.tolerance
        return (
            self._value(left, b) * slack >= self._value(right, b) and self._value(left, a) <= self._value(right, a) * slack
        )

    def _value(self, k: int, load: int) -> float:
        told = self.measured(load).get(k) or (self.projector.projected(k, load) if k else None)
        return told.value if told else (1.0 if k == 0 else 0.0)

    def found(self, loads: list[int], visited: list[int]) -> Found:
        found = Found()
        for load in loads:
            best = self.best(load)
            found.answers.append(self._measured_answer(load, best) if best else self._presumed(load, visited))
            for k, arm in self.family.items():
                if load in arm.spots and not self.known.is_asked(arm.spots[load]):
                    found.skips[arm.spots[load].id] = self._skip(k, load, best)
        return found

    def _measured_answer(self, load: int, best: tuple[int, Interval]) -> Answer:
        k, speedup = best
        if not k:
            return Answer(self.question, f"at {load} no length of {self._name} is faster than without", None, load)
        text = f"at {load} {self._name} k={k} is best: {speedup} times as fast"
        return Answer(self.question, text, self.family[k], load, value=speedup)

    def _presumed(self, load: int, visited: list[int]) -> Answer:
        """Between two loads with one best length, that one."""
        around = [max((x for x in visited if x < load), default=None), min((x for x in visited if x > load), default=None)]
        known = {at: best for at in around if at is not None and (best := self.best(at))}
        if not known:
            text = f"at {load} {self._name}: unknown, no valid pair of cells near it"
            return Answer(self.question, text, None, load, is_known=False)
        k = max(known.values(), key=lambda best: self._value(best[0], load))[0]
        text = f"at {load} {self._name} {f'k={k}' if k else 'off'}, as at {' and '.join(map(str, known))}; not measured"
        return Answer(self.question, text, self.family[k] if k else None, load)

    @property
    def _name(self) -> str:
        draft = next(iter(self.family.values())).draft
        return draft.name or draft.method

    def _skip(self, k: int, load: int, best: tuple[int, Interval] | None) -> Skip:
        told = self.projector.projected(k, load)
        if best is None:
            return Skip("loads around it have one best length")
        if told is None:
            return Skip(f"nothing is known to project k={k} from")
        return Skip(f"k={k} is projected to be {told} times as fast, k={best[0]} is {best[1].value:.2f}", "not best")
