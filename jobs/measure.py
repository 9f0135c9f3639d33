"""Owns one cell on a running engine: reset, warm up, drive, read counters, score. Does not own the engine's life."""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from functools import partial

from jobs.control import SessionControl, SessionProgress
from jobs.engines.base import Endpoint, Engine, Process
from jobs.engines.control import is_healthy
from jobs.errors import CellFailed, CellTimedOut, EngineDied, EngineFailed, EngineHung, SpecSweepError
from jobs.load.base import ROWS_A_BATCH, Measured, Progress, Traffic
from jobs.load.drive import drive
from jobs.load.driving import Driving
from jobs.scored import ask_scored, is_scored
from jobs.spec import CellOrder, SessionSpec, Workload
from jobs.tally import Tally
from jobs.telemetry import Telemetry
from jobs.workloads import load_prompts
from jobs.workloads.base import Conversation
from jobs.workloads.outputs import with_outputs_read
from jobs.workloads.schema import schema_text
from jobs.workloads.tokenize import ChatTokenizer, check_lengths, conversations
from jobs.workloads.warmup import warmup_conversations
from storage.rows import FAILED, OK, CellBatch, CellResult, CellRow, ScoredRow

HEALTH_LIMIT_S = 30.0  # an engine in the middle of a long step answers late, and is not hung
SAMPLES = 5_000  # of telemetry that make a batch of their own, when no requests come that could take them along

Measuring = Generator[CellBatch, None, tuple[CellResult, EngineFailed | None]]
"""Yields what is to be recorded while a cell runs; returns its result, and what is wrong with the engine after it."""


@dataclass(frozen=True)
class Running:
    """A started engine and what is needed to ask it something."""

    spec: SessionSpec
    engine: Engine
    endpoint: Endpoint
    health_path: str
    process: Process
    tokenizer: ChatTokenizer
    gpus: tuple[str, ...]
    control: SessionControl
    rows_a_batch: int = ROWS_A_BATCH
    kept: dict[str, list[Conversation]] = field(default_factory=dict, repr=False)

    def prepare(self, workload: Workload) -> list[Conversation]:
        """The workload's conversations as token ids; `BadInput` when one does not fit into the engine.

        Those of the last workload are kept: cells that follow each other mostly ask the same, and long prompts take minutes.
        """
        if (key := repr(workload)) not in self.kept:
            self.kept.clear()
            self.kept[key] = self._prepared(workload)
        return self.kept[key]

    def _prepared(self, workload: Workload) -> list[Conversation]:
        prepared = conversations(load_prompts(workload), self.tokenizer.with_args(workload.template_args))
        limit = self.spec.deployment.engine.max_length or self.tokenizer.max_length
        check_lengths(prepared, workload.output_limit, limit)
        return prepared


def measure_cell(running: Running, order: CellOrder, position: int) -> Measuring:
    """One try at a cell. What fails in the cell is in its row."""
    row = new_row(running.spec, order, position)
    tally = Tally()
    try:
        prepared = running.prepare(order.cell.workload)
        row = replace(row, caches_reset=running.engine.reset(running.endpoint))
        warm_up(running, order)
        return (yield from drive_cell(running, order, row, prepared, tally))
    except SpecSweepError as raised:
        fault = engine_fault(running) or (raised if isinstance(raised, EngineFailed) else None)
        return CellResult(failed(row, fault or raised), n_batches=tally.n_batches), fault


def warm_up(running: Running, order: CellOrder) -> None:
    """Requests that are never rows: at least as many as the cell has at once, so that every batch size has been seen."""
    cell = order.cell
    running.control.show(SessionProgress("warming", cell.id, cell.label))
    if cell.load.warmup:
        count = max(cell.load.warmup, cell.load.concurrency)
        tokenizer = running.tokenizer.with_args(cell.workload.template_args)
        drive(_traffic(running, order, warmup_conversations(count, tokenizer)))


