"""Owns one life of an engine: start it, measure its cells in order, stop it. Does not own how a cell is measured, or Ray.

With `jobs.measure` it is one of the two places where errors become rows (the other is `orchestrator.schedule`): an engine
that does not start is a failed session row; an engine that dies in a cell is a failed cell row, and the session ends.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from jobs.control import SessionControl, SessionProgress
from jobs.engines import engine_named
from jobs.engines.base import Endpoint, EngineFacts, Launch, Meeting, Process, Site
from jobs.engines.elsewhere import Elsewhere
from jobs.engines.process import free_ports
from jobs.engines.spread import Ranks, Spread, not_everywhere
from jobs.errors import EngineDidNotStart, EngineFailed, SpecSweepError
from jobs.load.base import ROWS_A_BATCH
from jobs.measure import Running, measure_cell, utc_now
from jobs.provenance import git_state, gpu_facts, host_facts, node_name, worker_versions
from jobs.spec import Deployment, SessionSpec
from jobs.starting import Models, in_its_environment, models_for, site_for, start_process, wait_for_gpus
from jobs.workloads.tokenize import ChatTokenizer
from storage.rows import FAILED, OK, CellBatch, CellResult, SessionRow

HEALTH_ELSEWHERE = "/v1/models"  # what every server that speaks OpenAI's dialect answers
MOST_LOG_BYTES = 4 * 2**20  # of an engine's log that are kept: one that complains at each request writes gigabytes in a week


@dataclass(frozen=True)
class SessionSite:
    """What the node decides: where to put files, and which GPUs are ours."""

    scratch_root: str = ""  # "" = the system's folder for temporary files
    log_path: str = ""  # of the engine's log; "" = node-local, and the text comes as the last event
    log_name: str = ""  # how the row names it, relative to the run
    gpus: tuple[str, ...] = ()
    rows_a_batch: int = ROWS_A_BATCH  # that leave the node at once, while a cell runs
    address: str = "127.0.0.1"  # of this node, as others reach it
    ranks: Ranks | None = None  # of an engine over several nodes: those on the others


@dataclass(frozen=True)
class SessionLog:
    """The engine's log, of a session whose node does not see the run's folder."""

    session_id: str
    text: str


Event = SessionRow | CellBatch | CellResult | SessionLog


def run_session(spec: SessionSpec, site: SessionSite, control: SessionControl) -> Iterator[Event]:
    """Yields a `SessionRow` once the engine is ready or has failed to start, for each cell the batches of a long one and
    its `CellResult`, then the final `SessionRow` (the same id, it replaces the first), and the logs that are node-local.
    The engine is gone at the end, however the iterator ends.
    """
    scratch = Path(tempfile.mkdtemp(prefix="specsweep-", dir=site.scratch_root or None))
    own_log = scratch / "engine.log"
    log = Path(site.log_path) if site.log_path else own_log
    try:
        with own_log.open("a+b") as reader:  # it goes with the scratch folder: what is open can still be read
            yield from _Session(spec, site, control, scratch, log).run()
            if not site.log_path:
                yield SessionLog(spec.session_id, end_of(reader))
        for rank, text in sorted(site.ranks.logs.items() if site.ranks else ()):
            yield SessionLog(f"{spec.session_id}.rank{rank}", text)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def end_of(log: BinaryIO, most: int = MOST_LOG_BYTES) -> str:
    """What is kept of an engine's log: its last bytes, and how many came before them. What is no UTF-8 is shown as �."""
    left_out = max(0, log.seek(0, os.SEEK_END) - most)
    log.seek(left_out)
    text = log.read(most).decode("utf-8", "replace")
    return f"[{left_out} bytes before this are left out]\n{text}" if left_out else text


