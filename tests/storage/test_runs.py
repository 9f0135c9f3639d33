"""The run folder: one writer, whole files, the cell row last, and the history for the planner."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from recorded import create_cell, create_request, create_row, create_session, record

from storage import files, runs
from storage.errors import BadRun, StorageFailed
from storage.rows import (
    FAILED,
    SCHEMA_VERSION,
    Attempt,
    CellBatch,
    CellResult,
    CellRow,
    History,
    RequestRow,
    ScoredRow,
    SessionRow,
    Start,
    TelemetryRow,
)
from storage.runs import RunStore, history_of
from storage.tables import CELLS, REQUESTS, SCORED, SESSIONS, TELEMETRY, to_parquet
from storage.views import open_runs

ROOT = Path(__file__).parents[2]
HOLDER = (
    "import sys; sys.path[:0] = ['.']; from storage.runs import RunStore; "
    "store = RunStore.create(sys.argv[1], 'a: 1'); print('held', flush=True); "
)


@pytest.mark.parametrize(
    ("kind", "schema"),
    [
        pytest.param(SessionRow, SESSIONS, id="sessions"),
        pytest.param(CellRow, CELLS, id="cells"),
        pytest.param(RequestRow, REQUESTS, id="requests"),
        pytest.param(ScoredRow, SCORED, id="scored"),
        pytest.param(TelemetryRow, TELEMETRY, id="telemetry"),
    ],
)
def test_a_schema_has_the_fields_of_its_row_in_the_same_order(kind, schema) -> None:
    assert schema.names == [item.name for item in fields(kind)]


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    row = create_row(
        create_cell("ngram", 3),
        counters_before={"drafts": 1.0},
        counters_after={"drafts": 9.0},
        late_send_ns=np.array([5, 7]),
    )
    request = create_request(row, tokens=(1, 2, 3), drafted=(0, 3, 3), accepted=(0, 1, 2))
    sample = TelemetryRow(row.cell_id, 1, 5, "cpu", utilisation=0.5)
    record(tmp_path / "run", CellResult(row, [request], [sample]), create_session(row, gpus_json="[]"))

    with open_runs([tmp_path / "run"]) as runs:
        recorded = runs.execute("SELECT counters_after['drafts'], late_send_ns FROM recorded_cells").fetchall()
        steps = runs.execute("SELECT chunk_gap_ns, chunk_tokens, step_accepted, output_ids FROM requests").fetchall()
        samples = runs.execute("SELECT run, device, utilisation, power_w FROM telemetry").fetchall()

    assert recorded == [(9.0, [5, 7])]
    assert steps == [([100_000_000, 10_000_000, 10_000_000], [1, 2, 3], [0, 1, 2], [0, 1, 2, 3, 4, 5])]
    assert samples == [("run", "cpu", 0.5, None)]


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint32], ids=["int64", "int32", "uint32"])
def test_lists_may_be_numpy_arrays(tmp_path: Path, kind: type) -> None:
    row = create_row(create_cell())
    request = create_request(
        row, chunk_gap_ns=np.array([3, 2**30], kind), chunk_tokens=np.array([1, 2], kind), output_ids=np.array([5], kind)
    )
    record(tmp_path / "run", CellResult(row, [request]))

    read = pq.read_table(tmp_path / "run" / "requests" / f"{row.cell_id}-1.parquet").to_pylist()[0]

    assert (read["chunk_gap_ns"], read["chunk_tokens"], read["output_ids"]) == ([3, 2**30], [1, 2], [5])


def test_a_chunk_takes_at_most_five_bytes() -> None:
    random = np.random.default_rng(0)
    row = create_row(create_cell("ngram", 3))
    requests = [
        create_request(
            row,
            index,
            chunk_gap_ns=random.normal(30e6, 3e6, 400).astype(np.int64),
            chunk_tokens=random.integers(1, 5, 400),
            step_drafted=np.full(400, 3),
            step_accepted=random.integers(0, 4, 400),
            output_ids=[],
        )
        for index in range(60)
    ]

    assert len(to_parquet(requests, REQUESTS)) / (60 * 400) < 5


def test_a_later_row_of_a_session_replaces_the_earlier_one(tmp_path: Path) -> None:
    row = create_row(create_cell())
    record(tmp_path / "run", create_session(row, ended_s=None), create_session(row, ended_s=9.0))

    with open_runs([tmp_path / "run"]) as runs:
        assert runs.execute("SELECT ended_s FROM sessions").fetchall() == [(9.0,)]


def test_a_try_is_recorded_once(tmp_path: Path) -> None:
    row = create_row(create_cell())
    with RunStore.create(tmp_path / "run", "") as store:
        store.write(CellResult(row))
        with pytest.raises(StorageFailed, match="A try at a cell is recorded once"):
            store.write(CellResult(row))


def test_history_tells_the_planner_of_every_try_and_start(tmp_path: Path) -> None:
    cell = create_cell()
    row = create_row(cell, status=FAILED, duration_ms=500)
    folder = record(tmp_path / "run", create_session(row), CellResult(row), CellResult(create_row(cell, attempt=2)))

    assert history_of(folder) == History(
        (
            Attempt(cell.id, 1, "invocation", cell.deployment.id, "failed", 0.5),
            Attempt(cell.id, 2, "invocation", cell.deployment.id, "ok", 1.0),
        ),
        (Start(row.session_id, "invocation", cell.deployment.id, "ok", 2.0),),
    )


def test_history_is_read_again_only_when_something_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[object] = []
    real = runs.history_of
    monkeypatch.setattr(runs, "history_of", lambda folder: read.append(folder) or real(folder))
    with RunStore.create(tmp_path / "run", "grid: test\n") as store:
        assert [len(store.history().attempts) for _ in range(3)] == [0] * 3
        store.write(CellResult(row := create_row(create_cell())))
        assert [len(store.history().attempts) for _ in range(3)] == [1] * 3
        store.write(create_session(row))
        assert [len(store.history().starts) for _ in range(3)] == [1] * 3
    assert len(read) == 3


def test_a_run_that_does_not_exist_has_no_history_and_is_not_made(tmp_path: Path) -> None:
    assert history_of(tmp_path / "run") == History()
    assert not (tmp_path / "run").exists()


def test_a_reader_needs_no_lock(tmp_path: Path) -> None:
    with RunStore.create(tmp_path / "run", "") as store:
        assert history_of(store.folder) == History()


def test_create_goes_on_with_the_run_that_is_there(tmp_path: Path) -> None:
    row = create_row(create_cell())
    record(tmp_path / "run", CellResult(row), sweep="a: 1\n")

    with RunStore.create(tmp_path / "run", "a: 2\n") as store:
        assert [attempt.cell_id for attempt in store.history().attempts] == [row.cell_id]
    assert (tmp_path / "run" / "sweep.yaml").read_text() == "a: 2\n"


def test_secrets_reach_no_file(tmp_path: Path) -> None:
    secret = "s3cr3t-value"
    row = create_row(create_cell(), error=f"HF_TOKEN={secret}")
    with RunStore.create(tmp_path / "run", f"hf_token: {secret}\n") as store:
        store.write(CellResult(row, [create_request(row, error=f"Authorization: Bearer {secret}")]))
        store.write(
            create_session(row, effective_config_json=f'{{"api_key": "{secret}"}}', error=f"https://me:{secret}@host")
        )
        log = store.write_log("s1", f"started with --api-key {secret}")

    assert (tmp_path / "run" / log).read_text() == "started with --api-key REDACTED"
    with open_runs([tmp_path / "run"]) as runs:
        for table in ("recorded_cells", "recorded_requests", "recorded_sessions"):
            assert secret not in str(runs.execute(f"FROM {table}").fetchall())
    assert secret not in (tmp_path / "run" / "sweep.yaml").read_text()


# ------------------------------------------------------------------------------------------------------------- batches


def batch_of(row: CellRow, part: int, *indices: int) -> CellBatch:
    """Requests, and a sample of telemetry at each."""
    samples = [TelemetryRow(row.cell_id, row.attempt, index, "cpu") for index in indices]
    return CellBatch(row.cell_id, row.attempt, part, [create_request(row, index) for index in indices], samples)


def result_of(row: CellRow, *indices: int, n_batches: int = 0) -> CellResult:
    rows = batch_of(row, 0, *indices)
    return CellResult(row, rows.requests, rows.telemetry, n_batches)


def read(folder: Path) -> list[tuple[str, int, list[int], list[int]]]:
    """Of each try with rows: its cell, its number, its requests, its samples."""
    with open_runs([folder]) as runs:
        return runs.execute(
            "SELECT cell_id, attempt, list(index ORDER BY index), "
            "(SELECT list(t_ns ORDER BY t_ns) FROM recorded_telemetry t "
            "WHERE (t.cell_id, t.attempt) = (r.cell_id, r.attempt)) FROM recorded_requests r GROUP BY ALL ORDER BY ALL"
        ).fetchall()


def test_the_rows_of_a_cell_are_those_of_its_batches_and_of_its_result(tmp_path: Path) -> None:
    row = create_row(create_cell())
    folder = record(tmp_path / "run", batch_of(row, 0, 0, 1), batch_of(row, 1, 2), result_of(row, 3, n_batches=2))

    assert read(folder) == [(row.cell_id, 1, [0, 1, 2, 3], [0, 1, 2, 3])]
    assert sorted(path.name for path in (folder / "requests").iterdir()) == [
        f"{row.cell_id}-1-0.parquet",
        f"{row.cell_id}-1-1.parquet",
        f"{row.cell_id}-1.parquet",
    ]


def test_what_a_running_cell_has_so_far_is_in_no_view(tmp_path: Path) -> None:
    done, running = create_row(create_cell()), create_row(create_cell("ngram", 3))
    folder = record(tmp_path / "run", result_of(done, 0), batch_of(running, 0, 1, 2))

    assert read(folder) == [(done.cell_id, 1, [0], [0])]
    with open_runs([folder]) as runs:
        assert runs.execute("SELECT count(*) FROM requests").fetchall() == [(1,)]
        assert runs.execute("SELECT count(*) FROM telemetry").fetchall() == [(1,)]


def test_the_next_driver_removes_the_rows_of_unfinished_tries_and_no_others(tmp_path: Path) -> None:
    row, other = create_row(create_cell()), create_row(create_cell("ngram", 3))
    second, eleventh = create_row(create_cell(), attempt=2), create_row(create_cell(), attempt=11)
    folder = record(
        tmp_path / "run",
        *(batch_of(row, 0, 0), result_of(row, 1, n_batches=1)),
        *(batch_of(second, 0, 5), batch_of(second, 1, 6)),
        *(batch_of(eleventh, 0, 7), result_of(eleventh, 8, n_batches=1)),
        batch_of(other, 0, 9),
    )
    (folder / "requests" / "notes.parquet").write_bytes(b"somebody's")

    RunStore.open(folder).close()

    kept = [f"{row.cell_id}-1-0.parquet", f"{row.cell_id}-1.parquet"]
    kept += [f"{row.cell_id}-11-0.parquet", f"{row.cell_id}-11.parquet"]
    assert sorted(path.name for path in (folder / "requests").iterdir()) == [*kept, "notes.parquet"]
    assert sorted(path.name for path in (folder / "telemetry").iterdir()) == kept


def test_a_reader_removes_nothing(tmp_path: Path) -> None:
    row = create_row(create_cell())
    with RunStore.create(tmp_path / "run", "") as store:
        store.write(batch_of(row, 0, 0))
        assert history_of(store.folder) == History()
        store.write(result_of(row, n_batches=1))
        assert read(store.folder) == [(row.cell_id, 1, [0], [0])]


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        pytest.param([], [8], id="by a small one"),
        pytest.param([(0, [5])], [5, 8], id="by one with fewer batches"),
        pytest.param([(0, [5]), (1, [6]), (2, [7])], [5, 6, 7, 8], id="by one with more batches"),
    ],
)
def test_an_unfinished_try_leaves_nothing_to_the_next_of_its_number(
    tmp_path: Path, batches: list[tuple[int, list[int]]], expected: list[int]
) -> None:
    row, neighbour = create_row(create_cell()), create_row(create_cell(), attempt=10)
    unfinished = [batch_of(row, 0, 0), batch_of(row, 1, 1)]
    again = [batch_of(row, part, *indices) for part, indices in batches]

    folder = record(
        tmp_path / "run",
        *(batch_of(neighbour, 0, 3), result_of(neighbour, 4, n_batches=1)),
        *unfinished,
        *again,
        result_of(row, 8, n_batches=len(again)),
    )

    assert read(folder) == [(row.cell_id, 1, expected, expected), (row.cell_id, 10, [3, 4], [3, 4])]


def test_no_batch_comes_after_its_try_is_recorded(tmp_path: Path) -> None:
    row = create_row(create_cell())
    with RunStore.create(tmp_path / "run", "") as store:
        store.write(result_of(row, 0))
        with pytest.raises(StorageFailed, match="A try at a cell is recorded once"):
            store.write(batch_of(row, 0, 1))
    assert read(tmp_path / "run") == [(row.cell_id, 1, [0], [0])]


# ------------------------------------------------------------------------------------------------------------ refusals


def test_a_folder_that_is_no_run_is_refused_with_the_runs_nearby(tmp_path: Path) -> None:
    record(tmp_path / "results" / "good")
    (tmp_path / "results" / "notes.txt").write_text("mine")

    with pytest.raises(BadRun, match=r"A run is a folder with sweep.yaml and cells/: got .*results\. Runs there: .*good"):
        RunStore.open(tmp_path / "results")
    with pytest.raises(BadRun, match="A run is a folder"):
        RunStore.create(tmp_path / "results", "")


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")

    with pytest.raises(BadRun, match="A run must be a readable folder: got Not a directory"):
        RunStore.create(tmp_path / "run", "")


def test_a_run_that_does_not_exist_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(BadRun, match=r"A run must exist: got .*There is no run in"):
        RunStore.open(tmp_path / "run")


def test_an_unreadable_folder_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = record(tmp_path / "run")

    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(BadRun, match="A run must be a readable folder: got Permission denied"):
        RunStore.open(folder)


def test_a_newer_schema_is_refused_by_the_driver_and_by_the_reader(tmp_path: Path) -> None:
    folder = record(tmp_path / "run", CellResult(create_row(create_cell(), schema_version=SCHEMA_VERSION + 1)))

    with pytest.raises(BadRun, match=f"got schema {SCHEMA_VERSION + 1} in run. This SpecSweep reads up to {SCHEMA_VERSION}"):
        RunStore.open(folder)
    with pytest.raises(BadRun, match="Update SpecSweep"):
        open_runs([folder])
    with RunLockIsFree(folder):
        pass


class RunLockIsFree:
    """A refused driver leaves no lock behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> None:
        from storage.lock import RunLock

        RunLock(self.folder).release()

    def __exit__(self, *details: object) -> None:
        pass


