"""Owns one run of the command: cells and record → plan → rows, until nothing is left to do; then the exit code.

Does not own how anything is planned, run, written or told.
"""

from __future__ import annotations

import json
import secrets
import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict

from rich.console import Console

from jobs.errors import BadInput, RayDidNotStart
from jobs.measure import utc_now
from jobs.provenance import git_state
from jobs.session import Event, SessionLog
from jobs.spec import Cell, SessionSpec, Workload
from jobs.workloads import Read, load_prompts, reading_once
from jobs.workloads.foresee import refuse_unfit_prompts
from orchestrator.conclude import conclude
from orchestrator.config import Sweep
from orchestrator.describe import counted, describe
from orchestrator.expected import Expectation, Size, expect
from orchestrator.grid import expand
from orchestrator.here import nodes_to_come, refuse_absent_models, refuse_impossible_here, this_machine
from orchestrator.interrupts import Interrupts
from orchestrator.pace import Pace, told_forecast
from orchestrator.pack import Packed, pack
from orchestrator.plan import given_up, last_attempts, make_plan, unmeasured
from orchestrator.progress import View
from orchestrator.search import refuse_unsearchable
from orchestrator.search.record import Searching
from orchestrator.settings import Cluster, Kind, Mode
from orchestrator.shortage import Node, mixed_types
from storage.interrupted import INTERRUPTED
from storage.places import place_of
from storage.rows import NOT_MEASURED, CellResult, CellRow, History
from storage.runs import RunStore, history_of


def reconcile(sweep: Sweep, command: Sequence[str], console: Console) -> int:
    """Bring the run to what the sweep asks for, or say what that would take; the exit code."""
    cells = expand(sweep.points, sweep.grid)
    refuse_unsearchable(cells, sweep.search)
    searching = Searching(cells, sweep.search)
    folder = place_of(sweep.run.dir) / sweep.run.name
    refuse_unfit_prompts(cells)
    if sweep.mode is Mode.plan:
        return _tell_plan(sweep, searching, history_of(folder), console)
    invocation_id = secrets.token_hex(4)
    history = history_of(folder)
    left = make_plan(cells, history, sweep.limits, invocation_id, expectation(cells, history))
    deployments = [session.deployment for session in left]
    refuse_impossible_here(sweep.cluster, deployments)
    refuse_absent_models(sweep.cluster, deployments)
    with RunStore.create(folder, sweep_text(sweep, command, invocation_id, len(cells), searching.id)) as store:
        interrupted = Reconciliation(sweep, searching, store, invocation_id, console).run()
    code = conclude(folder, searching.choice.cells, command, console, [*searching.told()])
    return INTERRUPTED if interrupted else code


class Reconciliation:
    """The loop: while there is a plan, run it and record what comes."""

    def __init__(self, sweep: Sweep, searching: Searching, store: RunStore, invocation_id: str, console: Console) -> None:
        self.sweep = sweep
        self.searching = searching
        self.store = store
        self.invocation_id = invocation_id
        self.console = console
        self.read = reading_once()
        self.stranded: dict[str, str] = {}  # deployments for which no node came: id → why

    @property
    def cells(self) -> Sequence[Cell]:
        """Those that are to be measured, so far as that is known: what a search leaves out is not among them."""
        return self.searching.choice.cells

    def run(self) -> bool:
        """Until nothing is left to do; True when a signal ended it before."""
        plan = self.plan()
        if not plan:
            self.console.print("Everything is already measured.")
            return False
        n_cells = sum(len(session.orders) for session in plan)
        self.say(f"{counted(n_cells, 'cell')} to measure in {counted(len(plan), 'session')}. Starting Ray.")
        with Interrupts() as interrupts:
            interrupts.on_press = self.say
            try:
                self.run_plans(plan, interrupts)
            except RayDidNotStart:
                if not interrupts.level:  # else a signal reached it too
                    raise
        if not interrupts.level:
            self.record_given_up()
        return interrupts.level > 0

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def run_plans(self, plan: list[SessionSpec], interrupts: Interrupts) -> None:
        from orchestrator.schedule import Scheduler, connected  # only a run that has something to do pays for Ray

        with ExitStack() as stack:
            scratch = stack.enter_context(connected(self.sweep.cluster))
            interrupts.listen()
            view = stack.enter_context(self.view(plan))
            scheduler = Scheduler(lambda: interrupts.level, view.watch, scratch, self.sweep.cluster, view.note)
            stack.enter_context(scheduler)
            interrupts.on_press = view.note
            scheduler.refuse_impossible(plan)
            nodes = scheduler.nodes or nodes_to_come(self.sweep.cluster)
            pace = Pace(packed := self.packed(plan, nodes), nodes)
            view.note(told_forecast(packed))
            if mixed := mixed_types((session.deployment for session in plan), nodes):
                view.note(mixed)
            while packed.sessions and not interrupts.level:
                for event in scheduler.run(packed.sessions):
                    self.record(event)
                    view.show(event)
                    pace.see(event)
                self.stranded = scheduler.stranded
                packed = self.packed(self.plan(), scheduler.nodes)
                view.add(self.cells, self.expected_s(packed.sessions))
                pace.add(packed)
            view.note(pace.told())

    def plan(self) -> list[SessionSpec]:
        history = self.store.history()
        self.search(history)
        cells = [cell for cell in self.cells if cell.deployment.id not in self.stranded]
        return make_plan(cells, history, self.sweep.limits, self.invocation_id, expectation(self.cells, history, self.read))

    def search(self, history: History) -> None:
        """What to measure may grow with what is measured; every decision is written."""
        given = given_up(self.searching.cells, history, self.sweep.limits, self.invocation_id)
        left = {cell.id for cell in unmeasured(self.searching.cells, history) if cell.deployment.id not in self.stranded}
        self.searching.look(self.store.folder, {cell.id for cell in self.searching.cells} - (left - {*given}))
        self.store.write_decisions(self.searching.rows())

    def packed(self, plan: Sequence[SessionSpec], nodes: Sequence[Node]) -> Packed:
        return pack(plan, nodes, expectation(self.cells, self.store.history(), self.read))

    def view(self, plan: Sequence[SessionSpec]) -> View:
        return View(self.cells, self.expected_s(plan), self.console)

    def expected_s(self, plan: Sequence[SessionSpec]) -> dict[str, float]:
        """How long each cell of the plan may take, by id."""
        foreseen = expectation(self.cells, self.store.history(), self.read)
        return {order.cell.id: foreseen.cell_s(order.cell) for session in plan for order in session.orders}

    def record(self, event: Event) -> None:
        if isinstance(event, SessionLog):
            self.store.write_log(event.session_id, event.text)
        else:
            self.store.write(event)

    def record_given_up(self) -> None:
        """A cell without a row of this invocation gets one that says why, so that no table hides it."""
        history = self.store.history()
        seen = {attempt.cell_id for attempt in history.attempts if attempt.invocation_id == self.invocation_id}
        left = [cell for cell in unmeasured(self.cells, history) if cell.deployment.id in self.stranded]
        reasons = {cell.id: self.stranded[cell.deployment.id] for cell in left}
        reasons |= given_up(self.cells, history, self.sweep.limits, self.invocation_id)
        tries = last_attempts(history)
        for cell in self.cells:
            if cell.id in reasons and cell.id not in seen:
                row = not_measured(cell, tries.get(cell.id, 0) + 1, self.invocation_id, reasons[cell.id])
                self.store.write(CellResult(row))


