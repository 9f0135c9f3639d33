"""That a measured cell's rows hold what is read from answers: the real session on the simulated engine."""

from __future__ import annotations

import pytest

from jobs import measure
from jobs.control import SessionControl
from jobs.session import SessionSite, run_session
from jobs.spec import Cell, CellOrder, Deployment, Draft, Engine, Load, Model, Sampling, SessionSpec, Workload
from storage.rows import CellResult

BYTES = Model(name="bytes", path="jobs/workloads/data/bytes")


def test_rows_tell_of_asked_lengths_of_validity_and_of_templates_that_refuse_an_argument() -> None:
    engine = Engine(name="simulated", device="cpu", batch=8, start_timeout_s=60, args={"step_ms": 1.0})
    deployment = Deployment(BYTES, engine, Draft())
    workloads = (
        Workload(name="structured", limit=3, output_limit=8),
        Workload(name="synthetic", isl=321, limit=3, output_limit=8),
        Workload(name="random_tokens", isl=77, limit=3, output_limit=8),
        Workload(limit=3, template_args={"enable_thinking": True}),
    )
    orders = tuple(CellOrder(Cell(deployment, workload, Sampling(), Load()), 1) for workload in workloads)
    spec = SessionSpec("a-session", "an-invocation", deployment, orders, 0.0)

    events = run_session(spec, SessionSite(), SessionControl())
    structured, real, random, refused = (event for event in events if isinstance(event, CellResult))

    assert [request.output_valid for request in structured.requests] == [False] * 3
    assert [request.prompt_tokens for request in real.requests] == [321] * 3
    assert [request.prompt_tokens for request in random.requests] == [77] * 3
    assert {request.output_valid for request in (*real.requests, *random.requests)} == {None}
    assert {request.n_thinking_tokens for request in real.requests} == {None}, "bytes mark no thoughts"
    assert refused.cell.status == "failed"
    assert "`workload.template_args` must be arguments that the model's chat template reads" in refused.cell.error


def test_prompts_are_made_once_for_cells_that_follow_each_other_with_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    load_prompts = measure.load_prompts
    monkeypatch.setattr(measure, "load_prompts", lambda workload: made.append(workload.seed) or load_prompts(workload))
    engine = Engine(name="simulated", device="cpu", batch=8, start_timeout_s=60, args={"step_ms": 1.0})
    deployment = Deployment(BYTES, engine, Draft())
    asked = ((0, 1), (0, 2), (1, 1), (0, 3))
    cells = (
        Cell(deployment, Workload(limit=3, output_limit=4, seed=seed), Sampling(), Load(concurrency=n)) for seed, n in asked
    )
    spec = SessionSpec("a-session", "an-invocation", deployment, tuple(CellOrder(cell, 1) for cell in cells), 0.0)

    results = [event for event in run_session(spec, SessionSite(), SessionControl()) if isinstance(event, CellResult)]

    assert made == [0, 1, 0], "only the last workload is kept: long prompts are many"
    sent = [sorted((row.question_id, row.prompt_tokens) for row in result.requests) for result in results]
    assert sent[0] == sent[1] == sent[3] != sent[2]