# ------------------------------------------------------------------------------------------------- one writer, and death


def test_a_driver_whose_lock_was_removed_writes_no_more(tmp_path: Path) -> None:
    folder = record(tmp_path / "run", CellResult(create_row(create_cell())))
    with RunStore.open(folder) as store:
        (folder / ".lock").unlink()
        with pytest.raises(StorageFailed, match=r"A run's lock must stay where it is: \S+\.lock was removed"):
            store.write(CellResult(create_row(create_cell("ngram", 3))))
        with RunStore.open(folder), pytest.raises(StorageFailed, match="another driver may write here too"):
            store.write(CellResult(create_row(create_cell("ngram", 3))))


@pytest.mark.parametrize("name", ["file", "file/run"])
def test_a_file_in_the_way_of_a_run_is_a_mistake(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadRun, match=r"A run must be a folder: got .*, where a file is in the way"):
        files.make_folder(tmp_path / name)


def test_a_second_driver_is_refused_and_told_who_is_the_first(tmp_path: Path) -> None:
    told = rf"A run has one driver at a time: .* in use by process {os.getpid()} on "
    with RunStore.create(tmp_path / "run", "") as store, pytest.raises(BadRun, match=told):
        RunStore.open(store.folder)
    RunStore.open(tmp_path / "run").close()


