"""Owns the search for the load at which a draft stops to pay. Pure. Does not own speed-ups or projections."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from math import exp, log

from orchestrator.search.ground import Arm, Question
from orchestrator.search.known import Answer, Found, Interval, Known, Path, Skip, pair, spread, together
from orchestrator.search.project import Projector
from orchestrator.settings import Search

PATIENCE = 2  # steps by interpolation in one bracket, then it is halved


def search_crossover(question: Question, known: Known, search: Search) -> Path[Found]:
    """The longest and the shortest draft of each family between coarse points; the others where projections cross."""
    found = Found()
    if question.baseline is None:
        return found
    outer = [arm for family in question.families for k, arm in family.items() if k in (max(family), min(family))]
    for result in (yield from together([_outer(question, arm, known, search) for arm in outer])):
        found.add(result)
    inner = [
        (arm, Projector(question, family, known))
        for family in question.families
        for arm in family.values()
        if not any(arm is other for other in outer)
    ]
    for result in (yield from together([_inner(question, arm, known, projector, search) for arm, projector in inner])):
        found.add(result)
    return found


def _outer(question: Question, arm: Arm, known: Known, search: Search) -> Path[Found]:
    loads = question.loads_of(arm)
    reason = f"a coarse point of {arm.label}"
    if loads:
        yield [wish for load in spread(loads, search.coarse) for wish in pair(question, arm, load, reason)]
    return (yield from _narrow(question, arm, known))


def _inner(question: Question, arm: Arm, known: Known, projector: Projector, search: Search) -> Path[Found]:
    """Both sides of the projected crossing; the nearer end where none is projected."""
    loads = question.loads_of(arm)
    guesses = _filled(loads, {load: told for load in loads if (told := projector.projected(arm.k, load))})
    if not guesses:
        return (yield from _outer(question, arm, known, search))
    sides = [(a, b) for a, b in pairwise(loads) if (guesses[a] > 1) != (guesses[b] > 1)]
    ends = [loads[0], loads[-1]]
    wanted = sides[0] if sides else [min(ends, key=lambda load: abs(log(guesses[load])))]
    yield [
        wish
        for load in wanted
        for wish in pair(question, arm, load, f"{arm.label} is projected to be {guesses[load]:.2f} times as fast there")
    ]
    return (yield from _narrow(question, arm, known))


def _filled(loads: list[int], told: Mapping[int, Interval]) -> dict[int, float]:
    """The projections at every load: where there is none, on the line between the nearest ones, both scales logarithmic."""
    if not told:
        return {}
    at = sorted(told)

    def value(load: int) -> float:
        left = max((x for x in at if x <= load), default=at[0])
        right = min((x for x in at if x >= load), default=at[-1])
        share = (log(load) - log(left)) / (log(right) - log(left)) if right > left else 0.0
        return exp(log(told[left].value) * (1 - share) + log(told[right].value) * share)

    return {load: value(load) for load in loads}


def _narrow(question: Question, arm: Arm, known: Known) -> Path[Found]:
    """Until the loads around the crossing are neighbours."""
    steps = 0
    while (next_one := _next(question, arm, known, steps)) is not None:
        load, reason = next_one
        yield pair(question, arm, load, reason)
        steps += 1
    return _found(question, arm, known)


def _next(question: Question, arm: Arm, known: Known, steps: int) -> tuple[int, str] | None:
    loads, told = question.loads_of(arm), known.speedups(question, arm)
    untried = [load for load in loads if not known.is_asked(arm.spots[load])]
    if not untried:
        return None
    if not told:
        return untried[len(untried) // 2], f"{arm.label} has no valid point yet"
    measured = sorted(told)
    for a, b in pairwise(measured):
        inside = [load for load in untried if a < load < b]
        if inside and (told[a].value > 1) != (told[b].value > 1):
            why = f"{arm.label} is {told[a]} times as fast at {a}, {told[b]} at {b}"
            return (_crossed(told, a, b, inside) if steps < PATIENCE else inside[len(inside) // 2]), why
    if any((told[a].value > 1) != (told[b].value > 1) for a, b in pairwise(measured)):
        return None
    return _outward(arm, told, untried)


def _crossed(told: Mapping[int, Interval], a: int, b: int, inside: list[int]) -> int:
    """The load that is nearest to where the line between two points passes 1, both scales logarithmic."""
    ya, yb = log(told[a].value), log(told[b].value)
    at = log(a) + (log(b) - log(a)) * ya / (ya - yb)
    return min(inside, key=lambda load: abs(log(load) - at))


def _outward(arm: Arm, told: Mapping[int, Interval], untried: list[int]) -> tuple[int, str] | None:
    """No crossing yet: on to where what pays must end, or what does not must begin; a tie at the end asks its neighbour."""
    first, last = min(told), max(told)
    pays = told[last].value > 1
    beyond = [load for load in untried if (load > last if pays else load < first)]
    edge = last if pays else first
    if beyond:
        load = beyond[0] if pays else beyond[-1]
        return load, f"{arm.label} is {told[edge]} times as fast at {edge}: the crossing is beyond"
    if told[edge].holds(1.0):
        inner = [load for load in untried if (load < last if pays else load > first)]
        if inner and sum(speedup.holds(1.0) for speedup in told.values()) == 1:
            return (inner[-1] if pays else inner[0]), f"at {edge} {arm.label} is within noise of 1: its neighbour tells more"
    return None


def _found(question: Question, arm: Arm, known: Known) -> Found:
    told = known.speedups(question, arm)
    measured = sorted(told)
    sides = [(a, b) for a, b in pairwise(measured) if (told[a].value > 1) != (told[b].value > 1)]
    skips = {}
    for load, spot in arm.spots.items():
        if not known.is_asked(spot):
            near = [x for x in (max((x for x in measured if x < load), default=None),
                                min((x for x in measured if x > load), default=None)) if x is not None]  # fmt: skip
            skips[spot.id] = _skip(arm, told, near)
    n_asked = sum(known.is_asked(arm.spots[load]) for load in question.loads_of(arm))
    return Found([_answer(question, arm, told, sides, n_asked)], skips)


def _skip(arm: Arm, told: Mapping[int, Interval], near: list[int]) -> Skip:
    """What a load that was left out is presumed to be, by those around it."""
    kinds = {told[load].value > 1 for load in near}
    if len(kinds) != 1:
        return Skip(f"{arm.label} was not measured around it")
    words = " and ".join(f"{told[load].value:.2f} times as fast at {load}" for load in near)
    return Skip(f"{arm.label} is {words}: the crossing is elsewhere", "faster" if kinds == {True} else "slower")


def _answer(
    question: Question, arm: Arm, told: Mapping[int, Interval], sides: list[tuple[int, int]], n_asked: int
) -> Answer:
    if not told:
        return Answer(question, f"{arm.label}: unknown, no valid pair of cells", arm, is_known=False)
    if not sides:
        pays = told[min(told)].value > 1
        edge = max(told) if pays else min(told)
        valid = "" if len(told) == n_asked else f" that is valid, {min(told)} to {max(told)}"
        word = f"pays at every load{valid}" if pays else f"pays at no load{valid}"
        near = ", within noise" if told[edge].holds(1.0) else ""
        to, since = (edge, None) if pays else (None, edge)
        return Answer(question, f"{arm.label} {word}{near}: {told[edge]} at {edge}", arm, None, to, since, told[edge])
    a, b = sides[-1]
    falls = told[a].value > 1
    word = "stops to pay" if falls else "begins to pay"
    crossing = exp(log(a) + (log(b) - log(a)) * log(told[a].value) / (log(told[a].value) - log(told[b].value)))
    text = f"{arm.label} {word} between {a} and {b}, at about {crossing:.3g}: {told[a]} at {a}, {told[b]} at {b}"
    return Answer(question, text, arm, None, a if falls else b, b if falls else a, told[a])