def expectation(cells: Sequence[Cell], history: History, read: Read = load_prompts) -> Expectation:
    """What the record foretells; each workload is measured once."""
    known: dict[str, Size] = {}

    def size_of(workload: Workload) -> Size:
        key = repr(workload)
        if key not in known:
            known[key] = Size.of(workload, read(workload))
        return known[key]

    return expect(cells, history, size_of)


def not_measured(cell: Cell, attempt: int, invocation_id: str, why: str) -> CellRow:
    """The row of a cell that no session got to."""
    return CellRow(
        cell_id=cell.id,
        attempt=attempt,
        session_id="",
        invocation_id=invocation_id,
        deployment_id=cell.deployment.id,
        pair_id=cell.pair_id,
        position=0,
        status=NOT_MEASURED,
        cell_json=json.dumps(asdict(cell)),
        started_at=utc_now(),
        error_kind="not_measured",
        error=why,
    )


def sweep_text(sweep: Sweep, command: Sequence[str], invocation_id: str, n_cells: int, search_id: str | None = None) -> str:
    """`sweep.yaml`: who asked for what, when, with which commit; then the resolved configuration."""
    commit, dirty = git_state()
    asked = {
        "id": invocation_id,
        "command": shlex.join(command),
        "started_at": utc_now(),
        "git_commit": commit,
        "git_dirty": dirty,
        "n_cells": n_cells,
        **({"search_id": search_id} if search_id else {}),
    }
    return "invocation:\n" + "".join(f"  {key}: {json.dumps(value)}\n" for key, value in asked.items()) + sweep.text


def _tell_plan(sweep: Sweep, searching: Searching, history: History, console: Console) -> int:
    left = {cell.id for cell in unmeasured(searching.cells, history)}
    folder = place_of(sweep.run.dir) / sweep.run.name
    cells = searching.look(folder, {cell.id for cell in searching.cells} - left).cells
    foreseen = expectation(cells, history)
    plan = make_plan(cells, history, sweep.limits, "plan", foreseen)
    nodes, why_not = _nodes_foreseen(sweep.cluster) if plan else ([], "")
    packed = pack(plan, nodes, foreseen) if nodes else None
    text = describe(sweep.run.name, cells, plan, foreseen, nodes, packed, why_not)
    text = f"{searching.foretold()}\n{text}" if searching.is_on else text
    console.print(text, markup=False, highlight=False, soft_wrap=True)
    return 0


def _nodes_foreseen(cluster: Cluster) -> tuple[list[Node], str]:
    """What the sessions would run on, and why that is not known. Looks at a cluster that is there; starts nothing."""
    if cluster.pools:
        return nodes_to_come(cluster), ""
    if cluster.kind is Kind.local:
        here = this_machine(cluster)
        return ([here], "") if here else ([], "only Ray can tell how many GPUs this machine has: set cluster.num_gpus")
    from orchestrator.schedule import connected, nodes_of

    try:
        with connected(cluster):
            return nodes_of(cluster), ""
    except BadInput as refusal:
        return [], str(refusal)
