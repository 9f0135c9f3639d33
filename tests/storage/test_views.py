"""Every formula of `views.sql`, against numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import recorded
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import MS, create_cell, create_request, create_row, create_session, record

from jobs.spec import Load
from storage.rows import CellResult, SessionRow

Result = CellResult | SessionRow


def ask(folder: Path, sql: str) -> list[Any]:
    """The rows of an answer; bare values where there is one column."""
    return [row[0] if len(row) == 1 else row for row in recorded.ask(folder, sql)]


def measured(folder: Path, sql: str, *results: Result) -> list[Any]:
    return ask(record(folder / "run", *results), sql)


def one_cell(row=None, *requests, **changes) -> CellResult:
    row = row or create_row(create_cell("ngram", 3), **changes)
    return CellResult(row, requests)


# ------------------------------------------------------------------------------------------------------------- latencies


@pytest.mark.parametrize(
    ("kind", "ttft_ms", "e2e_ms"),
    [
        pytest.param("closed", 100.0, 130.0, id="closed loop: from the send"),
        pytest.param("poisson", 107.0, 137.0, id="open loop: from the schedule, so that queueing counts"),
    ],
)
def test_ttft_and_e2e_count_from_the_same_origin(tmp_path: Path, kind: str, ttft_ms: float, e2e_ms: float) -> None:
    row = create_row(create_cell(kind=kind))
    request = create_request(row, sent_ms=50, late_ms=7, gaps_ms=(100, 10, 20))

    assert measured(tmp_path, "SELECT ttft_ms, e2e_ms FROM requests", CellResult(row, [request])) == [(ttft_ms, e2e_ms)]


def test_tpot_and_user_tps_leave_the_first_chunk_out_of_both_time_and_tokens(tmp_path: Path) -> None:
    row = create_row(create_cell("ngram", 3))
    request = create_request(row, gaps_ms=(100, 10, 30), tokens=(3, 4, 1))  # 5 tokens in 40 ms

    assert measured(tmp_path, "SELECT tpot_ms, user_tps FROM requests", CellResult(row, [request])) == [(8.0, 125.0)]


def test_a_request_with_one_chunk_has_no_user_tps_and_no_tpot(tmp_path: Path) -> None:
    row = create_row(create_cell())
    sql = "SELECT tpot_ms, user_tps, ttft_ms FROM requests"

    assert measured(tmp_path, sql, CellResult(row, [create_request(row, gaps_ms=(100,), tokens=(5,))])) == [
        (None, None, 100.0)
    ]


def test_a_failed_request_is_counted_and_has_no_metrics(tmp_path: Path) -> None:
    row = create_row(create_cell())
    requests = [
        create_request(row, 0),
        create_request(row, 1, error="the stream broke"),
        create_request(row, 2, gaps_ms=(), error="refused"),
    ]
    sql = "SELECT n_requests, n_failed, n_output_tokens, ttft_ms_p50, output_tps FROM cells"

    assert measured(tmp_path, sql, CellResult(row, requests)) == [(3, 2, 3, 100.0, 3.0)]


def test_percentiles_are_exact_and_interpolated(tmp_path: Path) -> None:
    row = create_row(create_cell())
    requests = [create_request(row, n, gaps_ms=(n * 10, 10, 10)) for n in range(1, 6)]
    sql = "SELECT ttft_ms_p50, ttft_ms_p90, round(ttft_ms_p99, 6) FROM cells"

    assert measured(tmp_path, sql, CellResult(row, requests)) == [(30.0, 46.0, 49.6)]


def test_itl_is_told_both_ways_and_the_first_chunk_has_none(tmp_path: Path) -> None:
    row = create_row(create_cell("ngram", 3))
    request = create_request(row, sent_ms=5, gaps_ms=(100, 12), tokens=(1, 4))
    sql = "SELECT chunk, tokens, itl_ms, itl_per_token_ms, gap_ms, t_ms FROM chunks ORDER BY chunk"

    assert measured(tmp_path, sql, CellResult(row, [request])) == [
        (0, 1, None, None, 100.0, 105.0),
        (1, 4, 12.0, 3.0, 12.0, 117.0),
    ]


# ------------------------------------------------------------------------------------------------------------ acceptance


def test_al_leaves_out_the_prefill_and_a_cut_step_and_al_untrimmed_keeps_both(tmp_path: Path) -> None:
    row = create_row(create_cell("ngram", 3))
    request = create_request(
        row, drafted=(0, 3, 3, 3), accepted=(0, 3, 1, 0), first_step_is_prefill=True, last_step_is_cut=True
    )  # counted: 3 and 1 accepted; all lengths: 1, 4, 2, 1
    sql = "SELECT al, al_untrimmed, al_drafted, draft_efficiency, acceptance_source FROM cells"

    assert measured(tmp_path, sql, CellResult(row, [request])) == [(3.0, 2.0, 3.0, 4 / 6, "steps")]


def test_a_step_with_nothing_drafted_counts_in_al_and_not_in_al_drafted(tmp_path: Path) -> None:
    row = create_row(create_cell("ngram", 3))
    request = create_request(row, drafted=(3, 0, 0, 3), accepted=(3, 0, 0, 1))

    assert measured(tmp_path, "SELECT al, al_drafted FROM cells", CellResult(row, [request])) == [(2.0, 3.0)]


def test_the_three_als_differ_where_requests_and_categories_differ_in_size(tmp_path: Path) -> None:
    row = create_row(create_cell("ngram", 3))
    requests = [
        create_request(row, 0, drafted=(3,) * 8, accepted=(3,) * 8, category="coding"),  # 8 steps of 4
        create_request(row, 1, drafted=(3,) * 2, accepted=(0,) * 2, category="coding"),  # 2 steps of 1
        create_request(row, 2, drafted=(3,) * 2, accepted=(1,) * 2, category="math"),  # 2 steps of 2
    ]
    sql = "SELECT al, al_step_weighted, al_request_mean, al_macro FROM cells"

    assert measured(tmp_path, sql, CellResult(row, requests)) == [(38 / 12, 38 / 12, 7 / 3, (3.4 + 2) / 2)]
    assert ask(tmp_path / "run", "SELECT category, al FROM categories ORDER BY category") == [("coding", 3.4), ("math", 2.0)]


def test_the_turns_of_a_conversation_are_one_voice_in_the_request_mean(tmp_path: Path) -> None:
    row = create_row(create_cell("ngram", 3))
    requests = [
        create_request(row, 0, turn=0, drafted=(3,), accepted=(3,)),
        create_request(row, 0, turn=1, drafted=(3,) * 3, accepted=(1,) * 3),  # with turn 0: 10 / 4 steps
        create_request(row, 1, drafted=(3,), accepted=(0,)),
    ]

    assert measured(tmp_path, "SELECT al_request_mean FROM cells", CellResult(row, requests)) == [(2.5 + 1) / 2]


def test_without_speculation_al_is_one(tmp_path: Path) -> None:
    row = create_row(create_cell())
    sql = "SELECT al, al_untrimmed, acceptance_source FROM cells"

    assert measured(tmp_path, sql, CellResult(row, [create_request(row)])) == [(1.0, 1.0, "")]


@pytest.mark.parametrize(
    ("before", "after", "engine_al", "expected"),
    [
        pytest.param(
            {"drafts": 10.0, "accepted_tokens": 5.0},
            {"drafts": 30.0, "accepted_tokens": 35.0},
            None,
            (2.5, "counters"),
            id="counters",
        ),
        pytest.param(
            {}, {"drafts": 20.0, "accepted_tokens": 30.0}, 9.0, (2.5, "counters"), id="counters that began in the cell"
        ),
        pytest.param({}, {}, 1.75, (1.75, "summary"), id="the engine's summaries"),
        pytest.param({"drafts": 50.0}, {"drafts": 2.0}, None, (None, ""), id="counters that started anew say nothing"),
    ],
)
def test_without_steps_al_comes_from_the_next_best_source_and_says_so(
    tmp_path: Path, before, after, engine_al, expected
) -> None:
    row = create_row(create_cell("ngram", 3), counters_before=before, counters_after=after)
    requests = [create_request(row, n, engine_al=engine_al) for n in range(3)]

    assert measured(tmp_path, "SELECT al, acceptance_source FROM cells", CellResult(row, requests)) == [expected]


def test_every_position_is_there_and_one_never_reached_is_null(tmp_path: Path) -> None:
    row = create_row(create_cell("ngram", 4))
    request = create_request(row, drafted=(4, 4, 4, 4), accepted=(0, 1, 2, 2))
    sql = "SELECT position, n_reached, n_accepted, ar_conditional, ar_joint FROM acceptance ORDER BY position"

    assert measured(tmp_path, sql, CellResult(row, [request])) == [
        (1, 4, 3, 0.75, 0.75),
        (2, 3, 2, 2 / 3, 0.5),
        (3, 2, 0, 0.0, 0.0),
        (4, 0, 0, None, 0.0),
    ]


def test_a_position_that_was_never_drafted_is_unknown_not_zero(tmp_path: Path) -> None:
    row = create_row(create_cell("ngram", 3))
    request = create_request(row, drafted=(2, 2), accepted=(2, 2))
    sql = "SELECT n_reached, ar_conditional, ar_joint FROM acceptance ORDER BY position"

    assert measured(tmp_path, sql, CellResult(row, [request])) == [(2, 1.0, 1.0), (2, 1.0, 1.0), (0, None, None)]


def test_acceptance_by_position_comes_from_counters_where_there_are_no_steps(tmp_path: Path) -> None:
    after = {"drafts": 20.0, "accepted_tokens": 21.0, "accepted_at_0": 16.0, "accepted_at_1": 4.0, "accepted_at_2": 1.0}
    row = create_row(create_cell("ngram", 3), counters_after=after)
    sql = "SELECT position, n_reached, n_accepted, ar_conditional, ar_joint, source FROM acceptance ORDER BY position"

    assert measured(tmp_path, sql, CellResult(row, [create_request(row)])) == [
        (1, 20, 16, 0.8, 0.8, "counters"),
        (2, 16, 4, 0.25, 0.2, "counters"),
        (3, 4, 1, 0.25, 0.05, "counters"),
    ]


STEPS = st.integers(1, 8).flatmap(
    lambda k: st.tuples(st.just(k), st.lists(st.lists(st.integers(0, k), min_size=1), min_size=1))
)


@settings(max_examples=5, deadline=None)
@given(cells=st.lists(STEPS, min_size=5, max_size=20))
def test_e_of_l_from_acceptance_is_al_where_every_step_drafts_k(
    tmp_path_factory: pytest.TempPathFactory, cells: list[Any]
) -> None:
    results = []
    for repeat, (k, accepted) in enumerate(cells):
        row = create_row(create_cell("ngram", k, repeat=repeat))
        requests = [
            create_request(row, n, drafted=(k,) * len(steps), accepted=tuple(steps)) for n, steps in enumerate(accepted)
        ]
        results.append(CellResult(row, requests))
    folder = record(tmp_path_factory.mktemp("property") / "run", *results)

    found = ask(
        folder,
        "SELECT k, positions, expected, al FROM cells JOIN "
        "(SELECT cell_id, count(*) AS positions, 1 + sum(ar_joint) AS expected FROM acceptance GROUP BY cell_id) "
        "USING (cell_id) ORDER BY repeat",
    )

    for (k, accepted), (k_found, positions, expected, al) in zip(cells, found, strict=True):
        assert k == k_found == positions
        assert expected == pytest.approx(al)
        assert al == pytest.approx(1 + sum(map(sum, accepted)) / sum(map(len, accepted)))


# ------------------------------------------------------------------------------------------------------------ throughput


def test_output_tps_of_the_whole_cell_is_answered_tokens_over_its_duration(tmp_path: Path) -> None:
    row = create_row(create_cell(), duration_ms=500)

    assert measured(
        tmp_path, "SELECT output_tps FROM cells", CellResult(row, [create_request(row), create_request(row, 1)])
    ) == [12.0]


def test_the_steady_window_has_all_slots_full_and_counts_what_arrives_in_it(tmp_path: Path) -> None:
    row = create_row(create_cell(concurrency=2))
    requests = [
        create_request(row, 0, sent_ms=0, gaps_ms=(100, 100, 100)),  # arrives at 100, 200, 300
        create_request(row, 1, sent_ms=150, gaps_ms=(100, 100, 100)),  # 250, 350, 450; both slots full from 150
        create_request(
            row, 2, sent_ms=301, gaps_ms=(99, 100, 100)
        ),  # 400, 500, 600; the last to begin: the window ends at 450
    ]
    sql = "SELECT steady_s, steady_output_tps FROM cells"

    assert measured(tmp_path, sql, CellResult(row, requests)) == [(0.3, 6 / 0.3)]  # 200 250 300 350 400 450


def test_a_conversation_keeps_its_slot_between_its_turns(tmp_path: Path) -> None:
    row = create_row(create_cell(concurrency=1))
    requests = [create_request(row, 0, turn=0), create_request(row, 0, turn=1, sent_ms=380)]  # 0 .. 120, 380 .. 500

    assert measured(tmp_path, "SELECT steady_s, steady_output_tps FROM cells", CellResult(row, requests)) == [(0.5, 12.0)]


def test_slots_that_were_never_full_have_no_steady_window(tmp_path: Path) -> None:
    row = create_row(create_cell(concurrency=4))

    assert measured(
        tmp_path, "SELECT steady_output_tps FROM cells", CellResult(row, [create_request(row, n) for n in range(3)])
    ) == [None]


# --------------------------------------------------------------------------------------------------------------- verdicts


def reasons(folder: Path, row, requests: Sequence[Any] | None = None, session: dict[str, Any] | None = None) -> list[str]:
    requests = [create_request(row, n) for n in range(3)] if requests is None else requests
    found = measured(
        folder, "SELECT reasons, valid FROM cells", CellResult(row, requests), create_session(row, **(session or {}))
    )
    assert found[0][1] == (found[0][0] == [])
    return found[0][0]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({}, [], id="nothing wrong"),
        pytest.param({"status": "failed", "error": "boom"}, ["failed"], id="failed"),
        pytest.param({"status": "not_measured"}, ["not_measured"], id="not measured"),
        pytest.param(
            {"late_send_ns": [0, 0, 30 * MS]}, ["late_sends"], id="sends late by more than 10 ms and 5 % of the E2E"
        ),
        pytest.param({"late_send_ns": [0, 0, 9 * MS]}, [], id="sends late by less than 10 ms"),
        pytest.param({"caches_reset": False}, ["caches_not_reset"], id="caches kept"),
        pytest.param({"caches_reset": None}, [], id="no caches"),
        pytest.param({"client_cpu_share": 0.95}, ["client_saturated"], id="client saturated"),
        pytest.param({"clock_stepped": True}, ["clock_stepped"], id="clock stepped"),
    ],
)
def test_a_cell_is_invalid_with_its_reason(tmp_path: Path, changes: dict[str, Any], expected: list[str]) -> None:
    assert reasons(tmp_path, create_row(create_cell(), **changes)) == expected


def test_too_few_requests_make_no_valid_cell(tmp_path: Path) -> None:
    row = create_row(create_cell())

    assert reasons(tmp_path, row, [create_request(row, n) for n in range(2)]) == ["too_few_requests"]


def test_fewer_conversations_than_slots_make_no_valid_cell(tmp_path: Path) -> None:
    assert reasons(tmp_path, create_row(create_cell(concurrency=4))) == ["too_few_requests"]


@pytest.mark.parametrize(
    ("answered", "expected"), [pytest.param(99, [], id="1 of 100"), pytest.param(98, ["errors"], id="1 of 99")]
)
def test_more_than_one_request_in_a_hundred_that_failed_is_a_reason(
    tmp_path: Path, answered: int, expected: list[str]
) -> None:
    row = create_row(create_cell())
    requests = [create_request(row, n) for n in range(answered)] + [create_request(row, 999, error="timed out")]

    assert reasons(tmp_path, row, requests) == expected


@pytest.mark.parametrize(
    ("tokens", "drafted", "expected"),
    [
        pytest.param((1, 4, 4), (3, 3, 3), [], id="k + 1 tokens are a whole step"),
        pytest.param((1, 5, 4), (3, 3, 3), ["steps_merged"], id="more than k + 1 are two"),
        pytest.param((1, 5, 4), (3, 4, 3), [], id="unless the engine drafted more than k"),
    ],
)
def test_a_chunk_longer_than_a_step_can_be_is_a_reason(tmp_path: Path, tokens, drafted, expected: list[str]) -> None:
    row = create_row(create_cell("ngram", 3))
    requests = [create_request(row, n, tokens=tokens, drafted=drafted, accepted=(1, 1, 1)) for n in range(3)]

    assert reasons(tmp_path, row, requests) == expected


@pytest.mark.parametrize(
    ("accepted_by_counters", "expected"),
    [pytest.param(9.0, [], id="equal"), pytest.param(10.0, ["acceptance_mismatch"], id="apart by more than 1 %")],
)
def test_steps_and_counters_must_agree(tmp_path: Path, accepted_by_counters: float, expected: list[str]) -> None:
    row = create_row(create_cell("ngram", 3), counters_after={"drafts": 9.0, "accepted_tokens": accepted_by_counters})
    requests = [
        create_request(
            row,
            n,
            gaps_ms=(100, 10, 10, 10),
            tokens=(1, 2, 2, 2),
            drafted=(0, 3, 3, 3),
            accepted=(0, 1, 1, 1),
            first_step_is_prefill=True,
        )
        for n in range(3)
    ]

    assert reasons(tmp_path, row, requests) == expected


@pytest.mark.parametrize(
    ("declared", "found", "expected"),
    [
        pytest.param("1.0", "1.0", [], id="as declared"),
        pytest.param("", "1.0", [], id="nothing declared"),
        pytest.param("1.0", "1.1", ["engine_version_differs"], id="another"),
    ],
)
def test_another_engine_version_than_the_declared_is_a_reason(
    tmp_path: Path, declared: str, found: str, expected: list[str]
) -> None:
    cell = create_cell()
    cell.deployment.engine.version = declared

    assert reasons(tmp_path, create_row(cell), session={"engine_version": found}) == expected


def test_cells_shows_the_good_try_and_attempts_shows_all(tmp_path: Path) -> None:
    cell = create_cell()
    good, bad = create_row(cell, attempt=2), create_row(cell, attempt=3, status="failed", error="late trouble")
    results = [
        CellResult(create_row(cell, attempt=1, status="failed")),
        CellResult(good, [create_request(good)]),
        CellResult(bad, [create_request(bad, n) for n in range(5)]),
    ]

    assert measured(tmp_path, "SELECT attempt, status, n_requests FROM cells", *results) == [(2, "ok", 1)]
    assert ask(tmp_path / "run", "SELECT attempt, is_shown FROM attempts ORDER BY attempt") == [
        (1, False),
        (2, True),
        (3, False),
    ]


def test_a_cell_that_never_succeeded_shows_its_latest_try(tmp_path: Path) -> None:
    cell = create_cell()
    tries = [CellResult(create_row(cell, attempt=n, status="failed", error=f"try {n}")) for n in (1, 2)]

    assert measured(tmp_path, "SELECT attempt, error, n_requests, n_failed FROM cells", *tries) == [(2, "try 2", 0, 0)]


def test_config_facts_come_from_the_cell(tmp_path: Path) -> None:
    row = create_row(create_cell("ngram", 3, concurrency=2, repeat=1, temperature=0.5))
    names = "run, engine, model, method, k, tp, draft_tp, batch, workload, isl, concurrency, temperature, repeat, draft"

    assert measured(tmp_path, f"SELECT {names} FROM cells", CellResult(row, [create_request(row)])) == [
        ("run", "transformers", "small", "ngram", 3, 1, 0, 1, "mini", 0, 2, 0.5, 1, "ngram k=3")
    ]


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        pytest.param(Load(concurrency=4), "concurrency 4", id="closed"),
        pytest.param(Load("poisson", rate=2.5), "poisson 2.5/s", id="open"),
        pytest.param(Load("replay", replay="offsets.txt"), "replay", id="replayed"),
    ],
)
def test_a_load_has_a_name(tmp_path: Path, load: Load, expected: str) -> None:
    row = create_row(replace(create_cell(), load=load))

    assert measured(tmp_path, "SELECT load FROM cells", CellResult(row)) == [expected]


def test_a_simulated_engine_is_labelled(tmp_path: Path) -> None:
    row = create_row(create_cell())

    assert measured(tmp_path, "SELECT simulated FROM cells", CellResult(row), create_session(row, simulated=True)) == [True]
