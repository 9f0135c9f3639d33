"""Owns a run's folder: its layout, its one writer, and what the planner needs of it. Does not own metrics or reading.

    results/<run>/sweep.yaml  sessions/  requests/  cells/  scored/  telemetry/  decisions/  logs/  [compacted.json]

A try at a cell exists if and only if `cells/<cell_id>-<attempt>.parquet` does, or a merged file that holds it
(`storage.parts`): it is written last. Its requests and
telemetry are in files of that name; batches that came while it ran, in `<cell_id>-<attempt>-<part>.parquet`. Every file
appears whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType

from storage.errors import BadInput, BadRun, StorageFailed
from storage.files import make_folder, refusals_of, remove, remove_empty, remove_temporaries, write_whole
from storage.lock import LOCK_FILE, Lock, lock_run
from storage.parts import MANIFEST, Parts, is_compacted, name_of_try, parts_of
from storage.places import Place, place_of
from storage.redact import redact
from storage.rows import Attempt, CellBatch, CellResult, DecisionRow, History, SessionRow, Start
from storage.tables import CELLS, DECISIONS, REQUESTS, SCHEMAS, SCORED, SESSIONS, TELEMETRY, to_parquet
from storage.views import OF_CELLS, open_records, require_run

SWEEP_FILE = "sweep.yaml"
FOLDERS = ("sessions", "requests", "cells", "scored", "telemetry", "decisions", "logs")


class RunStore:
    """The one writer of a run. Use it as a context manager, or `close()` it, to let another process write."""

    def __init__(self, folder: Place, lock: Lock) -> None:
        """Not for callers: `create` and `open` make the folder and take the lock."""
        self.folder = folder
        self._lock = lock
        self._tries: set[str] = set()
        self._merged_sessions: frozenset[str] = frozenset()
        self._history: History | None = None  # as it was read; None = something was written since
        # What files held that are put back if the sweep is refused (None = they were not there); None = rows or a log came
        self._before: dict[Place, bytes | None] | None = None

    @classmethod
    def create(cls, folder: Place | str, sweep_yaml_text: str) -> RunStore:
        """Make the run, or go on with the one that is there, with this text as its (redacted) `sweep.yaml`.

        Raises `BadRun` for a folder that holds something else, a newer schema, or a run that another process writes.
        """
        folder = place_of(folder)
        _sweep_before(folder)  # what is somebody's is not touched
        make_folder(folder)
        store = cls(folder, lock_run(folder))
        try:
            sweep = _sweep_before(folder)  # again: until it was ours, another driver may have begun and ended
            store._before = {folder / SWEEP_FILE: sweep}
            if sweep is None:
                store._before[folder / LOCK_FILE] = None
            write_whole(folder / SWEEP_FILE, redact(sweep_yaml_text).encode())
            return store._prepared()
        except BaseException as error:
            store.close(error)
            raise

    @classmethod
    def open(cls, folder: Place | str) -> RunStore:
        """Go on with a run that exists. Raises `BadRun` as `create` does, and when there is no run."""
        folder = require_run(place_of(folder))
        store = cls(folder, lock_run(folder))
        try:
            return store._prepared()
        except BaseException:
            store.close()
            raise

    def _prepared(self) -> RunStore:
        for name in FOLDERS:
            make_folder(self.folder / name)
            remove_temporaries(self.folder / name)
        remove_temporaries(self.folder)
        self.history()  # refuses what cannot be read before anything starts
        parts = parts_of(self.folder, ("cells",))
        self._tries, self._merged_sessions = set(parts.tries), parts.manifest.sessions
        remove_leftovers(self.folder, parts)
        return self

    def write(self, row: SessionRow | CellBatch | CellResult) -> None:
        """Record a session (a later row of the same session replaces it), a batch of a try, or a try at a cell (once).

        Raises `StorageFailed` when the disk refuses, or when that try is recorded already; no torn file is left.
        """
        self._lock.require()
        self._before = None
        if not isinstance(row, CellBatch):
            self._history = None
        if isinstance(row, SessionRow):
            if row.session_id in self._merged_sessions:
                raise StorageFailed(
                    f"A session that was compacted stays as it is: {row.session_id} is in {self.folder / MANIFEST}."
                )
            write_whole(self.folder / "sessions" / f"{row.session_id}.parquet", to_parquet([row], SESSIONS))
        elif isinstance(row, CellBatch):
            name = f"{row.cell_id}-{row.attempt}"
            self._to_commit(name, is_first=row.part == 0)
            self._write_rows(f"{name}-{row.part}", row)
        else:
            name = f"{row.cell.cell_id}-{row.cell.attempt}"
            commit = self._to_commit(name, is_first=row.n_batches == 0)
            self._write_rows(name, row)
            if row.scored:
                write_whole(self.folder / "scored" / f"{name}.parquet", to_parquet(row.scored, SCORED))
            self._lock.require()
            write_whole(commit, to_parquet([row.cell], CELLS))
            self._tries.add(name)

    def _to_commit(self, name: str, *, is_first: bool) -> Place:
        """The file that will commit this try. Before its first rows, what an unfinished one of the same number left goes."""
        commit = self.folder / "cells" / f"{name}.parquet"
        if name in self._tries:
            raise StorageFailed(
                f"A try at a cell is recorded once: {commit} was written. Give the new try the next attempt number."
            )
        if is_first:
            for kind in OF_CELLS:
                with refusals_of(self.folder / kind):
                    remove(path for path in (self.folder / kind).glob(f"{name}*.parquet") if name_of_try(path.name) == name)
        return commit

    def _write_rows(self, name: str, rows: CellBatch | CellResult) -> None:
        if rows.requests:
            write_whole(self.folder / "requests" / f"{name}.parquet", to_parquet(rows.requests, REQUESTS))
        if rows.telemetry:
            write_whole(self.folder / "telemetry" / f"{name}.parquet", to_parquet(rows.telemetry, TELEMETRY))

    def write_decisions(self, rows: Sequence[DecisionRow]) -> None:
        """Keep what a search has decided so far, in place of what it had before. Nothing for no rows."""
        self._lock.require()
        if rows:
            path = self.folder / "decisions" / f"{rows[0].search_id}.parquet"
            if self._before is not None and path not in self._before:
                self._before[path] = _bytes_of(path)
            write_whole(path, to_parquet(rows, DECISIONS))

    def write_log(self, session_id: str, text: str) -> str:
        """Keep the (redacted) log of a session's engine; returns its path relative to the run, for `SessionRow.log`."""
        self._before = None
        path = self.folder / "logs" / f"{session_id}.log"
        write_whole(path, redact(text).encode(errors="replace"))
        return f"logs/{path.name}"

    def history(self) -> History:
        """What is recorded so far, for the planner. Read again only after a write: that of 10,000 cells takes long."""
        if self._history is None:
            self._history = history_of(self.folder)
        return self._history

    def close(self, error: BaseException | None = None) -> None:
        """Let another process write. Closing twice is fine.

        After a `BadInput` before any row or log, what was written since `create` goes, and what it replaced is put back.
        """
        if isinstance(error, BadInput) and self._before is not None:
            with suppress(StorageFailed):  # the mistake is to be told
                self._take_back(self._before)
        self._lock.release()

    def _take_back(self, before: Mapping[Place, bytes | None]) -> None:
        remove(path for path, content in before.items() if content is None)
        for path, content in before.items():
            if content is not None:
                write_whole(path, content)
        if before[self.folder / SWEEP_FILE] is None:
            remove_empty([*(self.folder / name for name in FOLDERS), self.folder])

    def __enter__(self) -> RunStore:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close(error)


