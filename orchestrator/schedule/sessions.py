"""Owns the way of sessions through Ray: admitted by the ledger, run by a worker each, results streamed back in any order.

Does not own what a session does (`jobs.session`) or what is written. One of the two places where errors become rows: here,
that an actor or a node died.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import ray

from jobs.control import SessionProgress
from jobs.engines.lifeline import GRACE_S
from jobs.measure import new_row as new_cell_row
from jobs.session import Event, SessionLog, SessionSite, end_of
from jobs.session import new_row as new_session_row
from jobs.spec import SessionSpec
from orchestrator.doubts import Doubts
from orchestrator.here import nodes_to_come
from orchestrator.interrupts import AT_ONCE
from orchestrator.ledger import Demand, Ledger, Node, Seats, Waiting
from orchestrator.schedule.nodes import Fleet
from orchestrator.schedule.ranks import first_line
from orchestrator.schedule.running import Running
from orchestrator.schedule.workers import Workers, refuse_environments
from orchestrator.settings import Cluster
from orchestrator.shortage import shortage
from storage.rows import FAILED, CellBatch, CellResult, SessionRow

TICK_S = 0.5  # how long an event, a signal or a progress may wait
PLACE_LIMIT_S = 60.0  # for Ray to start a worker where the ledger has room; then it is said who else may have that room
STOP_LIMIT_S = 30.0  # for an engine to end; longer than its own TERM → KILL takes

Watch = Callable[[SessionSpec, SessionProgress | None], None]
"""Told how far a session is; None = it has ended."""


class Scheduler:
    """Runs plans on a connected Ray; a context manager that no session outlives."""

    def __init__(
        self,
        stop_level: Callable[[], int],
        watch: Watch,
        scratch: Path | None,
        cluster: Cluster | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`stop_level`: 0 = go on, 1 = finish the running cells, 2 = stop at once. `scratch`: where sessions of this very
        machine put files; None = each node its own folder. `say`: told what a person should know, in a line."""
        self.stranded: dict[str, str] = {}  # deployments that waited too long for a node: id → why
        self._stop_level = stop_level
        self._watch = watch
        self._scratch = scratch
        self._cluster = cluster or Cluster()
        self._say = say
        self._fleet = Fleet(self._cluster)
        self._ledger = Ledger(self._fleet.nodes())
        self._lacking: dict[Demand, float] = {}  # what no node could hold any more, since when
        self._waiting = Waiting(())
        self._workers = Workers()
        self._running: list[Running] = []
        self._doubts = Doubts()
        self._settling: list[tuple[float, Seats]] = []  # of lost workers, until when: lifelines of engines are at work there
        self._at_once_since: float | None = None  # when the second stop was seen

    @property
    def nodes(self) -> list[Node]:
        """The cluster when it was last looked at."""
        return self._ledger.nodes

    def refuse_impossible(self, plan: Sequence[SessionSpec]) -> None:
        """`BadInput` for an environment that Ray refuses, or a session that no node could hold, be it of `cluster.pools`."""
        refuse_environments(plan)
        self._ledger.refuse_impossible((spec.deployment for spec in plan), nodes_to_come(self._cluster))

    def run(self, plan: Sequence[SessionSpec]) -> Iterator[Event]:
        """Every event of every session, as it comes; ends when all sessions have, or were told to stop.

        A session that is told to stop at once may be where it cannot hear that, in a download: `close` kills what is left.
        """
        self._waiting = waiting = Waiting(plan)
        while (self._running or (len(waiting) and not self._stop_level())) and not self._is_out_of_patience():
            self._admit(waiting)
            yield from self._events()
            yield from self._give_up_groups()
            self._ask_progress()
            yield from self._move_held()
            self._pass_on_stop()

    def _is_out_of_patience(self) -> bool:
        if self._stop_level() < AT_ONCE:
            return False
        self._at_once_since = self._at_once_since or time.monotonic()
        return time.monotonic() - self._at_once_since > STOP_LIMIT_S

    def close(self) -> None:
        """Stop what runs, engines first: an actor killed before its engine would leave that to the lifeline."""
        stops = [running.worker.stop(True) for running in self._running]
        if stops:
            ray.wait(stops, num_returns=len(stops), timeout=STOP_LIMIT_S)
        for running in self._running:
            running.worker.kill()
        self._running.clear()
        self._workers.release()

    def __enter__(self) -> Scheduler:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _admit(self, waiting: Waiting) -> None:
        now_s = time.monotonic()
        if not len(waiting) or self._stop_level():
            self._workers.release()
            return
        self._settle(now_s)
        self._ledger.refresh(self._fleet.nodes(), self._doubts.at(now_s))
        self._strand(waiting, now_s)
        while found := self._ledger.next(waiting, now_s):
            self._running.append(self._start(*found))
        self._workers.release()

    def _settle(self, now_s: float) -> None:
        for until_s, seats in self._settling:
            if until_s <= now_s:
                self._ledger.release(seats)
        self._settling = [item for item in self._settling if item[0] > now_s]

    def _strand(self, waiting: Waiting, now_s: float) -> None:
        """What no living node could hold is told, waited for, and at last no longer waited for."""
        for demand in waiting.demands:
            why = shortage(waiting.first(demand).deployment, self._ledger.nodes)
            if not why:
                if self._lacking.pop(demand, None) is not None:
                    self._say("There is a node again for what waited.")
                continue
            if demand not in self._lacking:
                self._say(f"Waiting at most {self._cluster.node_wait_s:g} s (cluster.node_wait_s) for a node: {why}")
            if now_s - self._lacking.setdefault(demand, now_s) > self._cluster.node_wait_s:
                told = f"no node came within {self._cluster.node_wait_s:g} s (cluster.node_wait_s): {why}"
                self.stranded.update((spec.deployment.id, told) for spec in waiting.drop(demand))

    def _start(self, spec: SessionSpec, seats: Seats) -> Running:
        worker = self._workers.start(spec, seats, self._site(spec))
        self._watch(spec, SessionProgress("placed"))
        return Running(spec, seats, worker, asked=worker.progress())

    def _site(self, spec: SessionSpec) -> SessionSite:
        name = f"logs/{spec.session_id}.log"
        if self._scratch is None:
            return SessionSite(log_name=name)
        return SessionSite(scratch_root=str(self._scratch), log_path=str(self._log(spec)), log_name=name)

    def _log(self, spec: SessionSpec) -> Path:
        assert self._scratch is not None
        return self._scratch / f"{spec.session_id}.log"

    def _events(self) -> Iterator[Event]:
        if not self._running:
            time.sleep(TICK_S)  # nothing to wait for but a seat that settles, or a node
            return
        streams = [running.worker.stream for running in self._running]
        ray.wait(streams, timeout=TICK_S)
        ready, _ = ray.wait(streams, num_returns=len(streams), timeout=0)  # a busy one keeps no other waiting
        for running in [item for item in self._running if item.worker.stream in ready]:
            yield from self._next_events(running)

    def _next_events(self, running: Running) -> Iterator[Event]:
        try:
            event = ray.get(next(running.worker.stream))
        except StopIteration:
            yield from self._ended(running)
        except ray.exceptions.RayTaskError as error:  # the worker lives: an error of ours
            yield from self._lost(running, "session_error", f"The session must not raise: {first_line(error)}")
        except ray.exceptions.RuntimeEnvSetupError as error:
            why = f"`engine.runtime_env` must give an environment: {first_line(error)}"
            yield from self._lost(running, "environment_failed", why)
        except ray.exceptions.RayError as error:
            if self._never_began(running):
                yield from self._put_back(running)
                return
            yield from self._lost(running, "worker_died", f"The session's worker died: {first_line(error)}")
        else:
            running.n_results += isinstance(event, CellResult)
            running.n_batches = running.n_batches + 1 if isinstance(event, CellBatch) else 0
            running.row = event if isinstance(event, SessionRow) else running.row
            yield event

    def _never_began(self, running: Running) -> bool:
        """Its node, or a worker that was kept, was gone before it: Ray notices that only after a while. That is no try."""
        return running.is_new and (running.worker.is_kept or bool(self._gone(running)))

    def _gone(self, running: Running) -> list[str]:
        """Those of its nodes that have left the cluster."""
        there = {node.id for node in self._fleet.nodes()}
        return [seat.node.name for seat in running.seats if seat.node.id not in there]

    def _give_up_groups(self) -> Iterator[Event]:
        """Of several nodes, Ray waits for ever for one that has gone before its worker was there."""
        starting = [item for item in self._running if item.worker.group is not None and item.row is None]
        for running in starting:
            if self._never_began(running):
                yield from self._put_back(running)
            elif gone := self._gone(running):
                why = f"The engine was starting on several nodes, and {' and '.join(gone)} left the cluster."
                yield from self._lost(running, "worker_died", why)

    def _put_back(self, running: Running, settle_s: float = 0.0) -> Iterator[Event]:
        running.worker.kill()
        self._waiting.put_back(running.spec)
        yield from self._leave(running, settle_s)

    def _ended(self, running: Running) -> Iterator[Event]:
        """It ended by itself. One that told nothing counts as failed, or the plan would never end."""
        if not running.stopping and running.n_results == 0 and (running.row is None or running.row.status != FAILED):
            yield from self._lost(running, "session_ended", "The session ended without a result.")
            return
        if running.has_failed:
            self._doubt(running)
        if running.ended_well:
            self._doubts.trust(running.nodes)
        if running.ended_well and len(self._waiting) and running.worker.group is None:
            self._workers.keep(running.worker, running.spec, running.seats[0])
        else:
            running.worker.kill()
        yield from self._leave(running)

    def _lost(self, running: Running, kind: str, why: str) -> Iterator[Event]:
        """Rows for what cannot tell any more: the session, and the cell that was running (cells run in order)."""
        running.worker.kill()  # it may live, and would keep its seat
        row = running.row or replace(new_session_row(running.spec, SessionSite()), node=running.seats[0].node.name)
        yield replace(row, status=FAILED, error_kind=kind, error=why)
        if running.row is not None and running.row.ended_s is None and running.n_results < len(running.spec.orders):
            order = running.spec.orders[running.n_results]
            cell = new_cell_row(running.spec, order, running.n_results)
            failed = replace(cell, status=FAILED, error_kind=kind, error=why)
            yield CellResult(failed, n_batches=running.n_batches)  # its rows so far are true
        self._doubt(running)
        yield from self._leave(running, settle_s=GRACE_S + 1)  # its engine's lifeline is at work

    def _doubt(self, running: Running) -> None:
        told = self._doubts.fail(running.nodes, running.spec.deployment.id, time.monotonic())
        if told and self._ledger.has_choice(running.spec.deployment):
            self._say(told)

    def _leave(self, running: Running, settle_s: float = 0.0) -> Iterator[Event]:
        self._running.remove(running)
        self._settling.append((time.monotonic() + settle_s, running.seats))
        self._settle(time.monotonic())
        self._watch(running.spec, None)
        if self._scratch is not None and self._log(running.spec).exists():
            with self._log(running.spec).open("rb") as log:
                yield SessionLog(running.spec.session_id, end_of(log))
            self._log(running.spec).unlink(missing_ok=True)

    def _move_held(self) -> Iterator[Event]:
        """Another job may hold what the ledger thinks free: who waits for long goes where there is room, if there is."""
        now_s = time.monotonic()
        for running in [item for item in self._running if item.is_new and now_s - item.placed_s > PLACE_LIMIT_S]:
            if not running.was_told:
                running.was_told = True
                self._say(running.not_up())
            running.placed_s = now_s
            if running.spec.deployment.engine.runtime_env:
                continue  # it is being built
            self._doubts.hold(running.nodes, now_s)
            self._ledger.refresh(self._fleet.nodes(), self._doubts.at(now_s))
            if self._ledger.has_trusted_room(running.spec.deployment):
                yield from self._put_back(running, settle_s=GRACE_S + 1)  # it may have begun a moment ago

    def _ask_progress(self) -> None:
        for running in self._running:
            if running.asked is None:
                running.asked = running.worker.progress()
            elif ray.wait([running.asked], timeout=0)[0]:
                self._take_progress(running)

    def _take_progress(self, running: Running) -> None:
        answer, running.asked = running.asked, None
        try:
            self._watch(running.spec, ray.get(answer))
            running.is_up = True
        except ray.exceptions.RayError:
            return  # the worker is gone; its stream tells

    def _pass_on_stop(self) -> None:
        """A session that still starts has no cell to finish: it is stopped at once."""
        for running in self._running:
            level = self._stop_level()
            level = AT_ONCE if level and running.row is None else level
            if level > running.stopping:
                running.stopping = level
                running.worker.stop(level == AT_ONCE)
