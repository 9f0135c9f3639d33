"""Structured output: the schema's file is read when a sweep is planned, and its text reaches the engine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from jobs.control import SessionControl
from jobs.engines.base import Ask, Endpoint
from jobs.engines.dialects import HostDialect
from jobs.engines.simulated import SimulatedEngine
from jobs.errors import BadInput, WrongEngine
from jobs.session import SessionSite, run_session
from jobs.spec import Cell, CellOrder, Deployment, Draft, Engine, Load, Model, Sampling, SessionSpec, Workload
from jobs.workloads.schema import schema_text
from orchestrator.rules import problem_of
from storage.rows import CellResult, SessionRow

BYTES = Model(name="bytes", path="jobs/workloads/data/bytes")
SCHEMA = '{"type": "object"}'


def cell_of(json_schema: str = "", sampling: Sampling | None = None) -> Cell:
    engine = Engine(name="simulated", device="cpu", batch=8, args={"step_ms": 1.0})
    workload = Workload(limit=3, output_limit=6, json_schema=json_schema)
    return Cell(Deployment(BYTES, engine, Draft()), workload, sampling or Sampling(), Load())


def events_of(*cells: Cell) -> list[SessionRow | CellResult]:
    orders = tuple(CellOrder(cell, 1) for cell in cells)
    spec = SessionSpec("a-session", "an-invocation", cells[0].deployment, orders, 0.0)
    events = run_session(spec, SessionSite(), SessionControl())
    return [event for event in events if isinstance(event, (SessionRow, CellResult))]


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        pytest.param(None, "No such file", id="no such file"),
        pytest.param("{", "must name a file with a JSON schema", id="no JSON"),
        pytest.param("[1]", "it is no object", id="no object"),
        pytest.param(b"\xff", "can't decode byte 0xff", id="no text"),
        pytest.param('{"type": "objekt"}', r"at \$.type: 'objekt' is not valid", id="a type that does not exist"),
        pytest.param('{"properties": {"a": {"pattern": "("}}}', r"at \$.properties.a.pattern: '\(' is not", id="no pattern"),
        pytest.param(
            '{"items": {"$ref": "#/$defs/a"}}', r"it refers to #/\$defs/a, which is not in it", id="a hanging reference"
        ),
        pytest.param('{"anyOf": [{"$ref": "https://x.y/z"}]}', "it refers to https://x.y/z, which is not", id="the web"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused_before_anything_starts(
    tmp_path: Path, content: str | bytes | None, wrong: str
) -> None:
    path = tmp_path / "answer.json"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

    with pytest.raises(BadInput, match=wrong):
        schema_text(Workload(json_schema=str(path)))
    problem = problem_of(cell_of(str(path)))
    assert problem is not None
    assert str(path) in problem.text


def test_a_schema_may_refer_to_its_own_parts(tmp_path: Path) -> None:
    parts = '{"$defs": {"a": {"type": "string"}}, "items": {"$ref": "#/$defs/a"}, "not": {"$ref": "#"}}'
    (tmp_path / "answer.json").write_text(parts)
    assert schema_text(Workload(json_schema=str(tmp_path / "answer.json"))) == parts


def test_free_text_needs_no_file() -> None:
    assert schema_text(Workload()) == ""


def test_each_request_carries_the_schema_the_scored_ones_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "answer.json"
    path.write_text(SCHEMA)
    asked: list[Ask] = []
    request = HostDialect.request

    def seeing(self: HostDialect, ask: Ask, endpoint: Endpoint) -> bytes:
        asked.append(ask)
        return request(self, ask, endpoint)

    monkeypatch.setattr(HostDialect, "request", seeing)

    events_of(cell_of(str(path), Sampling(temperature=0.5, scored=2)))

    assert {ask.json_schema for ask in asked} == {SCHEMA}
    assert json.loads(asked[0].json_schema)
    assert [ask.wants_logprobs for ask in asked].count(True) == 2


def test_a_cell_that_a_stranger_answered_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked before the first request and after each cell; here somebody takes the port during the second cell."""
    asked: list[Endpoint] = []
    ours = SimulatedEngine.check_identity

    def check(self: SimulatedEngine, endpoint: Endpoint) -> None:
        asked.append(endpoint)
        ours(self, endpoint if len(asked) < 3 else replace(endpoint, model="somebody"))

    monkeypatch.setattr(SimulatedEngine, "check_identity", check)
    cells = [replace(cell_of(), repeat=repeat) for repeat in range(3)]

    events = events_of(*cells)

    results = [event.cell for event in events if isinstance(event, CellResult)]
    assert [(row.status, row.error_kind) for row in results] == [("ok", ""), ("failed", WrongEngine("").kind)]
    assert events[-1].error_kind == WrongEngine("").kind


def test_another_version_than_the_declared_ends_the_session_before_a_cell() -> None:
    cell = cell_of()
    engine = replace(cell.deployment.engine, version="99")

    (row,) = events_of(replace(cell, deployment=replace(cell.deployment, engine=engine)))

    assert isinstance(row, SessionRow)
    assert (row.status, row.error_kind) == ("failed", WrongEngine("").kind)
    assert "simulated must have the version of `engine.version`, 99: it says 1" in row.error
