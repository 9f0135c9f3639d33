"""Owns a run's folder: its layout, its one writer, and what the planner needs of it. Does not own metrics or reading.

    results/<run>/sweep.yaml  sessions/  requests/  cells/  scored/  telemetry/  logs/

A try at a cell exists if and only if `cells/<cell_id>-<attempt>.parquet` does: it is written last. Its requests and
telemetry are in files of that name; batches that came while it ran, in `<cell_id>-<attempt>-<part>.parquet`. Every file
appears whole.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import TracebackType

from storage.errors import BadRun, StorageFailed
from storage.files import make_folder, remove, remove_temporaries, write_whole
from storage.lock import LOCK_FILE, RunLock
from storage.redact import redact
from storage.rows import Attempt, CellBatch, CellResult, History, SessionRow, Start
from storage.tables import CELLS, REQUESTS, SCORED, SESSIONS, TELEMETRY, to_parquet
from storage.views import OF_CELLS, open_records, require_run

SWEEP_FILE = "sweep.yaml"
FOLDERS = ("sessions", "requests", "cells", "scored", "telemetry", "logs")
OF_A_TRY = re.compile(r"(?P<name>[^-]+-\d+)(-\d+)?\.parquet")


class RunStore:
    """The one writer of a run. Use it as a context manager, or `close()` it, to let another process write."""

    def __init__(self, folder: Path, lock: RunLock) -> None:
        """Not for callers: `create` and `open` make the folder and take the lock."""
        self.folder = folder
        self._lock = lock

    @classmethod
    def create(cls, folder: Path | str, sweep_yaml_text: str) -> RunStore:
        """Make the run, or go on with the one that is there, with this text as its (redacted) `sweep.yaml`.

        Raises `BadRun` for a folder that holds something else, a newer schema, or a run that another process writes.
        """
        folder = Path(folder)
        _refuse_foreign(folder)
        make_folder(folder)
        lock = RunLock(folder)
        try:
            write_whole(folder / SWEEP_FILE, redact(sweep_yaml_text).encode())
            return cls(folder, lock)._prepared()
        except BaseException:
            lock.release()
            raise

    @classmethod
    def open(cls, folder: Path | str) -> RunStore:
        """Go on with a run that exists. Raises `BadRun` as `create` does, and when there is no run."""
        folder = require_run(Path(folder))
        lock = RunLock(folder)
        try:
            return cls(folder, lock)._prepared()
        except BaseException:
            lock.release()
            raise

    def _prepared(self) -> RunStore:
        for name in FOLDERS:
            make_folder(self.folder / name)
            remove_temporaries(self.folder / name)
        remove_temporaries(self.folder)
        self.history()  # refuses what cannot be read before anything starts
        self._forget_unfinished()
        return self

    def _forget_unfinished(self) -> None:
        """Remove rows of tries that a dead driver did not commit: their numbers will be given again."""
        committed = {path.stem for path in (self.folder / "cells").glob("*.parquet")}
        for kind in OF_CELLS:
            paths = list((self.folder / kind).glob("*.parquet"))
            remove(path for path in paths if (of := OF_A_TRY.fullmatch(path.name)) and of["name"] not in committed)

    def write(self, row: SessionRow | CellBatch | CellResult) -> None:
        """Record a session (a later row of the same session replaces it), a batch of a try, or a try at a cell (once).

        Raises `StorageFailed` when the disk refuses, or when that try is recorded already; no torn file is left.
        """
        if isinstance(row, SessionRow):
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
            write_whole(commit, to_parquet([row.cell], CELLS))

    def _to_commit(self, name: str, *, is_first: bool) -> Path:
        """The file that will commit this try. Before its first rows, what an unfinished one of the same number left goes."""
        commit = self.folder / "cells" / f"{name}.parquet"
        if commit.exists():
            raise StorageFailed(
                f"A try at a cell is recorded once: {commit} exists. Give the new try the next attempt number."
            )
        if is_first:
            for kind in OF_CELLS:
                remove([self.folder / kind / f"{name}.parquet", *(self.folder / kind).glob(f"{name}-*.parquet")])
        return commit

    def _write_rows(self, name: str, rows: CellBatch | CellResult) -> None:
        if rows.requests:
            write_whole(self.folder / "requests" / f"{name}.parquet", to_parquet(rows.requests, REQUESTS))
        if rows.telemetry:
            write_whole(self.folder / "telemetry" / f"{name}.parquet", to_parquet(rows.telemetry, TELEMETRY))

    def write_log(self, session_id: str, text: str) -> str:
        """Keep the (redacted) log of a session's engine; returns its path relative to the run, for `SessionRow.log`."""
        path = self.folder / "logs" / f"{session_id}.log"
        write_whole(path, redact(text).encode(errors="replace"))
        return path.relative_to(self.folder).as_posix()

    def history(self) -> History:
        """What is recorded so far, for the planner."""
        return history_of(self.folder)

    def close(self) -> None:
        """Let another process write. Closing twice is fine."""
        self._lock.release()

    def __enter__(self) -> RunStore:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def history_of(folder: Path | str) -> History:
    """What is recorded of a run, without the right to write into it; an empty history when there is no such folder yet."""
    folder = Path(folder)
    if not folder.exists():
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


def _refuse_foreign(folder: Path) -> None:
    """An absent or empty folder may become a run, and a run may go on; anything else is somebody's."""
    if folder.exists() and _content(folder):
        require_run(folder)


def _content(folder: Path) -> list[str]:
    """What is in the folder but the traces of a driver that died while it made the run."""
    try:
        return [path.name for path in folder.iterdir() if not path.name.startswith((LOCK_FILE, f".{SWEEP_FILE}"))]
    except OSError as error:
        raise BadRun(f"A run must be a readable folder: got {error.strerror} at {folder}. Choose another folder.") from error
