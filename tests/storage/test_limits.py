"""Limits of verdicts that a run asks for itself judge its cells, and of two runs that ask for different ones it is told."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from recorded import record
from recorded_grid import ask, pair, point

from storage.errors import BadInput
from storage.limits import FIXED, limit_mistake, limit_names
from storage.views import open_runs

VALID = "SELECT count(*) FILTER (valid), count(*) FROM cells"


def recorded(folder: Path, thresholds: str) -> Path:
    run = record(folder, *pair(point("ngram"), 25.0))
    (run / "sweep.yaml").write_text(f"invocation:\n  n_cells: 2\nthresholds: {thresholds}\n")
    return run


def test_a_runs_own_limits_judge_its_cells(tmp_path: Path) -> None:
    usual, own = recorded(tmp_path / "usual", "{}"), recorded(tmp_path / "own", "{min_requests: 1000}")
    assert ask(usual, VALID) == [(2, 2)]
    assert ask(own, VALID) == [(0, 2)]
    assert ask(own, "SELECT DISTINCT unnest(reasons) FROM cells") == [("too_few_requests",)]


def test_what_is_no_limit_is_left_alone(tmp_path: Path) -> None:
    """A run of a newer version, or a file that somebody edited, can be read all the same."""
    assert ask(recorded(tmp_path / "run", "{of_tomorrow: 3, min_requests: many}"), VALID) == [(2, 2)]


def test_runs_that_ask_for_different_limits_are_judged_by_the_usual_ones_and_it_is_said(tmp_path: Path) -> None:
    runs = [recorded(tmp_path / "one", "{min_requests: 1000}"), recorded(tmp_path / "two", "{}")]
    with open_runs(runs) as both:
        assert both.execute(VALID).fetchall() == [(4, 4)]
        told = both.execute("SELECT sentence FROM warnings WHERE difference = 'limits'").fetchall()
    assert told == [("two and one ask for different thresholds: both are judged by the usual ones",)]


def test_the_names_are_the_columns_of_thresholds(tmp_path: Path) -> None:
    with open_runs([recorded(tmp_path / "run", "{}")]) as runs:
        assert (
            tuple(column for column, *_ in runs.execute("DESCRIBE thresholds").fetchall() if column not in FIXED)
            == limit_names()
        )


@pytest.mark.parametrize(
    ("name", "value", "wrong"),
    [
        pytest.param("resamples", math.nan, "finite", id="no number"),
        pytest.param("resamples", 1.5, "whole, 10 to 100,000", id="part of a sample"),
        pytest.param("resamples", 1e8, "whole, 10 to 100,000", id="for ever"),
        pytest.param("min_requests", 0, "at least 1", id="no request"),
        pytest.param("min_slo_attainment", 2, "a share", id="more than all"),
        pytest.param("max_failed_share", -0.1, "a share", id="less than none"),
        pytest.param("min_logprob", 1, "at most 0", id="more than certain"),
        pytest.param("max_hours_apart", -1, "at least 0", id="before"),
    ],
)
def test_a_limit_has_its_range(name: str, value: float, wrong: str) -> None:
    assert wrong in limit_mistake(name, value)


def test_the_usual_limits_are_in_their_ranges(tmp_path: Path) -> None:
    with open_runs([recorded(tmp_path, "{}")]) as runs:
        (usual,) = runs.execute("FROM thresholds").fetchall()
        names = [column for column, *_ in runs.execute("DESCRIBE thresholds").fetchall()]
    assert [name for name, value in zip(names, usual, strict=True) if limit_mistake(name, value)] == []


def test_a_limit_that_was_written_by_hand_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"`thresholds.resamples` must be whole, 10 to 100,000: got 0 in a run's sweep.yaml"):
        open_runs([recorded(tmp_path, "{resamples: 0}")])
