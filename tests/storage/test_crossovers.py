"""Where the speed-up passes 1, against points worked out by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from recorded import record
from recorded_grid import ask, baseline, fast, pair, point

from storage.rows import CellResult

FALLING = {1: 25.0, 2: 30.0, 4: 50.0, 8: 80.0}
"""concurrency → step in ms: speed-ups 1.6, 1.33, 0.8 and 0.5."""


def by_concurrency(steps: dict[int, float], **changes: Any) -> list[CellResult]:
    return [row for slots, step_ms in steps.items() for row in pair(point("ngram", concurrency=slots), step_ms, **changes)]


def crossovers(folder: Path, columns: str, axis: str = "concurrency") -> list[Any]:
    where = f"WHERE metric = 'user_tps' AND category = 'all' AND axis = '{axis}'"
    return ask(folder, f"SELECT {columns} FROM crossovers {where} ORDER BY x")


def between(x0: float, y0: float, x1: float, y1: float) -> float:
    """Where a straight line on logarithmic paper passes 1."""
    return x0 * (x1 / x0) ** (math.log(y0) / (math.log(y0) - math.log(y1)))


def test_a_speed_up_that_falls_below_one_does_so_on_the_line_between_two_points(tmp_path: Path) -> None:
    folder = record(tmp_path / "run", *by_concurrency(FALLING))

    found = crossovers(
        folder, "answer, x, x_low, x_high, x_before, x_after, significant, n_points, n_faster, n_slower, draft"
    )

    at = pytest.approx(between(2, 4 / 3, 4, 0.8))  # 2.955; all prompts gain alike, so that the bounds are there too
    assert found == [("falls below 1", at, at, at, 2.0, 4.0, True, 4, 2, 2, "ngram k=3")]


@pytest.mark.parametrize(
    ("steps", "answer", "ends"),
    [
        pytest.param({1: 25.0, 2: 32.0}, "always", (1.6, 1.25), id="above 1 everywhere"),
        pytest.param({1: 50.0, 2: 80.0}, "never", (0.8, 0.5), id="below 1 everywhere"),
    ],
)
def test_always_and_never_are_answers(tmp_path: Path, steps: dict[int, float], answer: str, ends: Any) -> None:
    folder = record(tmp_path / "run", *by_concurrency(steps))

    found = crossovers(folder, "answer, x, significant, x_min, x_max, ratio_at_min, ratio_at_max")

    assert found == [(answer, None, True, 1.0, 2.0, pytest.approx(ends[0]), pytest.approx(ends[1]))]


def test_every_crossing_is_a_row(tmp_path: Path) -> None:
    folder = record(tmp_path / "run", *by_concurrency({1: 50.0, 2: 25.0, 4: 50.0}))

    assert crossovers(folder, "answer, x") == [
        ("rises above 1", pytest.approx(between(1, 0.8, 2, 1.6))),
        ("falls below 1", pytest.approx(between(2, 1.6, 4, 0.8))),
    ]


def test_the_interval_of_a_crossing_is_where_the_bounds_pass_one(tmp_path: Path) -> None:
    spread = (0.8, 1.3, 0.9, 1.2, 1.0, 0.7, 1.1, 1.4)
    rows = []
    for slots, step_ms in FALLING.items():
        rows += [
            baseline(point("ngram", concurrency=slots)),
            fast(point("ngram", concurrency=slots), step_ms, spread=spread),
        ]
    folder = record(tmp_path / "run", *rows)

    (x, low, high), *rest = crossovers(folder, "x, x_low, x_high")
    curve = "WHERE axis = 'concurrency' AND metric = 'user_tps' AND category = 'all' ORDER BY x"
    points = ask(folder, f"SELECT x, ci_low, ci_high FROM curves {curve}")

    assert rest == []
    assert low < x < high
    lows = [(at, bound) for at, bound, _ in points]
    highs = [(at, bound) for at, _, bound in points]
    assert low == pytest.approx(first_below_one(lows))
    assert high == pytest.approx(first_below_one(highs))


def first_below_one(curve: list[tuple[float, float]]) -> float:
    n = next(n for n, (_, y) in enumerate(curve) if y <= 1)
    return between(*curve[n - 1], *curve[n])


def test_what_differs_by_chance_only_is_no_significant_answer(tmp_path: Path) -> None:
    folder = record(tmp_path / "run", *by_concurrency({1: 25.0, 2: 50.0}, n=5))  # five prompts say nothing

    assert crossovers(folder, "answer, significant, n_faster, n_slower") == [("falls below 1", False, 0, 0)]


def test_invalid_cells_do_not_speak_and_are_counted(tmp_path: Path) -> None:
    dirty = pair(point("ngram", concurrency=8), 10.0, caches_reset=False)
    folder = record(tmp_path / "run", *by_concurrency({1: 25.0, 2: 32.0}), *dirty)

    assert crossovers(folder, "answer, n_points, n_invalid, x_max") == [("always", 2, 1, 2.0)]


@pytest.mark.parametrize(
    ("axis", "cells"),
    [
        pytest.param("batch", [point("ngram", batch=size) for size in (1, 4)], id="the engine's batch"),
        pytest.param("batch", [point("ngram", batch=n, concurrency=n) for n in (1, 4)], id="batch, and as many requests"),
        pytest.param("isl", [point("ngram", isl=tokens) for tokens in (1, 4)], id="prompt length"),
        pytest.param("rate", [point("ngram", kind="poisson", rate=rate) for rate in (1.0, 4.0)], id="rate"),
    ],
)
def test_other_axes_than_concurrency_have_crossings(tmp_path: Path, axis: str, cells: list[Any]) -> None:
    rows = [row for cell, step_ms in zip(cells, (20.0, 80.0), strict=True) for row in pair(cell, step_ms)]
    folder = record(tmp_path / "run", *rows)

    assert crossovers(folder, "answer, x", axis) == [("falls below 1", pytest.approx(2.0))]  # 2.0 and 0.5: halfway


def test_one_point_makes_no_answer(tmp_path: Path) -> None:
    folder = record(tmp_path / "run", *by_concurrency({1: 25.0}))

    assert crossovers(folder, "answer") == []
    assert ask(folder, "SELECT DISTINCT axis, x FROM curves") == [("concurrency", 1.0)]
