"""Owns how a search is judged: its answers beside those of the full grid, and what following them costs. Does not own them.

An answer is the same where it is equal, or where the full grid's own 95 % interval does not tell the two apart. Such a tie
is no failure, but what it costs counts: `regret` is the share of speed (or goodput) that is lost against the best, by what
is true. Whether limits on latency hold at a load is a cliff, over which noise moves the full grid too: of goodput
the best is the full grid's own answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean

from orchestrator.search.goodput import Climb
from orchestrator.search.ground import Arm, Spot
from orchestrator.search.known import Answer, Facts, Interval, Known
from orchestrator.settings import Goal, Search

Truth = Callable[[Spot], float]
"""What a spot gives in truth: its speed-up (1 for the baseline), or its goodput."""


@dataclass(frozen=True)
class Verdict:
    """Of one answer. `is_equal`: to the letter; `is_same`: but for ties; `regret`: share lost."""

    is_equal: bool
    is_same: bool
    regret: float


def judge(goal: Goal, answers: tuple[Answer, ...], facts: Facts, truth: Truth) -> Iterator[Verdict]:
    """A verdict for each answer; of crossovers, one for each draft."""
    known = Known(facts)
    known.asked = _Everything()
    how = {Goal.best_k: _best_k, Goal.crossover: _crossover, Goal.max_goodput: _max_goodput}[goal]
    for answer in answers:
        yield from how(answer, known, truth)


class _Everything(dict[str, Spot]):
    def __contains__(self, spot_id: object) -> bool:
        return True


def _crossover(answer: Answer, known: Known, truth: Truth) -> Iterator[Verdict]:
    """Whether to speculate at each load; what a wrong one costs at the load where it costs most."""
    arm = answer.arm
    told = known.speedups(answer.question, arm) if arm else {}
    if not arm or not told:
        return
    advised = {load: _speculates(answer, load) for load in told}
    wrong = [load for load, speedup in told.items() if advised[load] != (speedup.value > 1)]
    lost = [_lost(max(1.0, gain), gain if advised[load] else 1.0) for load in told for gain in [truth(arm.spots[load])]]
    yield Verdict(not wrong, all(told[load].holds(1.0) for load in wrong), max(lost))


def _speculates(answer: Answer, load: int) -> bool:
    to, since = answer.pays_to, answer.costs_from
    if to is None:
        return False
    if since is None:
        return True
    return load <= to if to < since else load >= to


def _best_k(answer: Answer, known: Known, truth: Truth) -> Iterator[Verdict]:
    question, load = answer.question, answer.load
    if load is None or len(question.families) != 1:
        return
    family = question.families[0]
    told = {k: known.of(arm.spots.get(load)).speedup for k, arm in family.items()}
    values = {k: speedup for k, speedup in told.items() if speedup} | {0: Interval(1.0, 1.0, 1.0)}
    best = max(values, key=lambda k: values[k].value)
    chosen = answer.arm.k if answer.arm else 0
    true = {0: 1.0} | {k: truth(family[k].spots[load]) for k in values if k}
    yield Verdict(best == chosen, _is_tie(values, chosen, best), _lost(max(true.values()), true[chosen]))


def _is_tie(values: Mapping[int, Interval], chosen: int, best: int) -> bool:
    """The interval of what was chosen holds the best's value, or, where that is off, the best's holds 1."""
    if chosen == best:
        return True
    return values[best].holds(1.0) if chosen == 0 else values[chosen].high >= values[best].value


def _max_goodput(answer: Answer, known: Known, truth: Truth) -> Iterator[Verdict]:
    question = answer.question
    best = Climb(question, known, Search()).best(question.every_arm)
    chosen = _spot(answer.arm, answer.load)
    if best is None:
        yield Verdict(chosen is None, chosen is None, 0.0)
        return
    full = best[0].spots[best[1]]
    is_equal = chosen is not None and chosen.id == full.id
    told = known.of(chosen).goodput
    is_tie = told is not None and told.high >= best[2].goodput.value
    yield Verdict(is_equal, is_equal or is_tie, _lost(truth(full), truth(chosen) if chosen else 0.0))


def _spot(arm: Arm | None, load: int | None) -> Spot | None:
    return arm.spots.get(load) if arm and load is not None else None


def _lost(best: float, reached: float) -> float:
    return max(0.0, 1 - reached / best) if best else 0.0


def summed(verdicts: list[Verdict]) -> dict[str, float | bool]:
    """As it is printed."""
    return {
        "answers": len(verdicts),
        "same_answer": all(verdict.is_same for verdict in verdicts),
        "same_answer_share": round(fmean(verdict.is_same for verdict in verdicts), 4),
        "equal_answer_share": round(fmean(verdict.is_equal for verdict in verdicts), 4),
        "regret_pct": round(100 * fmean(verdict.regret for verdict in verdicts), 2),
        "regret_pct_max": round(100 * max(verdict.regret for verdict in verdicts), 2),
    }
