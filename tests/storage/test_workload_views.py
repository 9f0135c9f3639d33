"""What the views tell of a workload's lengths, limits, thoughts and valid answers, and of random tokens beside real text."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recorded import create_cell, create_request, create_row, record

from jobs.spec import Cell, Workload
from storage.report.findings import find
from storage.report.verdict import verdicts
from storage.rows import CellResult, CellRow
from storage.views import open_runs, settle_for

REAL = Workload(name="synthetic", isl=50)
RANDOM = Workload(name="random_tokens", isl=50)


def row_of(workload: Workload, method: str = "none", k: int = 0) -> CellRow:
    cell: Cell = create_cell(method, k)
    return create_row(replace(cell, workload=workload))


def result(row: CellRow, n: int = 3, **request: Any) -> CellResult:
    return CellResult(row, [create_request(row, i, **request) for i in range(n)])


def first(folder: Path, sql: str) -> dict[str, Any]:
    with open_runs([folder]) as runs:
        settle_for(runs, re.findall(r"\w+", sql))
        answer = runs.execute(sql)
        return dict(zip([column[0] for column in answer.description], answer.fetchall()[0], strict=True))


@pytest.mark.parametrize(
    ("workload", "prompt_tokens", "reasons"),
    [
        pytest.param(REAL, 51, [], id="within 2 %"),
        pytest.param(REAL, 52, ["isl_off"], id="too long"),
        pytest.param(REAL, 48, ["isl_off"], id="too short"),
        pytest.param(replace(REAL, isl=0), 48, [], id="no length asked"),
        pytest.param(Workload(name="speed_bench_throughput", isl=50), 70, [], id="a length in another tokenizer's tokens"),
    ],
)
def test_a_cell_whose_prompts_stray_from_the_asked_length_says_so(
    workload: Workload, prompt_tokens: int, reasons: list[str], tmp_path: Path
) -> None:
    folder = record(tmp_path / "run", result(row_of(workload), prompt_tokens=prompt_tokens))
    found = first(folder, "FROM cells")
    assert found["reasons"] == reasons
    assert (found["isl"], found["prompt_tokens_mean"]) == (workload.isl, prompt_tokens), "both are told"


@pytest.mark.parametrize(
    ("method", "ignore_eos", "reasons"),
    [
        pytest.param("none", True, [], id="baseline"),
        pytest.param("ngram", True, ["forced_length"], id="speculative"),
        pytest.param("ngram", False, [], id="natural stop"),
    ],
)
def test_a_speculative_cell_with_forced_length_is_not_valid(
    method: str, ignore_eos: bool, reasons: list[str], tmp_path: Path
) -> None:
    folder = record(
        tmp_path / "run", result(row_of(replace(REAL, ignore_eos=ignore_eos), method, 3 if method == "ngram" else 0))
    )
    assert first(folder, "FROM cells")["reasons"] == reasons


def test_every_reason_has_its_remedy(tmp_path: Path) -> None:
    with open_runs([record(tmp_path / "run")]) as runs:
        known = {reason for (reason,) in runs.execute("SELECT reason FROM remedies").fetchall()}
    assert {"isl_off", "forced_length"} <= known


def test_shares_of_cut_and_of_valid_answers_are_of_those_that_were_answered_and_judged(tmp_path: Path) -> None:
    row = row_of(REAL)
    requests = [
        create_request(row, 0, finish_reason="length", output_valid=False),
        create_request(row, 1, output_valid=True),
        create_request(row, 2, output_valid=True),
        create_request(row, 3),
        create_request(row, 4, gaps_ms=(), finish_reason="", error="refused"),
    ]
    found = first(record(tmp_path / "run", CellResult(row, requests)), "FROM cells")
    assert found["censored_share"] == 0.25
    assert found["valid_share"] == pytest.approx(2 / 3)


def test_thoughts_and_answers_have_an_al_each(tmp_path: Path) -> None:
    """Tokens: 1 of the prefill, then steps of 3, 3, 1 and 2. The third token of the thoughts ends in the second step."""
    row = row_of(REAL, "ngram", 2)
    steps = {"tokens": (1, 3, 3, 1, 2), "drafted": (0, 2, 2, 2, 2), "accepted": (0, 2, 2, 0, 1)}
    request = create_request(row, 0, gaps_ms=(100.0,) * 5, first_step_is_prefill=True, n_thinking_tokens=5, **steps)
    silent = create_request(row, 1, gaps_ms=(100.0,) * 5, first_step_is_prefill=True, n_thinking_tokens=0, **steps)
    unmarked = create_request(row, 2, gaps_ms=(100.0,) * 5, first_step_is_prefill=True, **steps)
    folder = record(tmp_path / "run", CellResult(row, [request, silent, unmarked]))
    with open_runs([folder]) as runs:
        found = runs.execute(
            "SELECT part, n_requests, n_tokens, n_steps, n_accepted, al FROM parts ORDER BY part"
        ).fetchall()
    assert found == [("answer", 2, 15, 6, 6, 2.0), ("thinking", 1, 5, 2, 4, 3.0)]


def test_random_tokens_inflate_what_real_text_of_the_same_length_gives(tmp_path: Path) -> None:
    def cell(workload: Workload, method: str, accepted: int, gap_ms: float) -> CellResult:
        row = row_of(workload, method, 3 if method != "none" else 0)
        gaps = (100.0, gap_ms, gap_ms)
        if method == "none":
            return result(row, gaps_ms=gaps)
        return result(
            row,
            gaps_ms=gaps,
            tokens=(1, accepted + 1, accepted + 1),
            drafted=(0, 3, 3),
            accepted=(0, accepted, accepted),
            first_step_is_prefill=True,
        )

    folder = record(
        tmp_path / "run",
        cell(REAL, "none", 0, 10.0),
        cell(replace(RANDOM, limit=7, seed=2), "none", 0, 10.0),
        cell(REAL, "ngram", 1, 10.0),
        cell(replace(RANDOM, limit=7, seed=2), "ngram", 2, 10.0),
        cell(replace(RANDOM, isl=100), "ngram", 3, 10.0),
    )
    with open_runs([folder]) as runs:
        found = runs.execute(
            "SELECT method, al, real_al, al_inflation, user_tps, real_user_tps, user_tps_inflation "
            "FROM inflations ORDER BY method"
        ).fetchall()
    assert found == [
        ("ngram", 3.0, 2.0, 0.5, pytest.approx(300), pytest.approx(200), pytest.approx(0.5)),
        ("none", 1.0, 1.0, None, pytest.approx(100), pytest.approx(100), pytest.approx(0)),
    ]
    said = [sentence for sentence in verdicts(find([folder])) if sentence.startswith("**Random tokens")]
    assert len(said) == 2
    assert "without speculation a user gets 0 % more tokens/s (100.00, not 100.00) than with real text, synthetic" in said[0]
    assert "AL is 50 % higher (3.00, not 2.00) and a user gets 50 % more tokens/s (300.00, not 200.00)" in said[1]
