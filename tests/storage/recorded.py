"""Owns small recorded rows for the tests of storage. Does not own what is asserted about them.

Defaults are chosen so that numbers can be worked out by hand: sent at 0, first chunk after 100 ms, then a chunk each 10 ms.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from jobs.spec import Cell, Deployment, Draft, Engine, Load, Model, Sampling, Workload
from storage.errors import BadInput
from storage.rows import CellResult, CellRow, DecisionRow, RequestRow, SessionRow
from storage.runs import RunStore
from storage.views import open_runs, settle_for

MS = 1_000_000
DECISION = DecisionRow("search", 0, 1, "measure", "crossover", "user_tps", "mini", "an end of the loads")


def create_cell(
    method: str = "none",
    k: int = 0,
    *,
    concurrency: int = 1,
    repeat: int = 0,
    temperature: float = 0.0,
    kind: str = "closed",
) -> Cell:
    deployment = Deployment(Model("small", "/models/small"), Engine(version=""), Draft(method=method, k=k))
    return Cell(deployment, Workload(), Sampling(temperature=temperature), Load(kind=kind, concurrency=concurrency), repeat)


def create_row(cell: Cell, *, attempt: int = 1, status: str = "ok", duration_ms: float = 1000.0, **changes: Any) -> CellRow:
    row = CellRow(
        cell.id,
        attempt,
        f"session-{cell.deployment.id}",
        "invocation",
        cell.deployment.id,
        cell.pair_id,
        0,
        status,
        json.dumps(asdict(cell)),
        "2026-01-01T00:00:00+00:00",
        int(duration_ms * MS),
    )
    return replace(row, **changes)


def create_request(
    row: CellRow,
    index: int = 0,
    *,
    turn: int = 0,
    sent_ms: float = 0.0,
    late_ms: float = 0.0,
    gaps_ms: tuple[float, ...] = (100.0, 10.0, 10.0),
    tokens: tuple[int, ...] = (),
    drafted: tuple[int, ...] = (),
    accepted: tuple[int, ...] = (),
    category: str = "coding",
    **changes: Any,
) -> RequestRow:
    tokens = tokens or (1,) * len(gaps_ms)
    request = RequestRow(
        row.cell_id,
        row.attempt,
        index,
        turn,
        f"q{index}",
        category,
        "",
        prompt_tokens=50,
        prompt_hash=f"p{index}-{turn}",
        t_sched_ns=int((sent_ms - late_ms) * MS),
        t_sent_ns=int(sent_ms * MS),
        chunk_gap_ns=[int(gap * MS) for gap in gaps_ms],
        chunk_tokens=tokens,
        step_drafted=drafted,
        step_accepted=accepted,
        output_ids=list(range(sum(tokens))),
        output_hash="same",
        finish_reason="stop",
    )
    return replace(request, **changes)


def create_session(row: CellRow, **changes: Any) -> SessionRow:
    session = SessionRow(
        row.session_id, "invocation", row.deployment_id, "{}", "ok", "2026-01-01T00:00:00+00:00", ready_s=2.0
    )
    return replace(session, **changes)


def record(folder: Path, *results: CellResult | SessionRow, sweep: str = "grid: test\n") -> Path:
    with RunStore.create(folder, sweep) as store:
        for result in results:
            store.write(result)
    return folder


def fail(failure: BaseException, *before: object) -> None:
    raise failure


def refuse(folder: Path | str) -> None:
    """As where there is no cluster: a search has written what it would measure first."""
    with pytest.raises(BadInput, match="no cluster"), RunStore.create(folder, "a: 2\n") as store:
        fail(BadInput("no cluster"), store.write_decisions([DECISION]))


def ask(folder: Path, sql: str) -> list[Any]:
    """The rows of an answer, asked for as `storage.query` does: what its views share is computed once."""
    with open_runs([folder]) as runs:
        settle_for(runs, re.findall(r"\w+", sql))
        return runs.execute(sql).fetchall()
