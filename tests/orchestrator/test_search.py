"""A search asks for coarse points, then only where the answer lies; it goes the same way after a kill, and says why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from grids import cell

from jobs.errors import BadInput
from jobs.spec import Cell, Draft
from orchestrator.search import choose, refuse_unsearchable
from orchestrator.search.ground import questions_of
from orchestrator.search.known import Facts, Interval, Seen
from orchestrator.search.path import Choice
from orchestrator.search.project import Projector
from orchestrator.search.record import Searching
from orchestrator.settings import Goal, Search

LOADS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
LIMIT_S = 0.05


def grid(*ks: int, loads: tuple[int, ...] = LOADS, slo_tpot_s: float = 0.0) -> list[Cell]:
    """The baseline and prompt lookup with each k, at each load."""
    cells = [cell(k, concurrency=load) for k in (0, *ks) for load in loads]
    return [replace(one, load=replace(one.load, slo_tpot_s=slo_tpot_s)) for one in cells]


def length(k: int) -> float:
    """AL with acceptance of 80 % at every position."""
    return sum(0.8**at for at in range(k + 1))


def cost(k: int, load: int) -> float:
    """A step of the baseline costs 1; verifying gets dear as the batch grows."""
    return 1 + 0.05 * k + 0.004 * k * load


def speedup(k: int, load: int) -> float:
    return length(k) / cost(k, load)


def world(cells: list[Cell], *, off: Mapping[tuple[int, int], float] | None = None) -> dict[str, Seen]:
    """What measuring each cell would tell; `off` multiplies the speed-up of a (k, load)."""
    told = {}
    for one in cells:
        k, load = one.deployment.draft.k, one.load.concurrency
        value = speedup(k, load) * (off or {}).get((k, load), 1.0)
        attainment = min(1.0, 40 * max(value, 1.0) / load)
        rate = load**0.5 * max(value, 1.0)
        told[one.id] = Seen(
            speedup=Interval(value, value * 0.98, value * 1.02) if k else None,
            lengths=[length(n) for n in range(1, k + 1)],
            step_cost=cost(k, load) if k else None,
            attainment=Interval(attainment, attainment, attainment),
            goodput=Interval(rate * attainment, rate * attainment, rate * attainment),
            throughput=rate,
        )
    return told


def walk(cells: list[Cell], told: Mapping[str, Seen], search: Search) -> tuple[Choice, list[set[str]]]:
    """Measure what is asked for until there is an answer; with the ids that were asked for after each look."""
    looks = []
    settled: frozenset[str] = frozenset()
    while True:
        facts = Facts({cell_id: told[cell_id] for cell_id in settled if cell_id in told}, settled)
        choice = choose(cells, facts, search)
        looks.append({one.id for one in choice.cells})
        if choice.is_done:
            return choice, looks
        assert looks[-1] - settled, "a search that is not done asks for more"
        settled = frozenset(looks[-1])


def words(choice: Choice) -> str:
    return "\n".join(answer.text for answer in choice.answers)


def test_a_crossover_is_found_with_less_than_half_of_the_cells() -> None:
    cells = grid(1, 2, 3, 4, 6, 8)
    choice, _ = walk(cells, world(cells), Search(Goal.crossover))
    for answer in choice.answers:
        assert answer.arm
        above = [load for load in LOADS if speedup(answer.arm.k, load) > 1]
        assert (answer.pays_to, answer.costs_from) == (above[-1], LOADS[len(above)]), answer.text
    assert len(choice.answers) == 6
    assert len(choice.cells) <= 0.4 * len(cells)


@pytest.mark.parametrize(
    ("factor", "said"),
    [
        pytest.param(9.0, "ngram k=3 pays at every load", id="always"),
        pytest.param(0.1, "ngram k=3 pays at no load", id="never"),
    ],
)
def test_where_nothing_crosses_that_is_the_answer(factor: float, said: str) -> None:
    cells = grid(3)
    choice, _ = walk(cells, world(cells, off={(3, load): factor for load in LOADS}), Search(Goal.crossover))
    assert words(choice).startswith(said)
    assert {one.load.concurrency for one in choice.cells} == {1, 16, 512}


def test_loads_that_told_nothing_are_not_among_those_where_it_pays() -> None:
    cells = grid(3, loads=(1, 2, 4, 8, 16, 32))
    told = world(cells, off={(3, load): 9.0 for load in LOADS})
    told = {one.id: told[one.id] for one in cells if one.load.concurrency < 16}
    choice, _ = walk(cells, told, Search(Goal.crossover))
    assert words(choice).startswith("ngram k=3 pays at every load that is valid, 1 to ")


def test_where_no_cell_is_valid_limits_are_neither_kept_nor_missed() -> None:
    cells = grid(3, slo_tpot_s=LIMIT_S)
    choice, _ = walk(cells, {}, Search(Goal.max_goodput))
    assert words(choice) == "unknown: no cell is valid"
    assert {decision.reason for decision in choice.decisions if decision.action == "skip"} <= {
        "none has no valid point",
        "ngram k=3 has no valid point",
    }


def test_a_search_that_found_no_gain_has_found_something() -> None:
    cells = grid(1, 3, loads=(1, 2), slo_tpot_s=LIMIT_S)
    slow = world(cells, off={(k, load): 0.1 for k in (1, 3) for load in (1, 2)})
    missed = {cell_id: replace(seen, attainment=Interval(0.1, 0.1, 0.1)) for cell_id, seen in slow.items()}
    for goal, told, words_told in (
        (Goal.best_k, slow, "cells were enough"),
        (Goal.max_goodput, missed, "cells were enough"),
        (Goal.best_k, {}, "cells told nothing that is valid"),
        (Goal.max_goodput, {}, "cells told nothing that is valid"),
    ):
        searching = Searching(cells, Search(goal))
        searching.choice, _ = walk(cells, told, searching.search)
        assert words_told in next(searching.told()), goal


def test_other_limits_are_another_search() -> None:
    search = Search(Goal.max_goodput)
    assert len({Searching(grid(3, slo_tpot_s=limit_s), search).id for limit_s in (0.02, 0.05)}) == 2


def test_an_end_within_noise_of_1_asks_its_neighbour() -> None:
    cells = grid(3)
    flat = {(3, load): (1.3 if load < 512 else 1.01) / speedup(3, load) for load in LOADS}
    choice, _ = walk(cells, world(cells, off=flat), Search(Goal.crossover))
    assert 256 in {one.load.concurrency for one in choice.cells}
    assert "within noise" in words(choice)


def test_the_best_length_is_found_at_every_load_with_less_than_half_of_the_cells() -> None:
    cells = grid(1, 2, 3, 4, 5, 6, 7, 8)
    choice, _ = walk(cells, world(cells), Search(Goal.best_k))
    assert [answer.load for answer in choice.answers] == list(LOADS)
    for answer in choice.answers:
        assert answer.load
        best = max(1.0, *(speedup(k, answer.load) for k in range(1, 9)))
        reached = speedup(answer.arm.k, answer.load) if answer.arm else 1.0
        assert reached >= 0.98 * best, answer.text
    assert len(choice.cells) <= 0.4 * len(cells)


def test_the_most_goodput_is_found_over_drafts_and_loads() -> None:
    cells = grid(1, 2, 3, 4, 6, 8, slo_tpot_s=LIMIT_S)
    told = world(cells)
    choice, _ = walk(cells, told, Search(Goal.max_goodput))
    held = [
        seen.goodput.value for seen in told.values() if seen.goodput and seen.attainment and seen.attainment.value >= 0.9
    ]
    (answer,) = choice.answers
    assert answer.value is not None
    assert answer.value.value >= 0.98 * max(held)
    assert len(choice.cells) <= 0.4 * len(cells)


@pytest.mark.parametrize("goal", [Goal.best_k, Goal.crossover, Goal.max_goodput])
def test_a_kill_in_the_middle_of_a_round_changes_nothing(goal: Goal) -> None:
    """The function of a part of what a round brought asks for the rest of that round; a full record changes no decision."""
    cells = grid(1, 3, 5, 8, slo_tpot_s=LIMIT_S)
    told = world(cells)
    whole, looks = walk(cells, told, Search(goal))
    before, after = next(two for two in pairwise(looks) if len(two[1] - two[0]) > 1)
    half = frozenset(before | set(sorted(after - before)[:1]))
    assert {one.id for one in choose(cells, Facts(told, half), Search(goal)).cells} == after
    everything = choose(cells, Facts(told, frozenset(told)), Search(goal))
    assert [(d.action, d.reason, d.round) for d in everything.decisions] == [
        (d.action, d.reason, d.round) for d in whole.decisions
    ]


@pytest.mark.parametrize("goal", [Goal.best_k, Goal.crossover, Goal.max_goodput])
def test_cells_that_tell_nothing_end_the_search_and_are_no_answer(goal: Goal) -> None:
    cells = grid(2, 4, loads=(1, 4, 16, 64), slo_tpot_s=LIMIT_S)
    choice = choose(cells, Facts({}, frozenset(one.id for one in cells)), Search(goal))
    assert choice.is_done
    assert all(answer.value is None for answer in choice.answers)


def test_every_cell_has_a_row_with_its_reason_and_the_answer_is_one() -> None:
    cells = grid(2, 4, 8)
    searching = Searching(cells, Search(Goal.crossover))
    searching.choice, _ = walk(cells, world(cells), searching.search)
    rows = searching.rows()
    assert sorted(row.cell_id for row in rows if row.action != "answer") == sorted(one.id for one in cells)
    assert all(row.reason for row in rows)
    assert {row.presumed for row in rows if row.action == "skip"} <= {"faster", "slower", ""}
    assert [(row.draft, row.k, row.pays_to is not None) for row in rows if row.action == "answer"] == [
        ("ngram", 2, True), ("ngram", 8, True), ("ngram", 4, True)
    ]  # fmt: skip
    told = "\n".join(searching.told())
    assert f"{len(searching.choice.cells)} of 40 cells were enough" in told


def test_the_name_of_a_search_is_that_of_its_grid_and_settings() -> None:
    cells = grid(2, 4)
    names = [
        Searching(cells, Search(Goal.crossover)).id,
        Searching(cells, Search(Goal.crossover, coarse=4)).id,
        Searching(cells[:-1], Search(Goal.crossover)).id,
    ]
    assert len({*names}) == 3
    assert Searching(cells, Search(Goal.crossover)).id == names[0]
    assert Searching(cells, Search()).choice.cells == tuple(cells)


def test_cells_of_one_question_differ_in_draft_load_and_repeat_only() -> None:
    cells = [*grid(2, loads=(1, 2)), cell(2, repeat=1), cell(2, batch=4), cell(0, batch=4)]
    first, second = questions_of(cells)
    assert [sorted(arm.spots) for arm in first.every_arm] == [[1, 2], [1, 2]]
    assert len(first.arms[0].spots[1].cells) == 2
    assert len(second.arms) == 1
    assert first.label != second.label


@pytest.mark.parametrize(
    ("cells", "search", "message"),
    [
        pytest.param(grid(3, loads=(4,)), {"goal": Goal.crossover}, "must have several loads of one engine", id="one load"),
        pytest.param(grid(3), {"goal": Goal.best_k}, "must have several draft lengths", id="one length"),
        pytest.param(grid(3), {"goal": Goal.max_goodput}, "must have limits on latency", id="no limits"),
        pytest.param(grid(3)[10:], {"goal": Goal.crossover}, "must have drafts and their baselines", id="no baseline"),
        pytest.param(grid(3), {"goal": Goal.crossover, "coarse": 1}, "`search.coarse` must be at least 2", id="too coarse"),
        pytest.param(grid(3), {"tolerance": 1.0}, "`search.tolerance` must be above 0 and below 1", id="no tolerance"),
    ],
)
def test_what_cannot_be_searched_is_refused(cells: list[Cell], search: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        refuse_unsearchable(cells, Search(**search))


def test_a_line_of_costs_that_falls_below_nothing_projects_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """k = 1 at 0.9 of a step without a draft would make k = 12 cost less than nothing."""
    monkeypatch.setattr(Projector, "length", lambda self, k: 2.0)
    monkeypatch.setattr(Projector, "_costs", lambda self, load: {1: 0.9})
    projector = Projector(question=None, family={}, known=None)
    assert projector.cost(12, 1) == pytest.approx(-0.2)
    assert projector.projected(12, 1) is None


def test_drafts_and_questions_of_one_name_are_told_apart() -> None:
    drafts = [Draft(name="eagle3", method="eagle3", k=3, model=f"org/{name}") for name in ("old", "new")]
    cells = [
        replace(one.with_draft(draft), workload=replace(one.workload, output_limit=limit))
        for limit in (64, 512)
        for draft in drafts
        for one in (cell(3, concurrency=load) for load in (1, 8))
    ]

    questions = questions_of(cells)

    assert [question.label.split(" ")[-1] for question in questions] == [
        "workload.output_limit=64",
        "workload.output_limit=512",
    ]
    assert {arm.label for arm in questions[0].arms} == {f"eagle3 k=3 draft.model=org/{name}" for name in ("old", "new")}
