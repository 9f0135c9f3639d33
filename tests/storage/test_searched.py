"""A searched grid is judged right: what was left out is neither failed nor missing, and what may still pay is open."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recorded import record
from recorded_grid import ask, baseline, fast, pair, point

from jobs.spec import Cell
from orchestrator.search.facts import facts_of
from orchestrator.settings import Search
from storage.places import place_of
from storage.rows import DecisionRow
from storage.runs import RunStore, history_of

MEASURED, LEFT_OUT = point("ngram", 3), point("ngram", 8)


def skip(cell: Cell, presumed: str, **changes: Any) -> DecisionRow:
    row = DecisionRow(
        "0123", 0, 2, "skip", "best_k", "user_tps", "small", "projected", presumed, cell.id, cell.deployment.id,
        cell.pair_id, "ngram", cell.deployment.draft.k, cell.load.concurrency,
    )  # fmt: skip
    return replace(row, **changes)


def searched(folder: Path, *decisions: DecisionRow, step_ms: float = 60.0) -> Path:
    """A run whose last command searched a grid of three cells; the measured draft is 40 / `step_ms` times as fast."""
    sweep = "invocation:\n  n_cells: 3\n  search_id: '0123'\n"
    record(folder, *pair(MEASURED, step_ms), sweep=sweep)
    with RunStore.open(folder) as store:
        store.write_decisions(decisions)
    return folder


def test_a_cell_that_was_left_out_is_not_searched_and_the_run_is_whole(tmp_path: Path) -> None:
    folder = searched(tmp_path / "run", skip(LEFT_OUT, ""))
    sql = "SELECT n_planned, n_cells, n_not_searched, n_missing, n_failed, is_whole, progress, search_goal FROM runs"
    assert ask(folder, sql) == [(3, 2, 1, 0, 0, True, "2 of 3 cells measured, 1 not searched", "best_k")]
    assert len(history_of(folder).attempts) == 2


def test_a_decision_of_another_search_leaves_nothing_out(tmp_path: Path) -> None:
    folder = searched(tmp_path / "run", skip(LEFT_OUT, "", search_id="4567"))
    assert ask(folder, "SELECT n_not_searched, n_missing, is_whole FROM runs") == [(0, 1, False)]
    assert ask(folder, "SELECT is_current FROM decisions") == [(False,)]


def test_the_decisions_of_a_search_are_those_of_its_last_round(tmp_path: Path) -> None:
    folder = searched(tmp_path / "run", skip(LEFT_OUT, ""))
    with RunStore.open(folder) as store:
        store.write_decisions([skip(LEFT_OUT, "", round=3), skip(MEASURED, "", number=1)])
        store.write_decisions([])
    assert ask(folder, "SELECT number, round FROM decisions ORDER BY number") == [(0, 3), (1, 2)]


def test_a_search_judges_by_the_limits_that_are_asked_for_and_not_by_those_recorded(tmp_path: Path) -> None:
    folder = record(tmp_path / "run", *pair(MEASURED, 20.0))  # a TPOT of 10 ms, without limits
    asked = [replace(MEASURED, load=replace(MEASURED.load, slo_tpot_s=limit_s)) for limit_s in (0.015, 0.005, 0.0)]
    told = [facts_of(place_of(folder), Search(), {MEASURED.id}, [cell]).seen[MEASURED.id].attainment for cell in asked]
    assert [share and share.value for share in told] == [1.0, 0.0, None]


def test_a_search_knows_a_spot_whose_first_repeat_is_invalid_and_nothing_by_an_invalid_baseline(tmp_path: Path) -> None:
    again = replace(MEASURED, repeat=1)
    rows = [*pair(MEASURED, 20.0, caches_reset=False), baseline(again), fast(again, 20.0)]
    cell = replace(MEASURED, load=replace(MEASURED.load, slo_tpot_s=0.015))
    seen = facts_of(place_of(record(tmp_path / "both", *rows)), Search(), {MEASURED.id}, [cell]).seen[MEASURED.id]
    assert (seen.goodput is not None, len(seen.lengths), seen.step_cost) == (True, 3, pytest.approx(1.0))
    alone = record(tmp_path / "alone", baseline(again, caches_reset=False), fast(again, 20.0))
    assert facts_of(place_of(alone), Search(), {again.id}).seen == {}


@pytest.mark.parametrize(
    ("presumed", "step_ms", "answer", "n_open"),
    [
        pytest.param("", 60.0, "unknown", 1, id="nothing is presumed of what was left out"),
        pytest.param("faster", 60.0, "unknown", 1, id="it is presumed to pay"),
        pytest.param("slower", 60.0, "no", 0, id="it is presumed not to pay"),
        pytest.param("not best", 60.0, "no", 0, id="another one is better, and does not pay"),
        pytest.param("", 20.0, "yes", 0, id="what was measured pays, whatever was left out"),
    ],
)
def test_no_place_is_judged_where_a_draft_was_left_out_that_may_pay(
    presumed: str, step_ms: float, answer: str, n_open: int, tmp_path: Path
) -> None:
    folder = searched(tmp_path / "run", skip(LEFT_OUT, presumed), step_ms=step_ms)
    found = ask(folder, "SELECT answer, n_open, why FROM verdicts WHERE metric = 'user_tps'")
    assert [row[:2] for row in found] == [(answer, n_open)]
    assert ("The search left out drafts" in found[0][2]) == (answer == "unknown")


@pytest.mark.parametrize(
    ("presumed", "is_clear"), [pytest.param("", False, id="open"), pytest.param("not best", True, id="presumed")]
)
def test_no_draft_is_clearly_the_best_beside_one_that_was_left_out(presumed: str, is_clear: bool, tmp_path: Path) -> None:
    folder = searched(tmp_path / "run", skip(LEFT_OUT, presumed), step_ms=20.0)
    sql = "SELECT best_k, is_clear, n_not_searched FROM best_drafts WHERE metric = 'user_tps'"
    assert ask(folder, sql) == [(3, is_clear, int(not is_clear))]


def test_a_presumption_speaks_for_its_own_metric_only(tmp_path: Path) -> None:
    folder = searched(tmp_path / "run", skip(LEFT_OUT, "slower"))
    assert ask(folder, "SELECT answer FROM verdicts WHERE metric = 'output_tps'") == [("unknown",)]
