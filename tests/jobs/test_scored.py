"""The untimed pass with log-probabilities, over the real session, load client and HTTP, on the simulated engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jobs.control import SessionControl
from jobs.engines.base import Answer
from jobs.engines.dialects import HostDialect
from jobs.scored import is_scored, untimed
from jobs.session import SessionSite, run_session
from jobs.spec import Cell, CellOrder, Deployment, Draft, Engine, Load, Model, Sampling, SessionSpec, Workload
from storage.rows import CellResult, SessionRow
from storage.runs import RunStore
from storage.views import open_runs

BYTES = Model(name="bytes", path="jobs/workloads/data/bytes")
SAMPLED = Sampling(temperature=0.8, scored=12)
GREEDY = Sampling(temperature=0.0)


def cell_of(
    method: str, *, repeat: int = 0, sampling: Sampling = SAMPLED, limit: int = 12, engine_args: Any = None, **args: Any
) -> Cell:
    engine = Engine(name="simulated", device="cpu", batch=8, args={"step_ms": 0.5, **(engine_args or {})})
    draft = Draft(method=method, k=3 if method != "none" else 0, args=args)
    deployment = Deployment(BYTES, engine, draft)
    return Cell(deployment, Workload(limit=limit, output_limit=12), sampling, Load(concurrency=4), repeat)


def measured(*cells: Cell) -> list[SessionRow | CellResult]:
    """The cells of one deployment, in one session."""
    orders = tuple(CellOrder(cell, 1) for cell in cells)
    deployment = cells[0].deployment
    spec = SessionSpec(f"session-{deployment.id}", "an-invocation", deployment, orders, 0.0)
    events = run_session(spec, SessionSite(), SessionControl())
    return [event for event in events if isinstance(event, (SessionRow, CellResult))]


def result_of(cell: Cell) -> CellResult:
    return next(event for event in measured(cell) if isinstance(event, CellResult))


def test_a_sampled_cell_is_asked_once_more_with_logprobs_and_its_counters_do_not_know() -> None:
    result = result_of(cell_of("ngram", sampling=replace(SAMPLED, scored=5)))

    assert (result.cell.status, result.cell.scored_error) == ("ok", "")
    assert [row.index for row in result.scored] == [0, 1, 2, 3, 4]
    first_turns = [row for row in result.requests if row.turn == 0]
    assert [row.prompt_hash for row in result.scored] == [row.prompt_hash for row in first_turns[:5]]
    assert all(len(row.logprobs) == len(row.output_ids) > 0 for row in result.scored)
    assert all(logprob < 0 for row in result.scored for logprob in row.logprobs)
    assert result.cell.counters_after["requests"] - result.cell.counters_before["requests"] == len(result.requests)


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        pytest.param(cell_of("ngram"), True, id="sampled"),
        pytest.param(cell_of("none"), True, id="the baseline too"),
        pytest.param(cell_of("ngram", sampling=GREEDY), False, id="greedy: identity says it all"),
        pytest.param(cell_of("ngram", sampling=replace(SAMPLED, scored=0)), False, id="not wanted"),
        pytest.param(cell_of("synthetic"), False, id="synthetic acceptance: never judged"),
    ],
)
def test_only_sampled_cells_whose_outputs_mean_something_are_scored(cell: Cell, expected: bool) -> None:
    assert is_scored(cell) is expected


def test_a_greedy_cell_has_no_scored_rows() -> None:
    assert result_of(cell_of("ngram", sampling=GREEDY, limit=3)).scored == ()


def test_two_cells_ask_the_same_prompts_and_draw_by_themselves() -> None:
    base, fast, again = cell_of("none"), cell_of("ngram"), cell_of("none", repeat=1)

    assert len({untimed(cell).sampling.seed for cell in (base, fast, again)}) == 3
    assert {untimed(cell).repeat for cell in (base, fast, again)} == {0}
    assert untimed(replace(base, load=Load("poisson", rate=2.0))).load == Load(concurrency=8)


def test_what_fails_in_the_pass_is_told_and_never_fails_the_cell() -> None:
    result = result_of(cell_of("ngram", limit=8, engine_args={"error_every": 17}))  # after 4 to warm up and 8 timed ones

    assert result.cell.status == "ok"
    assert "1 of 8 answers failed" in result.cell.scored_error
    assert "simulated error" in result.cell.scored_error
    assert len(result.scored) == 8


def test_an_engine_without_logprobs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told = HostDialect.answer

    def mute(self: HostDialect, events: Sequence[bytes]) -> Answer:
        return replace(told(self, events), logprobs=())

    monkeypatch.setattr(HostDialect, "answer", mute)

    result = result_of(cell_of("ngram", limit=4))

    assert result.cell.status == "ok"
    assert result.cell.scored_error == "the engine told no log-probabilities for 4 of 4 answers"


@pytest.mark.parametrize(
    ("shift", "expected"),
    [
        pytest.param(0.0, [("ngram", "no difference"), ("none", "no difference"), ("none", "no difference")], id="the same"),
        pytest.param(1.5, [("ngram", "differs"), ("none", "no difference"), ("none", "no difference")], id="less probable"),
    ],
)
def test_a_draft_that_changes_the_distribution_is_caught_and_the_baseline_is_not(
    tmp_path: Path, shift: float, expected: list[tuple[str, str]]
) -> None:
    with RunStore.create(tmp_path / "run", "") as store:
        for event in measured(cell_of("none"), cell_of("none", repeat=1)) + measured(cell_of("ngram", logprob_shift=shift)):
            store.write(event)
    with open_runs([tmp_path / "run"]) as runs:
        found = runs.execute("SELECT method, verdict FROM distributions WHERE statistic = 'logprob' ORDER BY ALL").fetchall()
        reasons = runs.execute("SELECT method, 'distribution_differs' IN reasons FROM cells ORDER BY ALL").fetchall()

    assert found == expected
    assert reasons == [(method, verdict == "differs") for method, verdict in expected]
