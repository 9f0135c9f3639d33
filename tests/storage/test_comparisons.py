"""Speed-ups with their intervals, losslessness, and the pooled view over repeats."""

from __future__ import annotations

import hashlib
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recorded import ask, create_cell, create_request, create_row, record

from storage.rows import CellResult
from storage.views import open_runs

GAPS_MS = (20.0, 21.0, 22.0, 23.0, 24.0, 25.0, 26.0, 27.0)
"""Gap of each prompt's chunks in the baseline."""


def cell(
    method: str, k: int, times_faster: float, *, repeat: int = 0, gaps=GAPS_MS, duration_ms=1000.0, **changes: Any
) -> CellResult:
    """One prompt a gap; the even ones are `coding`, the odd ones `math`."""
    row = create_row(create_cell(method, k, repeat=repeat), duration_ms=duration_ms)
    requests = [
        create_request(
            row, n, gaps_ms=(100, gap / times_faster, gap / times_faster), category=("coding", "math")[n % 2], **changes
        )
        for n, gap in enumerate(gaps)
    ]
    return CellResult(row, requests)


def test_a_ratio_above_one_means_faster_in_every_metric(tmp_path: Path) -> None:
    folder = record(tmp_path / "run", cell("none", 0, 1), cell("ngram", 3, 2, duration_ms=500))

    ratios = dict(ask(folder, "SELECT metric, ratio FROM speedups WHERE category = 'all'"))

    assert ratios == {
        "user_tps": pytest.approx(2.0),
        "tpot": pytest.approx(2.0),
        "ttft": pytest.approx(1.0),
        "e2e": pytest.approx((100 + 2 * 23.5) / (100 + 23.5)),
        "output_tps": pytest.approx(2.0),  # the same tokens in half the time
    }


def test_a_speed_up_names_its_cells_its_prompts_and_each_category(tmp_path: Path) -> None:
    base, fast = cell("none", 0, 1), cell("ngram", 3, 2)
    folder = record(tmp_path / "run", base, fast)

    rows = ask(
        folder,
        "SELECT run, cell_id, baseline_cell_id, category, n_prompts FROM speedups WHERE metric = 'tpot' ORDER BY category",
    )

    ids = ("run", fast.cell.cell_id, base.cell.cell_id)
    assert rows == [(*ids, "all", 8), (*ids, "coding", 4), (*ids, "math", 4)]


def test_pairs_share_the_prompt_so_that_equal_gains_have_no_interval_width(tmp_path: Path) -> None:
    """Every prompt is exactly twice as fast: resampling prompts in pairs moves both medians alike."""
    folder = record(tmp_path / "run", cell("none", 0, 1), cell("ngram", 3, 2))

    found = ask(
        folder,
        "SELECT ratio, ci_low, ci_high, significant, verdict FROM speedups WHERE category = 'all' AND metric = 'tpot'",
    )

    assert found == [(pytest.approx(2.0), pytest.approx(2.0), pytest.approx(2.0), True, "faster")]


@pytest.mark.parametrize(
    ("factors", "verdict"),
    [
        pytest.param((1.4, 1.5, 1.6, 1.45, 1.55, 1.5, 1.6, 1.5), "faster", id="all prompts gain"),
        pytest.param((0.7, 0.6, 0.8, 0.65, 0.7, 0.75, 0.6, 0.7), "slower", id="all prompts lose"),
        pytest.param((0.5, 2.0, 0.6, 1.8, 0.5, 2.0, 0.7, 1.6), "not significant", id="half gains, half loses"),
    ],
)
def test_a_verdict_needs_an_interval_without_one_in_it(tmp_path: Path, factors: tuple[float, ...], verdict: str) -> None:
    fast = cell("ngram", 3, 1, gaps=[gap / factor for gap, factor in zip(GAPS_MS, factors, strict=True)])
    folder = record(tmp_path / "run", cell("none", 0, 1), fast)

    ratio, low, high, found, significant = ask(
        folder,
        "SELECT ratio, ci_low, ci_high, verdict, significant FROM speedups WHERE category = 'all' AND metric = 'user_tps'",
    )[0]

    assert found == verdict
    assert low <= ratio <= high
    assert significant == (not low <= 1 <= high)


def test_a_comparison_is_valid_when_all_of_its_cells_are(tmp_path: Path) -> None:
    base = [cell("none", 0, 1, repeat=n) for n in (0, 1)]
    fast = [cell("ngram", 3, 2, repeat=n) for n in (0, 1)]
    dirty = CellResult(replace(base[1].cell, caches_reset=False), base[1].requests)
    folder = record(tmp_path / "run", base[0], dirty, *fast)

    where = "WHERE category = 'all' AND metric = 'tpot'"
    assert dict(ask(folder, f"SELECT cell_id, valid FROM speedups {where}")) == {
        fast[0].cell.cell_id: True,
        fast[1].cell.cell_id: False,
    }
    assert ask(folder, f"SELECT n_repeats, n_left_out, valid FROM draft_speedups {where}") == [(1, 1, True)]


