"""Goodput under limits, and the verdict on merged reads, against numbers worked out by hand."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from recorded import ask, create_cell, create_request, create_row, record

from jobs.spec import Load
from storage.rows import CellResult, CellRow, RequestRow


def measured(folder: Path, sql: str, *results: CellResult) -> list[Any]:
    return ask(record(folder / "run", *results), sql)


def limited(**limits: float) -> CellRow:
    return create_row(replace(create_cell(), load=Load(**limits)), duration_ms=500.0)


def four_requests(row: CellRow) -> list[RequestRow]:
    """TTFT and TPOT in ms: 100 and 10; 300 and 10; 100 and none (one chunk); failed after 100 and 10."""
    return [
        create_request(row, 0),
        create_request(row, 1, gaps_ms=(300.0, 10.0, 10.0)),
        create_request(row, 2, gaps_ms=(100.0,)),
        create_request(row, 3, error="the stream broke"),
    ]


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        pytest.param({}, (None, None), id="no limit"),
        pytest.param({"slo_ttft_s": 0.2}, (0.5, 4.0), id="TTFT: 2 of 4, in half a second"),
        pytest.param({"slo_tpot_s": 0.02}, (0.75, 6.0), id="TPOT: one chunk has none and meets it"),
        pytest.param({"slo_tpot_s": 0.005}, (0.25, 2.0), id="TPOT that only the one chunk meets"),
        pytest.param({"slo_ttft_s": 0.2, "slo_tpot_s": 0.005}, (0.25, 2.0), id="every limit must be met"),
        pytest.param({"slo_ttft_s": 0.1}, (0.5, 4.0), id="exactly at the limit is within it"),
        pytest.param({"slo_ttft_s": 0.01}, (0.0, 0.0), id="none is not null"),
    ],
)
def test_goodput_counts_the_requests_that_meet_every_limit(tmp_path: Path, limits: dict[str, float], expected: Any) -> None:
    row = limited(**limits)
    sql = "SELECT slo_attainment, goodput_rps FROM cells"

    assert measured(tmp_path, sql, CellResult(row, four_requests(row))) == [expected]


def test_a_cell_from_before_there_were_limits_has_no_goodput_and_the_same_condition(tmp_path: Path) -> None:
    new = limited(slo_ttft_s=0.2, slo_tpot_s=0.02)
    before = asdict(create_cell("ngram", 3))
    del before["load"]["slo_ttft_s"], before["load"]["slo_tpot_s"]
    old = create_row(create_cell("ngram", 3), cell_json=json.dumps(before))
    results = [CellResult(row, four_requests(row)) for row in (new, old)]
    same = "min(condition) OVER () = max(condition) OVER ()"
    sql = f"SELECT method, slo_ttft_s, slo_attainment, {same} FROM cells ORDER BY method"

    assert measured(tmp_path, sql, *results) == [("ngram", None, None, True), ("none", 0.2, 0.5, True)]


@pytest.mark.parametrize(
    ("merged_reads", "gaps_ms", "share", "expected"),
    [
        pytest.param(1, (100.0, *(10.0,) * 99), 0.01, [], id="1 of 100 is not more than 1 %"),
        pytest.param(1, (100.0, *(10.0,) * 98), 1 / 99, ["chunks_merged"], id="1 of 99"),
        pytest.param(1, (100.0, 10.0, 0.0, 0.0, *(10.0,) * 26), 2 / 30, ["chunks_merged"], id="one read of three chunks"),
        pytest.param(0, (0.0, *(10.0,) * 9), 0.0, [], id="the first gap is from the send"),
    ],
)
def test_chunks_that_shared_a_read_are_a_reason_of_their_own(tmp_path: Path, merged_reads, gaps_ms, share, expected) -> None:
    row = create_row(create_cell(), merged_reads=merged_reads)
    talk = create_request(row, 0, gaps_ms=gaps_ms)
    sql = "SELECT merged_share, list_filter(reasons, lambda reason: reason <> 'too_few_requests') FROM cells"

    assert measured(tmp_path, sql, CellResult(row, [talk])) == [(pytest.approx(share), expected)]


def test_a_busy_client_and_merged_chunks_are_told_apart(tmp_path: Path) -> None:
    row = create_row(create_cell(), merged_reads=2, client_cpu_share=0.95)
    requests = [create_request(row, n) for n in range(3)]

    assert measured(tmp_path, "SELECT reasons FROM cells", CellResult(row, requests)) == [
        (["client_saturated", "chunks_merged"],)
    ]