def drive_cell(
    running: Running, order: CellOrder, row: CellRow, prepared: Sequence[Conversation], tally: Tally
) -> Measuring:
    """The timed part, between two readings of the engine's counters."""
    cell, engine, endpoint = order.cell, running.engine, running.endpoint
    running.control.show(SessionProgress("measuring", cell.id, cell.label, 0, len(prepared)))
    read = partial(
        with_outputs_read,
        conversations=prepared,
        tokenizer=running.tokenizer,
        json_schema=schema_text(cell.workload),
    )
    before = engine.counters(endpoint)
    row = replace(row, started_at=utc_now(), load_average=load_average(), counters_before=before)
    with Telemetry(running.process.pid, running.gpus) as telemetry, Driving(_traffic(running, order, prepared)) as driving:
        for requests in driving:
            if requests or (driving.t_zero_ns and telemetry.n_samples >= SAMPLES):
                samples = telemetry.take(cell.id, order.attempt, driving.t_zero_ns)
                yield CellBatch(cell.id, order.attempt, tally.take_part(requests), read(requests), samples)
    measured = driving.measured()
    tally.add(measured.requests)
    row = with_measured(row, measured)
    fault = engine_fault(running)
    if fault is None:
        row = judged(replace(row, counters_after=engine.counters(endpoint)), measured.timed_out, tally)
    else:
        row = failed(row, fault)
    samples = telemetry.take(cell.id, order.attempt, measured.t_zero_ns)
    scored: Sequence[ScoredRow] = ()
    if row.status == OK and is_scored(cell):
        running.control.show(SessionProgress("scoring", cell.id, cell.label))
        scored, error = ask_scored(_traffic(running, order, prepared))
        row, fault = replace(row, scored_error=error), engine_fault(running)
    return CellResult(row, read(measured.requests), samples, tally.n_batches, scored), fault


def engine_fault(running: Running) -> EngineFailed | None:
    """What is wrong with the engine now; None when it lives and answers, and is ours."""
    if not running.process.is_alive():
        return EngineDied("The engine died while a cell was measured.", log_tail=running.process.log_tail())
    if not is_healthy(running.endpoint, running.health_path, timeout_s=HEALTH_LIMIT_S):
        return EngineHung("The engine's process lives and does not answer.", log_tail=running.process.log_tail())
    try:
        running.engine.check_identity(running.endpoint)
    except EngineFailed as stranger:
        return stranger
    return None


def new_row(spec: SessionSpec, order: CellOrder, position: int) -> CellRow:
    cell = order.cell
    return CellRow(
        cell_id=cell.id,
        attempt=order.attempt,
        session_id=spec.session_id,
        invocation_id=spec.invocation_id,
        deployment_id=spec.deployment.id,
        pair_id=cell.pair_id,
        position=position,
        status=OK,
        cell_json=json.dumps(asdict(cell)),
        started_at=utc_now(),
    )


def with_measured(row: CellRow, measured: Measured) -> CellRow:
    return replace(
        row,
        duration_ns=measured.duration_ns,
        clock=measured.clock,
        clock_stepped=measured.clock_stepped,
        late_send_ns=measured.late_send_ns,
        merged_reads=measured.merged_reads,
        loop_lag_ns_max=measured.loop_lag_ns_max,
        client_cpu_share=measured.client_cpu_share,
    )


def judged(row: CellRow, timed_out: str, tally: Tally) -> CellRow:
    """Failed when its time was up or no request was answered."""
    if timed_out:
        return failed(row, CellTimedOut(timed_out))
    if tally.n_failed == tally.n_requests:
        why = tally.commonest_error or "the workload has no prompt"
        return failed(row, CellFailed(f"No request of the cell was answered: {why}"))
    return row


def failed(row: CellRow, fault: SpecSweepError) -> CellRow:
    return replace(row, status=FAILED, error_kind=fault.kind, error=fault.text)


def utc_now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


def load_average() -> float | None:
    """Of the last minute: says that something else was running on the node."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def _traffic(running: Running, order: CellOrder, prepared: Sequence[Conversation]) -> Traffic:
    def show(progress: Progress) -> None:
        running.control.show_counts(progress.done, progress.total, progress.tokens_per_s)

    return Traffic(
        order.cell,
        order.attempt,
        prepared,
        running.endpoint,
        running.engine.dialect,
        on_progress=show,
        rows_a_batch=running.rows_a_batch,
        is_abandoned=lambda: running.control.is_killed,
    )