def test_a_few_prompts_may_differ_and_are_never_significant(tmp_path: Path) -> None:
    folder = record(tmp_path / "run", cell("none", 0, 1, gaps=GAPS_MS[:5]), cell("ngram", 3, 2, gaps=GAPS_MS[:5]))

    found = ask(folder, "SELECT ci_low > 1, significant, verdict FROM speedups WHERE category = 'all' AND metric = 'tpot'")

    assert found == [(True, False, "not significant")]


def test_one_prompt_has_no_interval(tmp_path: Path) -> None:
    folder = record(tmp_path / "run", cell("none", 0, 1, gaps=GAPS_MS[:1]), cell("ngram", 3, 2, gaps=GAPS_MS[:1]))

    found = ask(
        folder, "SELECT ratio, ci_low, ci_high, significant FROM speedups WHERE category = 'all' AND metric = 'tpot'"
    )

    assert found == [(pytest.approx(2.0), None, None, False)]


def test_the_bootstrap_is_the_same_each_time(tmp_path: Path) -> None:
    fast = cell("ngram", 3, 1, gaps=[gap / (1 + n / 8) for n, gap in enumerate(GAPS_MS)])
    folder = record(tmp_path / "run", cell("none", 0, 1), fast)
    sql = "SELECT metric, category, ci_low, ci_high FROM speedups ORDER BY ALL"

    assert ask(folder, sql) == ask(folder, sql)


def test_the_interval_is_that_of_a_bootstrap_done_by_hand(tmp_path: Path) -> None:
    """The same numbers from the same draws, in Python."""
    factors = (1.1, 1.9, 0.8, 1.4, 1.2, 2.2, 0.9, 1.3)
    fast_gaps = [gap / factor for gap, factor in zip(GAPS_MS, factors, strict=True)]
    folder = record(tmp_path / "run", cell("none", 0, 1), cell("ngram", 3, 1, gaps=fast_gaps))

    def drawn(resample: int, nth: int) -> int:
        digest = hashlib.md5(f"{resample}:{nth}".encode()).digest()
        return int(int.from_bytes(digest[8:16], "little") / 2**64 * len(GAPS_MS))

    ratios = []
    for resample in range(1000):
        draw = [drawn(resample, nth) for nth in range(len(GAPS_MS))]
        ratios.append(statistics.median(GAPS_MS[n] for n in draw) / statistics.median(fast_gaps[n] for n in draw))
    cuts = statistics.quantiles(ratios, n=40, method="inclusive")

    found = ask(folder, "SELECT ci_low, ci_high FROM speedups WHERE category = 'all' AND metric = 'tpot'")[0]
    assert found == (pytest.approx(cuts[0]), pytest.approx(cuts[-1]))


def test_only_prompts_that_both_cells_answered_are_compared(tmp_path: Path) -> None:
    base, fast = cell("none", 0, 1), cell("ngram", 3, 2)
    lost = create_request(fast.cell, 0, gaps_ms=(100, 500, 500), error="the stream broke")
    folder = record(tmp_path / "run", base, CellResult(fast.cell, [lost, *fast.requests[1:]]))

    found = ask(folder, "SELECT ratio, n_prompts FROM speedups WHERE category = 'all' AND metric = 'tpot'")

    assert found == [(pytest.approx(2.0), 7)]


@pytest.mark.parametrize(
    "baseline",
    [
        pytest.param(cell("none", 0, 1, repeat=1), id="of another repeat"),
        pytest.param(CellResult(create_row(create_cell(), status="failed")), id="that failed"),
        pytest.param(CellResult(create_row(create_cell(concurrency=2))), id="at another load"),
    ],
)
def test_a_baseline_is_no_pair(tmp_path: Path, baseline: CellResult) -> None:
    folder = record(tmp_path / "run", baseline, cell("ngram", 3, 2))

    assert ask(folder, "FROM speedups") == []


def test_cells_of_two_runs_are_never_paired(tmp_path: Path) -> None:
    record(tmp_path / "a", cell("none", 0, 1))
    record(tmp_path / "b", cell("ngram", 3, 2))

    with open_runs([tmp_path / "*"]) as runs:
        assert runs.execute("SELECT run, method FROM cells ORDER BY run").fetchall() == [("a", "none"), ("b", "ngram")]
        assert runs.execute("FROM speedups").fetchall() == []