def history_of(folder: Place | str) -> History:
    """What is recorded of a run, without the right to write into it; an empty history when there is no such folder yet."""
    folder = place_of(folder)
    if not _is_there(folder):
        return History()
    with open_records([folder]) as runs:
        attempts = runs.execute(
            "SELECT cell_id, attempt, invocation_id, deployment_id, status, duration_ns / 1e9 "
            "FROM recorded_cells ORDER BY started_at, cell_id, attempt"
        ).fetchall()
        starts = runs.execute(
            "SELECT session_id, invocation_id, deployment_id, status, ready_s "
            "FROM recorded_sessions ORDER BY started_at, session_id"
        ).fetchall()
    return History(tuple(Attempt(*row) for row in attempts), tuple(Start(*row) for row in starts))


def remove_leftovers(folder: Place, parts: Parts) -> None:
    """Remove what counts no more. Only for the owner of the run.

    That is rows of tries that a dead driver did not commit, since their numbers will be given again, and files that a
    compaction merged, or that it did not get to commit.
    """
    for kind in SCHEMAS:
        merged = parts.manifest.files.get(kind, ())
        with refusals_of(folder / kind):
            paths: list[Place] = [*(folder / kind).glob("*.parquet")]
        for path in paths:
            name = path.stem if kind == "sessions" else name_of_try(path.name)
            is_merged = name in (parts.manifest.sessions if kind == "sessions" else parts.manifest.tries)
            is_unfinished = kind in OF_CELLS and name is not None and name not in parts.tries
            if is_merged or is_unfinished or (is_compacted(path.name) and path.name not in merged):
                remove([path])


def _is_there(folder: Place) -> bool:
    try:
        return folder.exists()
    except OSError as error:
        raise BadRun(f"A run must be a readable folder: got {error.strerror} at {folder}. Choose another folder.") from error


def _sweep_before(folder: Place) -> bytes | None:
    """The `sweep.yaml` of a run that may go on; None for an absent or empty folder. `BadRun` for what is somebody's."""
    return _bytes_of(require_run(folder) / SWEEP_FILE) if _is_there(folder) and _is_used(folder) else None


def _bytes_of(path: Place) -> bytes | None:
    with refusals_of(path):
        return path.read_bytes() if path.is_file() else None


def _is_used(folder: Place) -> bool:
    """Whether there is more in the folder than the traces of a driver that was refused, or died, while it made the run."""
    traces = (LOCK_FILE, f".{SWEEP_FILE}")
    try:
        return any(not path.name.startswith(traces) and path.exists() for path in folder.iterdir())
    except OSError as error:
        raise BadRun(f"A run must be a readable folder: got {error.strerror} at {folder}. Choose another folder.") from error
