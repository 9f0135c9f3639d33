"""The answers: worth it or not, where, why, what to do; against grids whose every ratio can be worked out by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recorded import create_request, create_row, create_session, record
from recorded_grid import ask, baseline, fast, pair, point

from jobs.spec import Draft
from storage.report.findings import find
from storage.report.verdict import verdicts
from storage.rows import CellResult

FALLING = {1: 25.0, 2: 30.0, 4: 50.0, 8: 80.0}
"""concurrency → step in ms: speed-ups 1.6, 1.33, 0.8 and 0.5."""


def by_concurrency(steps: dict[int, float], **changes: Any) -> list[CellResult]:
    changes = {"first_ms": 10.0, **changes}
    return [
        row
        for slots, step_ms in steps.items()
        for row in pair(point("ngram", batch=8, concurrency=slots), step_ms, **changes)
    ]


def verdict(folder: Path, columns: str, metric: str = "user_tps") -> Any:
    rows = ask(folder, f"SELECT {columns} FROM verdicts WHERE metric = '{metric}'")
    assert len(rows) == 1
    return rows[0]


# --------------------------------------------------------------------------------------------------------------- answers


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        pytest.param(
            by_concurrency({1: 25.0, 2: 32.0}), ("yes", "concurrency 1 to 2", "", 2, 2, 0, 0), id="it pays at every load"
        ),
        pytest.param(
            by_concurrency({1: 50.0, 2: 80.0}), ("no", "", "concurrency 1 to 2", 2, 0, 2, 0), id="it costs at every load"
        ),
        pytest.param(
            by_concurrency(FALLING), ("depends", "concurrency 1 to 2", "concurrency 4 to 8", 4, 2, 2, 0), id="it depends"
        ),
        pytest.param(
            by_concurrency({1: 25.0}, n=5), ("no", "", "concurrency 1", 1, 0, 0, 0), id="five prompts prove nothing"
        ),
        pytest.param(
            by_concurrency({1: 25.0}, caches_reset=False), ("unknown", "", "", 0, 0, 0, 1), id="nothing valid to go by"
        ),
        pytest.param(
            [*by_concurrency({1: 25.0}), *by_concurrency({2: 80.0}, caches_reset=False)],
            ("yes", "concurrency 1", "", 1, 1, 0, 1),
            id="what is invalid does not speak, and is counted",
        ),
        pytest.param(
            by_concurrency({1: 25.0, 2: 80.0, 4: 25.0}),
            ("depends", "concurrency 1, concurrency 4", "concurrency 2", 3, 2, 1, 0),
            id="loads are no range where one between them does not pay",
        ),
    ],
)
def test_a_question_is_answered_with_where(tmp_path: Path, rows: list[CellResult], expected: Any) -> None:
    columns = "answer, where_it_pays, where_it_does_not, n_places, n_paying, n_costing, n_invalid"

    assert verdict(record(tmp_path / "run", *rows), columns) == expected


def test_the_best_draft_is_named_with_its_numbers_why_and_what_to_do(tmp_path: Path) -> None:
    folder = record(tmp_path / "run", *by_concurrency(FALLING))

    columns = "best_draft, best_method, best_k, best_ratio, best_at, n_prompts, causes, categories_that_pay, why, what_to_do"
    draft, method, k, ratio, at, n_prompts, causes, pays, why, advice = verdict(folder, columns)

    assert (draft, method, k, ratio, at, n_prompts) == ("ngram k=3", "ngram", 3, pytest.approx(1.6), "concurrency 1", 8)
    assert causes == ["batch_too_large", "low_acceptance"]  # a step from 25 to 50 ms; 1 of 3 accepted
    assert pays == []  # four prompts of a category prove nothing
    assert why.startswith("a step brings 2.00 tokens (AL) and takes as long as ")
    assert "verifying is no longer free; the target accepts less than 40 %" in why
    assert advice.startswith("Use ngram k=3 (draft.method=ngram, draft.k=3) at concurrency 1 to 2; serve the rest without")
    assert "Best by load: concurrency 1: ngram k=3; concurrency 2: ngram k=3; concurrency 4: none" in advice


def test_a_draft_is_named_where_it_pays_itself_and_not_where_another_does(tmp_path: Path) -> None:
    steps = {1: {1: 44.0, 3: 25.0}, 2: {1: 44.0, 3: 30.0}, 4: {1: 32.0, 3: 80.0}, 8: {1: 80.0, 3: 90.0}}
    rows = []
    for slots, by_length in steps.items():
        cells = {k: point("ngram", k, concurrency=slots) for k in by_length}
        rows += [baseline(cells[1]), *(fast(cells[k], step_ms) for k, step_ms in by_length.items())]
    where, advice = verdict(record(tmp_path / "run", *rows), "where_it_pays, what_to_do")
    assert where == "concurrency 1 to 4"
    assert advice == (
        "Use ngram k=3 (draft.method=ngram, draft.k=3) at concurrency 1; concurrency 2; elsewhere another draft, or none. "
        "Best by load: concurrency 1: ngram k=3; concurrency 2: ngram k=3; concurrency 4: ngram k=1; concurrency 8: none."
    )


def test_the_best_is_told_of_a_place_where_it_pays_not_of_a_higher_one_within_noise(tmp_path: Path) -> None:
    sure, noisy = (point("ngram", concurrency=slots) for slots in (8, 1))
    rows = [*pair(sure, 32.0), baseline(noisy), fast(noisy, 25.0, spread=(0.5, 2.4) * 4)]
    folder = record(tmp_path / "run", *rows)
    gains = ask(
        folder,
        "SELECT concurrency, ratio > 1.4, verdict FROM causes ORDER BY ALL",
    )
    assert gains == [(1, True, "not significant"), (8, False, "faster")]
    assert verdict(folder, "answer, best_at, best_ratio") == ("depends", "concurrency 8", pytest.approx(1.25))


def test_a_load_that_arrives_by_itself_has_no_concurrency(tmp_path: Path) -> None:
    folder = record(tmp_path / "run", *pair(point("ngram", kind="poisson", rate=5.0), 25.0))
    assert ask(folder, "SELECT DISTINCT load, concurrency FROM cells") == [("poisson 5/s", None)]
    items = ask(folder, "SELECT answer, speaks_for, evidence FROM checklist WHERE nr IN (4, 5)")
    assert items == [("unknown", None, None)] * 2


def test_throughput_is_a_question_of_its_own(tmp_path: Path) -> None:
    cell = point("ngram")
    folder = record(tmp_path / "run", baseline(cell, duration_ms=400.0), fast(cell, 25.0, duration_ms=800.0))

    assert verdict(folder, "answer, best_ratio", "user_tps") == ("yes", pytest.approx(1.6))
    assert verdict(folder, "answer, best_ratio", "output_tps") == ("no", pytest.approx(0.5))


def test_prompt_lengths_are_places_too(tmp_path: Path) -> None:
    rows = [row for tokens, step_ms in ((1000, 25.0), (8000, 80.0)) for row in pair(point("ngram", isl=tokens), step_ms)]
    folder = record(tmp_path / "run", *rows)

    assert verdict(folder, "answer, where_it_pays, where_it_does_not") == (
        "depends",
        "concurrency 1, 1000 input tokens",
        "concurrency 1, 8000 input tokens",
    )


# ---------------------------------------------------------------------------------------------------------------- causes


@pytest.mark.parametrize(
    ("first_ms", "step_ms", "expected"),
    [
        pytest.param(10.0, 25.0, ["low_acceptance"], id="one of three is accepted"),
        pytest.param(10.0, 31.0, ["low_acceptance", "step_too_dear"], id="a step of 1.55 times one without"),
        pytest.param(100.0, 25.0, ["low_acceptance", "prefill_bound"], id="100 of 180 ms before the first token"),
    ],
)
def test_causes_are_found_in_the_numbers(tmp_path: Path, first_ms: float, step_ms: float, expected: list[str]) -> None:
    folder = record(tmp_path / "run", *pair(point("ngram"), step_ms, first_ms=first_ms))

    assert ask(folder, "SELECT causes FROM causes") == [(expected,)]


@pytest.mark.parametrize(
    ("load", "batch", "is_told"),
    [
        pytest.param({"concurrency": 4}, 1, False, id="four at once, one is served"),
        pytest.param({"concurrency": 4}, 4, True, id="four at once, all are served"),
        pytest.param({"kind": "poisson", "rate": 8.0}, 1, False, id="8 a second of 580 ms, one is served"),
        pytest.param({"kind": "poisson", "rate": 8.0}, 8, True, id="8 a second of 580 ms, eight are served"),
    ],
)
def test_who_waits_for_a_slot_is_not_in_his_prefill(tmp_path: Path, load: dict[str, Any], batch: int, is_told: bool) -> None:
    folder = record(tmp_path / "run", *pair(point("ngram", batch=batch, **load), 25.0, first_ms=500.0))

    assert ask(folder, "SELECT prefill_share IS NOT NULL, list_contains(causes, 'prefill_bound') FROM causes") == [
        (is_told, is_told)
    ]


def test_an_engine_that_serves_one_at_a_time_has_no_batch_that_is_too_large(tmp_path: Path) -> None:
    rows = [
        row for slots, step_ms in FALLING.items() for row in pair(point("ngram", concurrency=slots), step_ms, first_ms=10.0)
    ]

    assert ask(record(tmp_path / "run", *rows), "SELECT DISTINCT step_growth FROM causes") == [(None,)]


def test_a_draft_is_too_dear_where_drafting_takes_longer_than_verifying(tmp_path: Path) -> None:
    free, dear = point("ngram"), point("draft_model")
    folder = record(tmp_path / "run", *pair(free, 25.0, first_ms=10.0), fast(dear, 60.0, first_ms=10.0))
    sql = "SELECT draft_overhead_ms, verify_overhead_ms, al_break_even, split_by FROM causes ORDER BY method DESC"

    assert ask(folder, sql) == [
        (0.0, 5.0, 1.25, "ngram k=3"),
        (35.0, 5.0, 3.0, "ngram k=3"),  # 40 ms more than 20, of which the n-grams say 5
    ]
    assert ask(folder, "SELECT causes FROM causes WHERE method = 'draft_model'") == [(["low_acceptance", "draft_too_dear"],)]


def test_memory_that_a_draft_takes_is_a_cause(tmp_path: Path) -> None:
    base, quick = pair(point("ngram"), 25.0, first_ms=10.0)
    sessions = [
        create_session(
            row.cell, deployment_json=json.dumps(json.loads(row.cell.cell_json)["deployment"]), kv_capacity_tokens=tokens
        )
        for row, tokens in ((base, 1000), (quick, 800))
    ]
    folder = record(tmp_path / "run", *sessions, base, quick)

    assert ask(folder, "SELECT kv_lost_share, causes FROM causes") == [(0.2, ["low_acceptance", "memory"])]


def test_every_cause_has_a_meaning_and_a_remedy(tmp_path: Path) -> None:
    folder = record(tmp_path / "run", *pair(point("ngram"), 25.0))
    told = ask(folder, "SELECT cause, meaning <> '' AND remedy <> '' FROM advice ORDER BY cause")

    names = ("batch_too_large", "draft_too_dear", "low_acceptance", "memory", "prefill_bound", "step_too_dear")
    assert told == [(name, True) for name in names]


def test_a_reason_stands_beside_its_rule_with_the_limit_and_the_remedy(tmp_path: Path) -> None:
    folder = record(tmp_path / "run", baseline(point(), client_cpu_share=0.9), baseline(point(concurrency=2)))

    assert ask(folder, "SELECT draft, reason, rule, remedy FROM cell_verdicts") == [
        (
            "none",
            "client_saturated",
            "the load client uses at most 80 % of a core",
            "lower load.concurrency or the rate, or use a faster node",
        )
    ]


def test_the_checklist_of_practice_is_answered_from_data(tmp_path: Path) -> None:
    folder = record(tmp_path / "run", *by_concurrency(FALLING))

    assert ask(folder, "SELECT nr, answer, speaks_for, evidence FROM checklist ORDER BY nr") == [
        (1, "no", False, "at best 33 % of drafted tokens are accepted, by ngram k=3; predictable is 50 %"),
        (2, "no", True, "temperature 0"),
        (3, "unknown", None, None),
        (4, "no", True, "at most 8 at once were measured; 32 is high"),
        (5, "yes", True, "at concurrency 1, the best draft, ngram k=3, is 1.60 times as fast"),
        (6, "no", True, "up to 11 % of a request's time is before its first token, at concurrency 1"),
    ]


def test_too_few_prompts_are_told_as_that_and_not_as_a_loss(tmp_path: Path) -> None:
    folder = record(tmp_path / "run", *by_concurrency({1: 25.0}, n=5))

    why, what_to_do = verdict(folder, "why, what_to_do")
    assert why.startswith("5 prompts do not tell a gain from none: 1.60 to 1.60 times as fast are both possible")
    assert what_to_do.startswith("Measure more prompts (workload.limit) before you decide; until then leave speculation off")
    assert ask(folder, "SELECT speaks_for, evidence FROM checklist WHERE nr = 5") == [
        (None, "at concurrency 1, the best draft, ngram k=3, is 1.60 times as fast, which is within noise")
    ]


def test_the_target_as_its_own_draft_says_nothing_of_the_text(tmp_path: Path) -> None:
    own = point().with_draft(Draft(method="draft_model", k=3, model=point().deployment.model.path))
    folder = record(tmp_path / "run", *pair(own, 25.0))

    assert ask(folder, "SELECT answer, speaks_for FROM checklist WHERE nr = 1") == [("unknown", None)]


# ----------------------------------------------------------------------------------------------------------- projections

PUBLISHED = {  # drafter, entropy: (AL, t_ar ms, t_sd ms, measured, projected) at 1k, 2k, 8k [SPEED-Bench, Table 10]
    "EAGLE3 high": [(2.12, 19.6, 25.9, 1.63, 1.61), (1.86, 20.4, 27.5, 1.39, 1.38), (1.17, 25.2, 34.1, 0.85, 0.86)],
    "EAGLE3 low": [(2.93, 19.6, 25.9, 2.23, 2.22), (2.59, 20.4, 27.5, 1.91, 1.92), (1.19, 25.2, 34.1, 0.87, 0.88)],
    "vanilla high": [(2.47, 19.7, 35.3, 1.37, 1.38), (2.49, 20.4, 38.6, 1.31, 1.32), (2.60, 25.2, 59.9, 1.09, 1.09)],
    "vanilla low": [(3.12, 19.7, 35.3, 1.74, 1.74), (3.16, 20.4, 38.6, 1.67, 1.67), (3.21, 25.2, 59.9, 1.36, 1.35)],
}
VECTORS = [vector for vectors in PUBLISHED.values() for vector in vectors]


def published(nth: int, al: float, t_ar_ms: float, t_sd_ms: float) -> list[CellResult]:
    """A pair of cells with these numbers: 100 steps, of which as many accept one token more as the AL needs."""
    cell = point("ngram", repeat=nth)
    n_tokens = round(100 * al)
    accepted = [n_tokens // 100 - 1 + (step < n_tokens % 100) for step in range(100)]
    base = create_row(cell.with_draft(type(cell.deployment.draft)()))
    quick = create_row(cell)
    plain = create_request(base, gaps_ms=(100.0, *(t_ar_ms,) * n_tokens))
    drafted = create_request(
        quick,
        gaps_ms=(100.0, *(t_sd_ms,) * 100),
        tokens=(1, *(n + 1 for n in accepted)),
        drafted=(0, *(3,) * 100),
        accepted=(0, *accepted),
        first_step_is_prefill=True,
    )
    return [CellResult(base, [plain]), CellResult(quick, [drafted])]


def test_the_twelve_published_projections_are_found(tmp_path: Path) -> None:
    """S = t_ar · AL / t_sd, to the hundredth in which it is published."""
    rows = [row for nth, (al, t_ar_ms, t_sd_ms, *_) in enumerate(VECTORS) for row in published(nth, al, t_ar_ms, t_sd_ms)]
    folder = record(tmp_path / "run", *rows)
    sql = (
        "SELECT projections.al, t_ar_ms, t_sd_ms, projected, projection_error, al_break_even FROM projections "
        "JOIN (SELECT cell_id, repeat FROM cells) USING (cell_id) WHERE category = 'all' ORDER BY repeat"
    )
    found = ask(folder, sql)

    assert [row[:3] for row in found] == [pytest.approx(vector[:3]) for vector in VECTORS]
    for (*_, projected, error, break_even), (_, t_ar_ms, t_sd_ms, measured, told) in zip(found, VECTORS, strict=True):
        assert projected == pytest.approx(told, abs=0.0151)
        assert projected == pytest.approx(measured, abs=0.03)  # the tenth shape: what is projected is what is measured
        assert error == pytest.approx(0, abs=1e-6)  # these rows take exactly as long as their steps
        assert break_even == pytest.approx(t_sd_ms / t_ar_ms)


def test_shorter_drafts_are_projected_from_acceptance_by_position(tmp_path: Path) -> None:
    folder = record(tmp_path / "run", *pair(point("ngram"), 32.0))
    sql = "SELECT k_projected, al, t_sd_ms, projected FROM projected_lengths ORDER BY k_projected"

    # the first is always accepted, the second never: only the first is worth its time, a third of 12 ms
    assert ask(folder, sql) == [
        (1, 2.0, pytest.approx(24.0), pytest.approx(20 * 2 / 24)),
        (2, 2.0, pytest.approx(28.0), pytest.approx(20 * 2 / 28)),
        (3, 2.0, pytest.approx(32.0), pytest.approx(1.25)),
    ]


# ---------------------------------------------------------------------------------------------------------------- shapes


def shapes(folder: Path, name: str) -> list[Any]:
    return ask(folder, f"SELECT subject, round(found, 6), holds FROM shape_checks WHERE name = '{name}' ORDER BY subject")


def stepping(cell: Any, *accepted: int) -> CellResult:
    """A cell of three answers whose steps accept as many tokens as said."""
    row = create_row(cell)
    k = cell.deployment.draft.k
    steps = {"drafted": (k,) * len(accepted), "accepted": accepted, "tokens": tuple(n + 1 for n in accepted)}
    return CellResult(row, [create_request(row, n, gaps_ms=(10.0,) * len(accepted), **steps) for n in range(3)])


@pytest.mark.parametrize(
    ("name", "rows", "expected"),
    [
        pytest.param(
            "AL grows with k",
            [stepping(point("ngram", 1), 1, 0), stepping(point("ngram", 2), 0, 0)],
            [("ngram k=2, concurrency 1, from k=1", -0.5, False)],
            id="3: AL falls with k",
        ),
        pytest.param(
            "AL grows less with each further token",
            [stepping(point("ngram", n), *steps) for n, steps in ((1, (1, 0)), (2, (1, 1)), (3, (3, 3)))],
            [("ngram k=3, concurrency 1, from k=1", 1.5, False)],
            id="3: AL grows by 0.5, then by 2",
        ),
        pytest.param(
            "AL is higher for lower entropy",
            [
                stepping(point("ngram", 3, isl=50, entropy="low"), 3, 2),
                stepping(point("ngram", 3, isl=50, entropy="mixed"), 0, 0),
                stepping(point("ngram", 3, isl=50, entropy="high"), 1, 0),
            ],
            [
                ("ngram k=3, concurrency 1, 50 input tokens, low and high", 2.0, True),
                ("ngram k=3, concurrency 1, 50 input tokens, low and mixed", 2.5, True),
                ("ngram k=3, concurrency 1, 50 input tokens, mixed and high", -0.5, False),
            ],
            id="2: copying is easier to foresee, and a mixture is not",
        ),
        pytest.param(
            "at equal AL, speed-ups differ as step times do",
            [*pair(point("ngram"), 25.0), fast(point("suffix"), 32.0)],
            [("ngram k=3 and suffix k=3, concurrency 1", 0.0, True)],
            id="4: both accept 1 of 3, 1.6 and 1.25 times as fast: as 32 is to 25",
        ),
        pytest.param(
            "n-grams lose at large batches",
            pair(point("ngram", batch=32, concurrency=32), 25.0, n=32),
            [("ngram k=3, concurrency 32", 1.6, False)],
            id="5: n-grams pay at batch 32",
        ),
        pytest.param(
            "hot AL is at most the greedy one",
            [stepping(point("ngram", 3), 1, 1), stepping(point("ngram", 3, temperature=1.0), 2, 2)],
            [("ngram k=3, concurrency 1, temperature 1.0", 1.0, False)],
            id="6: hot sampling is easier to foresee",
        ),
        pytest.param(
            "greedy AL does not depend on the load",
            [stepping(point("ngram", 3, concurrency=1), 1, 1), stepping(point("ngram", 3, concurrency=2), 1, 2)],
            [("ngram k=3", 0.25, False)],
            id="8: AL grows with the load",
        ),
    ],
)
def test_results_that_look_odd_are_told(tmp_path: Path, name: str, rows: list[CellResult], expected: Any) -> None:
    assert shapes(record(tmp_path / "run", *rows), name) == expected


def test_the_best_k_must_not_grow_with_the_load(tmp_path: Path) -> None:
    rows = []
    for slots, short_ms, long_ms in ((1, 25.0, 32.0), (8, 32.0, 25.0)):
        short, long = (point("ngram", k, concurrency=slots) for k in (1, 3))
        rows += [*pair(short, short_ms), fast(long, long_ms)]
    folder = record(tmp_path / "run", *rows)

    assert shapes(folder, "the best k does not grow with the load") == [("small on transformers, ngram", 2.0, False)]


def test_the_histogram_has_every_step_and_its_tokens(tmp_path: Path) -> None:
    folder = record(tmp_path / "run", *pair(point("ngram"), 25.0))

    assert shapes(folder, "the histogram has every step, and its tokens") == [
        ("ngram k=3, concurrency 1, repeat 0", 0.0, True)
    ]
    assert ask(folder, "SELECT length, n_steps, share FROM step_lengths WHERE category = 'all' ORDER BY length") == [
        (1, 0, 0.0),
        (2, 16, 1.0),
        (3, 0, 0.0),
        (4, 0, 0.0),
    ]


# ---------------------------------------------------------------------------------------------------- acceptance by slices


def test_al_is_told_by_turn_place_and_part_with_its_spread(tmp_path: Path) -> None:
    row = create_row(point("ngram"))
    requests = [
        create_request(
            row, 0, turn=0, drafted=(0, 3, 3), accepted=(0, 3, 1), first_step_is_prefill=True, n_thinking_tokens=5
        ),
        create_request(row, 0, turn=1, drafted=(3, 3), accepted=(0, 0), category="math"),
        create_request(row, 1, drafted=(3,) * 126, accepted=(3,) * 126),  # 504 tokens: the last step begins at 500
    ]
    folder = record(tmp_path / "run", CellResult(row, requests))
    sql = "SELECT slice, n_requests, n_steps, al FROM acceptance_lengths WHERE kind = '{}' ORDER BY first, slice"

    assert ask(folder, sql.format("turn")) == [("0", 2, 128, (504 + 4 + 2) / 128), ("1", 1, 2, 1.0)]
    assert ask(folder, sql.format("output_position")) == [("0-499", 3, 129, (500 + 4 + 2 + 2) / 129), ("500-999", 1, 1, 4.0)]
    assert ask(folder, sql.format("part")) == [("thinking", 1, 1, 4.0), ("answer", 1, 1, 2.0)]  # from tokens 1 and 5
    assert ask(folder, sql.format("category")) == [("coding", 2, 128, 510 / 128), ("math", 1, 2, 1.0)]
    (row_of_all,) = ask(
        folder, "SELECT al_request_mean, al_request_sd, al_sd, al_untrimmed FROM acceptance_lengths WHERE kind = 'all'"
    )
    lengths = [4] * 127 + [2, 1, 1]
    mean = sum(lengths) / 130
    assert row_of_all == pytest.approx(
        (
            (3 + 1 + 4) / 3,
            (((3 - 8 / 3) ** 2 + (1 - 8 / 3) ** 2 + (4 - 8 / 3) ** 2) / 2) ** 0.5,
            (sum((length - mean) ** 2 for length in lengths) / 130) ** 0.5,
            (sum(lengths) + 1) / 131,
        )
    )


def test_acceptance_by_position_is_told_by_category_with_no_position_skipped(tmp_path: Path) -> None:
    row = create_row(point("ngram"))
    requests = [
        create_request(row, 0, drafted=(3, 3), accepted=(1, 0)),
        create_request(row, 1, drafted=(3, 3), accepted=(3, 1), category="math"),
    ]
    folder = record(tmp_path / "run", CellResult(row, requests))
    sql = "SELECT category, position, n_reached, ar_conditional, ar_joint FROM category_acceptance ORDER BY ALL"

    assert ask(folder, sql) == [
        ("coding", 1, 2, 0.5, 0.5),
        ("coding", 2, 1, 0.0, 0.0),
        ("coding", 3, 0, None, 0.0),
        ("math", 1, 2, 1.0, 1.0),
        ("math", 2, 2, 0.5, 0.5),
        ("math", 3, 1, 1.0, 0.5),
    ]


# ---------------------------------------------------------------------------------------------------------------- report


def test_a_report_begins_with_how_far_an_unfinished_run_is_and_ends_with_what_is_not_comparable(tmp_path: Path) -> None:
    base, quick = pair(point("ngram"), 25.0)
    sessions = [create_session(row.cell, engine_version=told) for row, told in ((base, "5.0"), (quick, "5.1"))]
    folder = record(tmp_path / "run", *sessions, base, quick, sweep="invocation:\n  n_cells: 8\n")

    first, *_, last = verdicts(find([folder]))

    assert first == "**So far: 2 of 8 cells** of run are measured; what follows is of those."
    assert last == "**Not comparable** (run): 1 cell and its baseline differ in engine version: 5.1 against 5.0."


@pytest.mark.parametrize(
    ("counters", "expected"),
    [
        pytest.param(
            {"drafts": 16, "draft_tokens": 48, "accepted_tokens": 16, "output_tokens": 40},
            (2.0, 0.8, ["low_acceptance", "step_too_dear"], 1 / 3),
            id="all of them",
        ),
        pytest.param(
            {"accepted_tokens": 16, "output_tokens": 40}, (2.0, 0.8, ["step_too_dear"], None), id="what it accepted only"
        ),
    ],
)
def test_an_engine_that_tells_counters_and_no_steps_is_judged_as_well(
    tmp_path: Path, counters: dict[str, float], expected: Any
) -> None:
    base, quick = pair(point("ngram"), 50.0, first_ms=10.0)
    silent = [replace(request, step_drafted=(), step_accepted=()) for request in quick.requests]
    cell = replace(quick.cell, counters_before=dict.fromkeys(counters, 0), counters_after=counters)
    folder = record(tmp_path, base, CellResult(cell, silent))

    (told,) = ask(folder, "SELECT al, projected, causes, draft_efficiency FROM causes")
    assert told == expected
    (why,) = ask(folder, "SELECT why FROM verdicts WHERE metric = 'user_tps'")
    assert "a step brings 2.00 tokens (AL) and takes as long as 2.50 without a draft" in why[0]