def test_a_draft_is_judged_over_all_its_repeats(tmp_path: Path) -> None:
    folder = record(
        tmp_path / "run",
        cell("none", 0, 1),
        cell("none", 0, 1, repeat=1),
        cell("ngram", 3, 2),
        cell("ngram", 3, 4, repeat=1),
    )

    found = ask(
        folder,
        "SELECT draft, concurrency, ratio, n_prompts, n_repeats, ratio_min, ratio_max, significant FROM draft_speedups "
        "WHERE category = 'all' AND metric = 'tpot'",
    )

    # a prompt's mean over the repeats: gap against (gap / 2 + gap / 4) / 2
    assert found == [
        ("ngram k=3", 1, pytest.approx(1 / 0.375), 8, 2, pytest.approx(2), pytest.approx(4), True),
    ]


def test_the_projected_speed_up_is_t_ar_times_al_over_t_sd(tmp_path: Path) -> None:
    fast = cell("ngram", 3, 0.8, tokens=(1, 3, 3), drafted=(0, 3, 3), accepted=(0, 2, 2), first_step_is_prefill=True)
    folder = record(tmp_path / "run", cell("none", 0, 1), fast)

    found = ask(folder, "SELECT t_ar_ms, t_sd_ms, al, projected FROM projections WHERE category = 'all'")

    assert found == [(pytest.approx(23.5), pytest.approx(23.5 / 0.8), 3.0, pytest.approx(2.4))]


# -------------------------------------------------------------------------------------------------------------- lossless


def test_lossless_is_the_share_of_answers_that_equal_the_baselines(tmp_path: Path) -> None:
    base, fast = cell("none", 0, 1), cell("ngram", 3, 2)
    other = [create_request(fast.cell, n, output_ids=[0, 1, 9] if n < 2 else [0, 1, 2]) for n in range(8)]
    folder = record(tmp_path / "run", base, CellResult(fast.cell, other))

    assert ask(folder, "SELECT lossless FROM cells WHERE method = 'ngram'") == [(0.75,)]
    assert ask(folder, "SELECT question_id, first_difference FROM divergences WHERE NOT is_identical ORDER BY ALL") == [
        ("q0", 2),
        ("q1", 2),
    ]


@pytest.mark.parametrize(
    ("answer", "first_difference"),
    [
        pytest.param([5, 1, 2], 0, id="at once"),
        pytest.param([0, 1], 2, id="where the shorter one ends"),
        pytest.param([0, 1, 2, 3], 3, id="where the reference ends"),
    ],
)
def test_the_first_difference_counts_from_zero(tmp_path: Path, answer: list[int], first_difference: int) -> None:
    base, fast = create_row(create_cell()), create_row(create_cell("ngram", 3))
    folder = record(
        tmp_path / "run",
        CellResult(base, [create_request(base, output_ids=[0, 1, 2])]),
        CellResult(fast, [create_request(fast, output_ids=answer)]),
    )

    assert ask(folder, "SELECT is_identical, first_difference, same_prompt FROM divergences") == [
        (False, first_difference, True)
    ]


def test_the_baseline_stands_beside_its_own_other_repeat(tmp_path: Path) -> None:
    first, second = cell("none", 0, 1), cell("none", 0, 1, repeat=1)
    changed = [create_request(second.cell, n, output_ids=[n]) for n in range(4)] + list(second.requests[4:])
    folder = record(tmp_path / "run", first, CellResult(second.cell, changed), cell("ngram", 3, 2))

    assert ask(folder, "SELECT method, repeat, lossless FROM cells ORDER BY ALL") == [
        ("ngram", 0, 1.0),
        ("none", 0, 0.5),
        ("none", 1, 0.5),
    ]
    assert ask(folder, "SELECT draft, lossless, baseline_lossless FROM drafts ORDER BY draft") == [
        ("ngram k=3", 1.0, 0.5),
        ("none", 0.5, 0.5),
    ]


def test_sampled_answers_are_not_held_against_anything(tmp_path: Path) -> None:
    rows = [create_row(create_cell(method, k, temperature=1.0)) for method, k in (("none", 0), ("ngram", 3))]
    folder = record(tmp_path / "run", *(CellResult(row, [create_request(row)]) for row in rows))

    assert ask(folder, "SELECT lossless FROM cells") == [(None,), (None,)]


def test_hashes_are_compared_where_the_engine_tells_no_token_ids(tmp_path: Path) -> None:
    rows = [create_row(create_cell(method, k)) for method, k in (("none", 0), ("ngram", 3))]
    folder = record(
        tmp_path / "run",
        *(
            CellResult(
                row, [create_request(row, n, output_ids=[], output_hash=f"{row.cell_id if n else 'same'}") for n in range(4)]
            )
            for row in rows
        ),
    )

    assert ask(folder, "SELECT lossless FROM cells WHERE method = 'ngram'") == [(0.25,)]