def test_the_lock_and_the_leftovers_of_a_killed_driver_are_no_obstacle(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    driver = subprocess.Popen(
        [sys.executable, "-c", HOLDER + "import time; time.sleep(60)", str(folder)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert driver.stdout is not None
    assert driver.stdout.readline() == "held\n"
    with pytest.raises(BadRun, match=f"process {driver.pid} on"):
        RunStore.open(folder)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    driver.stdout.close()
    (folder / "cells" / ".abc-1.parquet.77.tmp").write_bytes(b"PAR1 torn")

    with RunStore.open(folder) as store:
        assert store.history() == History()
    assert list(folder.rglob("*.tmp")) == []


def test_a_driver_killed_in_mid_write_leaves_every_glob_readable(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    writer = (
        "import sys; sys.path[:0] = ['.', 'tests/storage']; from recorded import *; from storage.runs import RunStore\n"
        "with RunStore.create(sys.argv[1], 'a: 1') as store:\n"
        "    for n in range(100000):\n"
        "        row = create_row(create_cell(), attempt=n + 1)\n"
        "        store.write(CellResult(row, [create_request(row, i) for i in range(20)]))\n"
        "        print(n, flush=True)\n"
    )
    driver = subprocess.Popen([sys.executable, "-c", writer, str(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    committed = [driver.stdout.readline() for _ in range(10)]
    driver.kill()
    driver.wait()
    driver.stdout.close()

    with open_runs([folder]) as runs:
        cells, requests, orphans = runs.execute(
            "SELECT (SELECT count(*) FROM recorded_cells), (SELECT count(*) FROM recorded_requests), "
            "(SELECT count(*) FROM recorded_cells ANTI JOIN recorded_requests USING (cell_id, attempt))"
        ).fetchall()[0]
    assert cells >= len(committed)
    assert requests % 20 == 0
    assert orphans == 0


@pytest.mark.parametrize("folder", ["requests", "cells"])
def test_a_full_disk_is_one_line_and_leaves_nothing_torn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    row = create_row(create_cell())
    with RunStore.create(tmp_path / "run", "") as store:
        sync = os.fsync

        def refuse(descriptor: int) -> None:
            written = {path.stat().st_ino for path in (tmp_path / "run" / folder).glob(files.TEMPORARY)}
            if os.fstat(descriptor).st_ino in written:
                raise OSError(errno.ENOSPC, "No space left on device")
            sync(descriptor)

        monkeypatch.setattr(files.os, "fsync", refuse)
        with pytest.raises(StorageFailed, match=r"No space left on device at .*What was committed before is whole"):
            store.write(CellResult(row, [create_request(row)]))
        monkeypatch.undo()
        assert list((tmp_path / "run" / folder).iterdir()) == []
        assert store.history() == History()
        store.write(CellResult(row, [create_request(row)]))
        assert len(store.history().attempts) == 1


def test_a_disk_that_takes_no_more_bytes_is_one_line(tmp_path: Path) -> None:
    script = HOLDER + (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)); store.write_log('s', 'x' * 1000)"
    )

    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "run")], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert "StorageFailed: Results must be writable: File too large" in done.stderr
    assert list((tmp_path / "run" / "logs").iterdir()) == []
