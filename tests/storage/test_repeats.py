"""Several repeats: valid ones are averaged, invalid ones shown and never mixed in, and how far apart they are is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from recorded import record
from recorded_grid import ask, baseline, fast, pair, point

from storage.rows import CellResult

DIRTY = {"caches_reset": False}


def repeats(*steps: tuple[float, bool]) -> list[CellResult]:
    """A baseline of 50 tokens/s and a speculative cell a repeat: its step time, and whether it is valid."""
    rows = []
    for n, (step_ms, is_valid) in enumerate(steps):
        cell = point("ngram", repeat=n)
        rows += [baseline(cell), fast(cell, step_ms, **({} if is_valid else DIRTY))]
    return rows


MIXED = ((20.0, True), (40.0, False), (25.0, True))
"""2 tokens a step: 100, 50 and 80 tokens/s; 2, 1 and 1.6 times the baseline. The second is invalid."""


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        pytest.param(
            "SELECT n_cells, n_ok, n_valid, user_tps_p50, user_tps_min, user_tps_max FROM drafts WHERE method = 'ngram'",
            (3, 3, 2, 90.0, 80.0, 100.0),
            id="a draft: the mean of 100 and 80",
        ),
        pytest.param(
            "SELECT n_repeats, valid, user_tps_p50, user_tps_min, user_tps_max FROM draft_categories "
            "JOIN (SELECT deployment_id FROM drafts WHERE method = 'ngram') USING (deployment_id) WHERE category = 'math'",
            (2, True, 90.0, 80.0, 100.0),
            id="a category",
        ),
        pytest.param(
            "SELECT n_repeats, n_left_out, valid, ratio, ratio_min, ratio_max FROM draft_speedups "
            "WHERE metric = 'user_tps' AND category = 'all'",
            (2, 1, True, 1.8, 1.6, 2.0),
            id="its speed-up: the mean of 100 and 80 tokens/s over 50",
        ),
        pytest.param(
            "SELECT ratio, al_break_even FROM causes",
            (1.8, 1.125),
            id="its step: the mean of 20 and 25 over 20 ms",
        ),
        pytest.param("SELECT n_repeats, user_tps_max FROM frontier WHERE method = 'ngram'", (2, 100.0), id="the frontier"),
        pytest.param("SELECT n, n_invalid FROM draft_costs WHERE method = 'ngram'", (2, 1), id="its cost"),
        pytest.param(
            "SELECT best_draft, n_repeats FROM best_drafts WHERE metric = 'user_tps'", ("ngram k=3", 2), id="the best"
        ),
        pytest.param(
            "SELECT answer, best_ratio, n_comparisons, n_invalid FROM verdicts WHERE metric = 'user_tps'",
            ("yes", 1.8, 1, 0),
            id="the verdict",
        ),
    ],
)
def test_an_invalid_repeat_is_in_no_mean(tmp_path: Path, sql: str, expected: tuple[object, ...]) -> None:
    folder = record(tmp_path / "run", *repeats(*MIXED))

    [found] = ask(folder, sql)

    assert found == pytest.approx(expected)


def test_where_no_repeat_is_valid_the_invalid_ones_are_shown_and_are_no_claim(tmp_path: Path) -> None:
    folder = record(tmp_path / "run", *repeats((20.0, False), (25.0, False)))

    assert ask(folder, "SELECT n_valid, user_tps_p50 FROM drafts WHERE method = 'ngram'") == [(0, pytest.approx(90.0))]
    speedup = "SELECT n_repeats, n_left_out, valid, ratio FROM draft_speedups WHERE metric = 'user_tps' AND category = 'all'"
    assert ask(folder, speedup) == [(2, 0, False, pytest.approx(1.8))]
    assert ask(folder, "SELECT answer FROM verdicts WHERE metric = 'user_tps'") == [("unknown",)]


def test_a_draft_of_an_invalid_baseline_has_no_valid_repeat(tmp_path: Path) -> None:
    cell = point("ngram")
    folder = record(tmp_path / "run", baseline(cell, **DIRTY), fast(cell, 20.0))

    assert ask(folder, "SELECT DISTINCT valid, n_repeats FROM draft_speedups") == [(False, 1)]


def test_of_one_repeat_the_draft_says_what_its_cell_says(tmp_path: Path) -> None:
    """Every number, interval and verdict: nothing is drawn a second time."""
    folder = record(tmp_path / "run", *pair(point("ngram"), 25.0, spread=(1.0, 1.1, 0.9, 1.2, 1.0, 0.8, 1.3, 1.0)))
    columns = "metric, category, ratio, ci_low, ci_high, verdict, n_prompts"

    drafts = ask(folder, f"SELECT {columns} FROM draft_speedups ORDER BY ALL")

    assert drafts == ask(folder, f"SELECT {columns} FROM speedups ORDER BY ALL")
    assert len(drafts) == 15


def test_the_draft_that_splits_a_step_is_a_valid_cell(tmp_path: Path) -> None:
    """n-grams say what verifying costs; invalid ones say nothing of others."""
    cell = point("draft_model")
    rows = [baseline(cell), fast(cell, 30.0), fast(point("ngram"), 24.0, **DIRTY)]
    split = "SELECT split_by FROM projections JOIN (SELECT cell_id FROM cells WHERE method = 'draft_model') USING (cell_id)"

    assert set(ask(record(tmp_path / "run", *rows), split)) == {(None,)}


def test_repeats_far_apart_are_told_unless_one_of_them_is_left_out(tmp_path: Path) -> None:
    """100 and 80 tokens/s differ by 20 %; 50 is invalid, and in no mean."""
    folder = record(tmp_path / "run", *repeats(*MIXED))

    assert ask(folder, "SELECT n_cells, sentence FROM warnings WHERE difference = 'drift'") == [
        (1, "1 repeat and the first one differ by more than 10 % in user TPS: their mean hides a drift")
    ]
