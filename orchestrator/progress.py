"""Owns what a person sees while a sweep runs: a live view on a terminal, plain lines elsewhere.

Does not own any number of the answer.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from jobs.control import SessionProgress
from jobs.session import Event
from jobs.spec import Cell, SessionSpec
from orchestrator.labels import cell_labels
from storage.rows import OK, CellResult, SessionRow

REFRESHES_PER_S = 2
QUIET_S = 60.0  # without a terminal: after so long without a line, one that says where everything is


class View:
    """Told of events and of progress; a context manager while it is live."""

    def __init__(self, cells: Sequence[Cell], expected_s: Mapping[str, float], console: Console) -> None:
        """`expected_s`: of each cell that is still to be measured, by id."""
        self._labels = cell_labels(cells)
        self._left = dict(expected_s)
        self._failed: set[str] = set()
        self._sessions: dict[str, tuple[SessionSpec, SessionProgress]] = {}
        self._spent = self._foreseen = 0.0
        self._noted_s = time.monotonic()
        self._console = console
        self._live = (
            Live(console=console, get_renderable=self.render, refresh_per_second=REFRESHES_PER_S, transient=True)
            if console.is_terminal
            else None
        )

    def add(self, cells: Sequence[Cell], expected_s: Mapping[str, float]) -> None:
        """More to measure than was known at the start: a search goes on."""
        self._labels |= cell_labels(cells)
        self._left |= expected_s

    def watch(self, spec: SessionSpec, progress: SessionProgress | None) -> None:
        """How far a session is; None = it has ended."""
        if progress is None:
            self._sessions.pop(spec.session_id, None)
        else:
            self._sessions[spec.session_id] = (spec, progress)
        if self._live is None and time.monotonic() - self._noted_s > QUIET_S:
            self.note(self._where())

    def show(self, event: Event) -> None:
        """What has just been recorded."""
        if isinstance(event, CellResult):
            self._show_cell(event)
        elif isinstance(event, SessionRow) and (event.error or event.ended_s is None):
            self._show_session(event)

    def note(self, text: str) -> None:
        """A line of its own."""
        self._noted_s = time.monotonic()
        self._console.print(Text(f"{time.strftime('%H:%M:%S')}  {text}"), soft_wrap=True)

    def render(self) -> Group:
        """The live view: a bar, the counts, and a line per running session."""
        n, left = len(self._labels), len(self._left)
        done, failed = n - left, len(self._failed)
        head = Text(f"{done} of {n} cells measured, {failed} failed, {left} left{self._time_left()}")
        return Group(ProgressBar(total=n, completed=done, width=60), head, self._table())

    def _where(self) -> str:
        """The counts, and how many sessions are in which phase, as one line."""
        n, left = len(self._labels), len(self._left)
        phases = Counter(progress.phase for _, progress in self._sessions.values())
        told = ", ".join(f"{count} {phase}" for phase, count in phases.items()) or "none runs"
        return f"{n - left} of {n} cells measured, {len(self._failed)} failed{self._time_left()}; sessions: {told}"

    def _show_cell(self, result: CellResult) -> None:
        row = result.cell
        seconds = row.duration_ns / 1e9
        if row.status == OK:
            self._foreseen += self._left.pop(row.cell_id, 0.0)
            self._spent += seconds
            self._failed.discard(row.cell_id)
        else:
            self._failed.add(row.cell_id)
        n, left = len(self._labels), len(self._left)
        said = f"{seconds:.1f} s" if row.status == OK else f"{row.status}: {_first_line(row.error)}"
        self.note(f"[{n - left}/{n}] {self._labels.get(row.cell_id, row.cell_id)}  {said}")

    def _show_session(self, row: SessionRow) -> None:
        if row.status == OK and not row.error:
            version = f" {row.engine_version}" if row.engine_version else ""
            self.note(f"engine{version} is ready after {row.ready_s or 0:.1f} s ({row.session_id})")
        else:
            self.note(f"session {row.session_id} {row.status}, {row.error_kind}: {_first_line(row.error)}")

    def _time_left(self) -> str:
        """As foreseen, corrected by how wrong the forecast has been so far."""
        pace = self._spent / self._foreseen if self._foreseen else 1.0
        seconds = sum(self._left.values()) * pace / max(1, len(self._sessions))
        return f", about {words_of(seconds)} to go" if seconds else ""

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 2))
        for spec, progress in self._sessions.values():
            label = progress.label or f"{spec.deployment.engine.name} {spec.deployment.draft.method}"
            count = f"{progress.done}/{progress.total}" if progress.total else ""
            speed = f"{progress.tokens_per_s:.0f} tokens/s" if progress.tokens_per_s else ""
            table.add_row(progress.phase, label, count, speed)
        return table

    def __enter__(self) -> View:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live:
            self._live.stop()


def words_of(seconds: float) -> str:
    """A duration for the eye."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else ""
