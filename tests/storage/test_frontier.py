"""What can be chosen: the Pareto frontier, the best draft by load, and goodput, against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from recorded import create_session, record
from recorded_grid import ask, baseline, fast, pair, point

from storage.report.findings import find
from storage.report.verdict import goodputs


def test_a_point_is_on_the_frontier_unless_another_is_better_in_both(tmp_path: Path) -> None:
    slow, quick = point("ngram", concurrency=1), point("ngram", concurrency=4)
    folder = record(
        tmp_path / "run",
        baseline(slow, duration_ms=1000.0),  # 50 tokens/s a user, 40 in all
        fast(slow, 25.0, duration_ms=800.0),  # 80, 50
        baseline(quick, duration_ms=400.0),  # 50, 100
        fast(quick, 50.0, duration_ms=500.0),  # 40, 80
    )

    found = ask(
        folder,
        "SELECT kind, concurrency, user_tps, tps_per_device, device, on_frontier, on_own_frontier, n_repeats FROM frontier "
        "ORDER BY ALL",
    )

    assert found == [
        ("baseline", 1, 50.0, 40.0, "node", False, False, 1),
        ("baseline", 4, 50.0, 100.0, "node", True, True, 1),
        ("speculative", 1, 80.0, 50.0, "node", True, True, 1),
        ("speculative", 4, 40.0, 80.0, "node", False, True, 1),
    ]


def test_throughput_is_told_for_each_gpu_where_there_are_some(tmp_path: Path) -> None:
    base, quick = pair(point("ngram"), 25.0)
    sessions = [create_session(row.cell, gpus_json='[{"name": "H200"}, {"name": "H200"}]') for row in (base, quick)]
    folder = record(tmp_path / "run", *sessions, base, quick)

    assert ask(folder, "SELECT kind, tps_per_device, device FROM frontier ORDER BY kind") == [
        ("baseline", 20.0, "H200"),
        ("speculative", pytest.approx(40 / 0.625 / 2), "H200"),
    ]


def test_one_kind_of_gpu_beats_no_other(tmp_path: Path) -> None:
    base, quick = pair(point("ngram"), 25.0)
    sessions = [
        create_session(row.cell, gpus_json=f'[{{"name": "{gpu}"}}]') for row, gpu in ((base, "A100"), (quick, "H200"))
    ]
    folder = record(tmp_path / "run", *sessions, base, quick)

    assert ask(folder, "SELECT device, on_frontier FROM frontier ORDER BY ALL") == [("A100", True), ("H200", True)]


def test_repeats_are_one_point_with_its_spread_and_invalid_ones_are_not_in_it(tmp_path: Path) -> None:
    cells = [replace(point("ngram"), repeat=n) for n in range(3)]
    folder = record(
        tmp_path / "run",
        fast(cells[0], 20.0),
        fast(cells[1], 40.0),
        fast(cells[2], 400.0, caches_reset=False),
    )

    assert ask(folder, "SELECT n_repeats, user_tps, user_tps_min, user_tps_max FROM frontier") == [(2, 75.0, 50.0, 100.0)]


def test_the_best_draft_is_told_by_load_with_its_runner_up(tmp_path: Path) -> None:
    rows = []
    for slots, short_ms, long_ms in ((1, 32.0, 25.0), (8, 50.0, 80.0)):  # ×: 1.25, 1.6; 0.8, 0.5
        short, long = (point("ngram", k, concurrency=slots) for k in (1, 3))
        rows += [*pair(short, short_ms), fast(long, long_ms)]
    folder = record(tmp_path / "run", *rows)

    found = ask(
        folder,
        "SELECT concurrency, best_draft, best_k, leader, round(ratio, 6), runner_up, round(runner_up_ratio, 6), is_clear, "
        "n_drafts FROM best_drafts WHERE metric = 'user_tps' ORDER BY concurrency",
    )

    assert found == [
        (1, "ngram k=3", 3, "ngram k=3", 1.6, "ngram k=1", 1.25, True, 2),
        (8, "none", 0, "ngram k=1", 0.8, "ngram k=3", 0.5, False, 2),
    ]


def test_goodput_names_the_load_that_still_holds_and_what_the_baseline_gives(tmp_path: Path) -> None:
    limits = {"slo_tpot_s": 0.015}
    one, four = (point("ngram", concurrency=slots, **limits) for slots in (1, 4))
    folder = record(
        tmp_path / "run",
        *pair(one, 20.0),  # TPOT 10 ms against the baseline's 20: all against none, in 0.5 s
        baseline(four),
        fast(four, 25.0, duration_ms=200.0),  # 12.5 ms: all
    )

    found = ask(
        folder,
        "SELECT method, concurrency, slo_attainment, goodput_rps, holds, is_best, baseline_goodput_rps FROM goodput "
        "ORDER BY ALL",
    )

    assert found == [
        ("ngram", 1, 1.0, 16.0, True, False, 0.0),
        ("ngram", 4, 1.0, 40.0, True, True, 0.0),
        ("none", 1, 0.0, 0.0, False, False, 0.0),
        ("none", 4, 0.0, 0.0, False, False, 0.0),
    ]
    sure = "SELECT DISTINCT n_requests, round(slo_attainment_low, 4), round(slo_attainment_high, 4) FROM goodput ORDER BY 2"
    assert ask(folder, sure) == [(8, 0.0, 0.3244), (8, 0.6756, 1.0)]  # 8 / (8 + 1.96²), and what is left of 1


def test_a_repeat_that_is_invalid_hides_no_pair_of_goodputs(tmp_path: Path) -> None:
    cells = sorted((point("ngram", repeat=repeat, slo_tpot_s=0.015) for repeat in (0, 1)), key=lambda cell: cell.pair_id)
    rows = [result for cell in cells for result in (baseline(cell), fast(cell, 20.0, caches_reset=cell is not cells[0]))]
    folder = record(tmp_path / "run", *rows)
    assert ask(folder, "SELECT n_repeats, baseline_goodput_rps FROM goodput WHERE method = 'ngram'") == [(1, 0.0)]


def test_where_nothing_valid_was_measured_no_limit_is_said_to_be_missed(tmp_path: Path) -> None:
    (told,) = goodputs(find([record(tmp_path / "run", baseline(point("ngram", slo_tpot_s=0.05)))]))
    assert "): nothing valid was measured; without speculation " in told


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        pytest.param("0.2, NULL", [("ngram", 1.0), ("none", 1.0)], id="TTFT that all meet"),
        pytest.param("NULL, 0.015", [("ngram", 1.0), ("none", 0.0)], id="TPOT that only speculation meets"),
        pytest.param("0.05, 0.015", [("ngram", 0.0), ("none", 0.0)], id="both must be met"),
    ],
)
def test_other_limits_than_the_recorded_ones_can_be_asked_for(tmp_path: Path, limits: str, expected: object) -> None:
    folder = record(tmp_path / "run", *pair(point("ngram"), 20.0))

    assert ask(folder, f"SELECT method, slo_attainment FROM goodput_under({limits}) ORDER BY method") == expected
