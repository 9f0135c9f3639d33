"""Owns recorded cells of a small grid whose every ratio can be worked out by hand. Does not own what is asserted about them.

Each of eight prompts is answered with five tokens. Without speculation a token comes each 20 ms; with it two tokens a step
(of three drafted, one is accepted), so that a step of `step_ms` makes a speed-up of 40 / step_ms.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from recorded import create_request, create_row

from jobs.spec import Cell, Deployment, Draft, Engine, Load, Model, Sampling, Workload
from storage.rows import CellResult
from storage.views import open_runs, settle_for

CATEGORIES = ("coding", "math")
T_AR_MS = 20.0


def point(
    method: str = "none",
    k: int = 3,
    *,
    batch: int = 1,
    isl: int = 0,
    entropy: str = "",
    temperature: float = 0.0,
    repeat: int = 0,
    path: str = "/models/small",
    **load: Any,
) -> Cell:
    deployment = Deployment(Model("small", path), Engine(batch=batch), Draft(method=method, k=k if method != "none" else 0))
    workload = Workload(name="synthetic" if isl else "mini", isl=isl, entropy=entropy)
    return Cell(deployment, workload, Sampling(temperature=temperature), Load(**load), repeat)


def with_engine(cell: Cell, **settings: Any) -> Cell:
    return replace(cell, deployment=replace(cell.deployment, engine=replace(cell.deployment.engine, **settings)))


def baseline(cell: Cell, *, n: int = 8, spread: Sequence[float] = (), first_ms: float = 100.0, **row: Any) -> CellResult:
    """The cell's measurement without a draft; `spread` multiplies the gaps of each prompt."""
    told = create_row(replace(cell.with_draft(Draft())), **{"duration_ms": 1000.0, **row})
    requests = [
        create_request(
            told,
            index,
            gaps_ms=(first_ms, *(T_AR_MS * _nth(spread, index),) * 4),
            category=CATEGORIES[index % 2],
            prompt_tokens=cell.workload.isl or 50,
        )
        for index in range(n)
    ]
    return CellResult(told, requests)


def fast(
    cell: Cell, step_ms: float, *, n: int = 8, spread: Sequence[float] = (), first_ms: float = 100.0, **row: Any
) -> CellResult:
    """A speculative cell, its duration as much shorter as its steps are faster."""
    told = create_row(cell, **{"duration_ms": 25.0 * step_ms, **row})
    requests = [
        create_request(
            told,
            index,
            gaps_ms=(first_ms, *(step_ms * _nth(spread, index),) * 2),
            tokens=(1, 2, 2),
            drafted=(0, cell.deployment.draft.k, cell.deployment.draft.k),
            accepted=(0, 1, 1),
            first_step_is_prefill=True,
            category=CATEGORIES[index % 2],
            prompt_tokens=cell.workload.isl or 50,
        )
        for index in range(n)
    ]
    return CellResult(told, requests)


def pair(cell: Cell, step_ms: float, **changes: Any) -> list[CellResult]:
    return [baseline(cell, **changes), fast(cell, step_ms, **changes)]


def ask(folder: Path, sql: str) -> list[Any]:
    with open_runs([folder]) as runs:
        runs.execute("UPDATE thresholds SET resamples = 50")  # prompts gain alike here: more would tell no more
        settle_for(runs, re.findall(r"\w+", sql))
        return runs.execute(sql).fetchall()


def _nth(spread: Sequence[float], index: int) -> float:
    return spread[index] if spread else 1.0