class _Session:
    def __init__(self, spec: SessionSpec, site: SessionSite, control: SessionControl, scratch: Path, log: Path) -> None:
        self.spec = spec
        self.site = site
        self.control = control
        self.scratch = scratch
        self.log = log
        self.process: Process = Elsewhere()
        self.started = time.perf_counter()
        self.ready_s: float | None = None
        self.fault: EngineFailed | None = None
        self.gpus: list[dict[str, Any]] = []  # what they were before the engine started

    def run(self) -> Iterator[Event]:
        try:
            row = yield from self.live(new_row(self.spec, self.site))
        finally:
            self.stop()
        if row is not None:
            yield replace(row, ended_s=self.elapsed_s())

    def live(self, row: SessionRow) -> Generator[Event, None, SessionRow | None]:
        """From the start to the last cell; returns the final row, None when the start was interrupted."""
        try:
            running, facts = self.start()
        except SpecSweepError as fault:
            return None if self.control.is_killed else failed(row, fault)
        gpus = [*self.gpus, *(self.site.ranks.gpus() if self.site.ranks else ())]
        row = with_facts(replace(row, ready_s=self.ready_s, gpus_json=json.dumps(gpus)), facts)
        yield row
        yield from self.measure(running)
        return self.at_the_end(row, running)

    def start(self) -> tuple[Running, EngineFacts]:
        """A ready engine that is proven to be ours and to speculate as asked; raises `SpecSweepError`."""
        deployment = in_its_environment(self.spec.deployment)
        self.control.show(SessionProgress("fetching"))
        engine = engine_named(deployment.engine.name)
        engine.check(deployment)
        nonce = f"specsweep-{self.spec.session_id}-{secrets.token_hex(8)}"
        models = self.models(deployment)
        self.control.show(SessionProgress("starting"))
        tokenizer = ChatTokenizer(models.target)
        site = site_for(models, nonce, self.scratch, self.site.gpus, self.meeting())
        endpoint, health_path = self.launch(engine.launch(deployment, site), site)
        self.ready_s = self.process.wait_ready(
            endpoint, health_path, deployment.engine.start_timeout_s, lambda: self.control.is_killed
        )
        engine.check_identity(endpoint)
        facts = engine.facts(deployment, endpoint)
        gpus, rows_a_batch = self.site.gpus, self.site.rows_a_batch
        return Running(
            self.spec, engine, endpoint, health_path, self.process, tokenizer, gpus, self.control, rows_a_batch
        ), facts

    def models(self, deployment: Deployment) -> Models:
        """On the disk of each of its nodes, which fetch at once: no rank that has started waits for another's download."""
        ranks = self.site.ranks
        if ranks is None:
            return models_for(deployment)
        ranks.prepare()
        models = models_for(deployment)
        if lost := ranks.unprepared(lambda: self.control.is_killed):
            raise not_everywhere(lost)
        if self.control.is_killed:
            raise EngineDidNotStart("the engine was stopped before its models were there")
        return models

    def launch(self, how: Launch | Endpoint, site: Site) -> tuple[Endpoint, str]:
        """Start the engine, where it does not run already; where it answers, and the path of its health check."""
        if isinstance(how, Endpoint):
            return how, HEALTH_ELSEWHERE
        self.gpus = wait_for_gpus(site, self.control)
        self.process = first = start_process(how, site, self.log, site.nonce, self.control)
        if self.site.ranks and site.meeting:
            self.site.ranks.start(site.nonce, site.meeting)
            self.process = Spread(first, self.site.ranks)
            self.control.own(self.process.stop)
        return site.endpoint, how.health_path

    def meeting(self) -> Meeting | None:
        """Where the ranks of an engine over several nodes find this one."""
        if self.site.ranks is None:
            return None
        address = self.site.address
        port, spare_port = free_ports(2, address)
        return Meeting(address, port, spare_port, own_address=address, secret=secrets.token_hex(32))

    def measure(self, running: Running) -> Iterator[CellBatch | CellResult]:
        """The cells in order, until one of them finds the engine gone or somebody says stop."""
        for position, order in enumerate(self.spec.orders):
            if self.control.is_stopping:
                return
            result, self.fault = yield from measure_cell(running, order, position)
            if self.control.is_killed:
                return
            yield result
            if self.fault is not None:
                return

    def at_the_end(self, row: SessionRow, running: Running) -> SessionRow:
        """What only the end can tell: the peak of memory, or how the engine failed."""
        self.control.show(SessionProgress("stopping"))
        if self.control.is_killed:
            return row
        try:
            if self.fault is not None:
                raise self.fault
            peak = running.engine.facts(self.spec.deployment, running.endpoint).peak_memory_bytes
        except EngineFailed as fault:
            return replace(row, error_kind=fault.kind, error=fault.text)
        return replace(row, peak_memory_bytes=peak)

    def stop(self) -> None:
        self.process.stop()

    def elapsed_s(self) -> float:
        return time.perf_counter() - self.started


def new_row(spec: SessionSpec, site: SessionSite) -> SessionRow:
    commit, dirty = git_state()
    return SessionRow(
        session_id=spec.session_id,
        invocation_id=spec.invocation_id,
        deployment_id=spec.deployment.id,
        deployment_json=json.dumps(asdict(spec.deployment)),
        status=OK,
        started_at=utc_now(),
        node=node_name(),
        host_json=json.dumps(host_facts()),
        gpus_json=json.dumps(gpu_facts(site.gpus)),
        versions_json=json.dumps(worker_versions()),
        git_commit=commit,
        git_dirty=dirty,
        log=site.log_name,
    )


def with_facts(row: SessionRow, facts: EngineFacts) -> SessionRow:
    versions = {**json.loads(row.versions_json), **{f"engine.{name}": value for name, value in facts.versions.items()}}
    return replace(
        row,
        engine_version=facts.version,
        effective_config_json=json.dumps(dict(facts.effective_config), default=str),
        versions_json=json.dumps(versions),
        simulated=facts.simulated,
        weights_bytes=facts.weights_bytes,
        draft_weights_bytes=facts.draft_weights_bytes,
        kv_capacity_tokens=facts.kv_capacity_tokens,
        peak_memory_bytes=facts.peak_memory_bytes,
    )


def failed(row: SessionRow, fault: SpecSweepError) -> SessionRow:
    return replace(row, status=FAILED, error_kind=fault.kind, error=fault.text)
