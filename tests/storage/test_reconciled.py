"""What chunks, steps and counters say of acceptance, held against each other; and what a draft costs of memory."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from recorded import ask, create_cell, create_request, create_row, create_session, record

from storage.rows import CellResult, CellRow, SessionRow
from storage.views import open_runs, views_sql


def cell(
    tokens: tuple[int, ...], drafted: tuple[int, ...] = (), accepted: tuple[int, ...] = (), **changes: Any
) -> CellResult:
    """Three answers, each of these chunks and steps."""
    row = create_row(create_cell("ngram", 3), **changes)
    gaps = (10.0,) * len(tokens)
    requests = [
        create_request(row, n, gaps_ms=gaps, tokens=tokens, drafted=drafted, accepted=accepted, first_step_is_prefill=True)
        for n in range(3)
    ]
    return CellResult(row, requests)


# ------------------------------------------------------------------------------------------------- all and drafted steps


def test_counters_tell_al_over_all_steps_and_over_drafted_ones_apart(tmp_path: Path) -> None:
    """3 answers of 1 + 20 tokens; 24 accepted in 12 drafted steps: 60 - 24 = 36 steps in all."""
    counters = {"drafts": 12.0, "accepted_tokens": 24.0, "output_tokens": 63.0}
    result = cell((1, *(2,) * 4, *(1,) * 12), counters_after=counters)

    [row] = ask(
        record(tmp_path / "run", result),
        "SELECT al, al_drafted, al_counters, al_drafted_counters, acceptance_source FROM cells",
    )

    assert row == (pytest.approx(60 / 36), 3.0, pytest.approx(60 / 36), 3.0, "counters")


def test_what_a_stop_cut_off_cannot_make_fewer_steps_than_were_drafted(tmp_path: Path) -> None:
    counters = {"drafts": 10.0, "accepted_tokens": 30.0}  # 9 tokens delivered: the rest was cut off

    assert ask(record(tmp_path / "run", cell((1, 1, 1), counters_after=counters)), "SELECT al, al_drafted FROM cells") == [
        (4.0, 4.0)
    ]


def test_a_speed_up_stands_beside_both_als_of_its_category(tmp_path: Path) -> None:
    base, fast = create_row(create_cell()), create_row(create_cell("ngram", 3))
    coding = {"drafted": (3, 0), "accepted": (3, 0), "gaps_ms": (10, 10)}
    math = {"drafted": (3, 3), "accepted": (1, 1), "gaps_ms": (10, 10), "category": "math"}
    results = [
        CellResult(base, [create_request(base, n, category=("coding", "math")[n]) for n in range(2)]),
        CellResult(fast, [create_request(fast, 0, **coding), create_request(fast, 1, **math)]),
    ]
    sql = "SELECT category, al, al_drafted FROM speedups WHERE metric = 'user_tps' ORDER BY category"

    assert ask(record(tmp_path / "run", *results), sql) == [
        ("all", 2.25, pytest.approx(8 / 3)),
        ("coding", 2.5, 4.0),
        ("math", 2.0, 2.0),
    ]
    assert ask(tmp_path / "run", "SELECT al, al_drafted FROM drafts WHERE method = 'ngram'") == [
        (2.25, pytest.approx(8 / 3))
    ]


# ------------------------------------------------------------------------------------------------- chunks against steps

STEPS = ((0, 3, 3, 3), (0, 1, 1, 1))


@pytest.mark.parametrize(
    ("tokens", "steps", "counters", "expected"),
    [
        pytest.param((1, 2, 2, 2), STEPS, {}, [], id="a chunk a step"),
        pytest.param((1, 2, 4), STEPS, {}, ["steps_merged"], id="two steps in one chunk, no longer than k + 1"),
        pytest.param((1, 5, 2), STEPS, {}, ["steps_merged"], id="a chunk longer than k + 1"),
        pytest.param((1, *(1,) * 6), STEPS, {}, [], id="parts that a cut draft could explain"),
        pytest.param((1,) * 9, STEPS, {}, ["acceptance_mismatch"], id="more chunks than steps and cuts explain"),
        pytest.param((1, 2, 2, 2), ((), ()), {"drafts": 9.0, "accepted_tokens": 9.0}, [], id="as the counters say"),
        pytest.param(
            (1, 4, 2), ((), ()), {"drafts": 9.0, "accepted_tokens": 9.0}, ["steps_merged"], id="fewer than counted"
        ),
        pytest.param(
            (1, 2, 2, 2), STEPS, {"drafts": 9.0, "accepted_tokens": 10.0}, ["acceptance_mismatch"], id="counters apart"
        ),
    ],
)
def test_chunks_steps_and_counters_must_tell_one_story(
    tmp_path: Path, tokens: tuple[int, ...], steps: Any, counters: dict[str, float], expected: list[str]
) -> None:
    folder = record(tmp_path / "run", cell(tokens, *steps, counters_after=counters))

    assert ask(folder, "SELECT reasons FROM cells") == [(expected,)]


def test_al_of_chunks_is_tokens_a_chunk_after_the_first(tmp_path: Path) -> None:
    assert ask(record(tmp_path / "run", cell((1, 2, 4))), "SELECT al_chunks FROM cells") == [(3.0,)]


def test_every_reason_has_a_rule_and_a_remedy() -> None:
    text = views_sql().split("CREATE VIEW cells AS")[1]
    judged = text[text.index("list_filter([") : text.index("lambda reason: reason IS NOT NULL")]
    reasons = set(re.findall(r"THEN '(\w+)'", judged))
    with open_runs([Path(__file__).parent / "fixtures" / "schema_1"]) as runs:
        remedies = runs.execute("SELECT reason, rule, remedy FROM remedies").fetchall()

    assert {reason for reason, _, _ in remedies} == reasons
    assert all(rule and remedy for _, rule, remedy in remedies)


# ---------------------------------------------------------------------------------------------------------------- memory


def started(method: str, name: str, *, node: str = "n1", minute: int = 0, **facts: Any) -> tuple[SessionRow, CellRow]:
    cell = create_cell(method, 0 if method == "none" else 3)
    row = replace(create_row(cell), session_id=name)
    at = f"2026-01-01T00:{minute:02}:00+00:00"
    session = create_session(row, deployment_json=json.dumps(asdict(cell.deployment)), node=node, started_at=at, **facts)
    return session, row


BASE = {"kv_capacity_tokens": 1000, "weights_bytes": 500, "peak_memory_bytes": 900}
MEMORY = (
    "SELECT session_id, baseline_session_id, kv_lost_tokens, kv_lost_share, draft_weights_bytes, draft_peak_bytes "
    "FROM memory WHERE method <> 'none' ORDER BY session_id"
)


def test_a_draft_costs_what_the_nearest_start_without_it_on_the_same_node_had_more(tmp_path: Path) -> None:
    small = {"kv_capacity_tokens": 800, "peak_memory_bytes": 950}
    sessions = [
        started("none", "far", **{**BASE, "kv_capacity_tokens": 5000}),
        started("none", "near", minute=9, **BASE),
        started("none", "elsewhere", minute=10, node="n2", **{**BASE, "kv_capacity_tokens": 7000}),
        started("ngram", "apart", minute=10, draft_weights_bytes=60, **{**BASE, **small}),
        started("ngram", "together", minute=11, kv_capacity_tokens=750, weights_bytes=570, peak_memory_bytes=None),
        started("ngram", "alone", minute=11, node="n3", kv_capacity_tokens=750),
    ]
    folder = record(tmp_path / "run", *(session for session, _ in sessions))

    assert ask(folder, MEMORY) == [
        ("alone", None, None, None, None, None),
        ("apart", "near", 200, 0.2, 60, 50),
        ("together", "near", 250, 0.25, 70, None),
    ]


def test_another_engine_setting_is_no_baseline(tmp_path: Path) -> None:
    (base, _), (fast, _) = started("none", "base", **BASE), started("ngram", "fast", kv_capacity_tokens=800)
    deployment = json.loads(base.deployment_json)
    deployment["engine"]["kv_fraction"] = 0.5
    folder = record(tmp_path / "run", replace(base, deployment_json=json.dumps(deployment)), fast)

    assert ask(folder, MEMORY) == [("fast", None, None, None, None, None)]
