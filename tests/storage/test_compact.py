"""Compaction: every row once, whatever it got to; readers see the old files or the new ones."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from recorded import create_cell, create_request, create_row, create_session, record

from storage.compact import compact, main, merged_files
from storage.errors import BadRun, StorageFailed
from storage.parts import MANIFEST, parts_of
from storage.rows import FAILED, CellBatch, CellResult, ScoredRow, TelemetryRow
from storage.runs import RunStore, history_of
from storage.views import open_records, open_runs

ROOT = Path(__file__).parents[2]
FIXTURES = Path(__file__).with_name("fixtures")
KINDS = ("sessions", "cells", "requests", "scored", "telemetry")


def result(n: int, *, attempt: int = 1, **changes: Any) -> CellResult:
    """A try with rows of every kind."""
    row = create_row(create_cell("ngram", 3, concurrency=n), attempt=attempt, **changes)
    return CellResult(
        row,
        [create_request(row, index) for index in range(3)],
        [TelemetryRow(row.cell_id, attempt, index, "cpu") for index in range(2)],
        scored=[ScoredRow(row.cell_id, attempt, 0, "q", "coding", "p", [1, 2], [-0.5, -0.25])],
    )


def many(folder: Path, n_cells: int = 4) -> Path:
    """A run with a failed try, a try in batches, and sessions."""
    batched = create_row(create_cell("ngram", 3, concurrency=99))
    return record(
        folder,
        *(create_session(batched, session_id=f"s-{n}") for n in range(3)),
        result(1, status=FAILED),
        *(result(n + 1, attempt=2) for n in range(n_cells)),
        CellBatch(batched.cell_id, 1, 0, [create_request(batched, 0)]),
        CellResult(batched, [create_request(batched, 1)], n_batches=1),
    )


def rows_of(*folders: Path) -> dict[str, list[Any]]:
    """All that is recorded, in an order of its own."""
    with open_records(folders) as runs:
        return {kind: sorted(runs.execute(f"FROM recorded_{kind}").fetchall(), key=repr) for kind in KINDS}


def files_of(folder: Path) -> int:
    return sum(1 for kind in KINDS for _ in (folder / kind).iterdir())


def test_many_files_become_one_of_each_kind_with_the_same_rows(tmp_path: Path) -> None:
    folder = many(tmp_path / "run")
    before, history = rows_of(folder), history_of(folder)

    outcome = compact(folder, grace_s=0)

    assert (outcome.n_before, outcome.n_after) == (3 + 6 + 7 + 5 + 5, 5)
    assert files_of(folder) == 5
    assert rows_of(folder) == before
    assert history_of(folder) == history


def test_a_second_time_changes_nothing(tmp_path: Path) -> None:
    folder = many(tmp_path / "run")
    compact(folder, grace_s=0)
    before = sorted((path, path.read_bytes()) for path in folder.rglob("*") if path.is_file() and path.name != ".lock")

    outcome = compact(folder, grace_s=0)

    assert outcome.n_before == outcome.n_after == 5
    assert before == sorted(
        (path, path.read_bytes()) for path in folder.rglob("*") if path.is_file() and path.name != ".lock"
    )


def test_a_sweep_goes_on_after_a_compaction_and_is_compacted_again(tmp_path: Path) -> None:
    folder = many(tmp_path / "run")
    compact(folder, grace_s=0)
    with RunStore.open(folder) as store:
        with pytest.raises(StorageFailed, match="A try at a cell is recorded once"):
            store.write(result(1, attempt=2))
        with pytest.raises(StorageFailed, match="A session that was compacted stays as it is"):
            store.write(create_session(create_row(create_cell()), session_id="s-0"))
        store.write(result(1, attempt=3))
        store.write(result(2, attempt=3))
    before = rows_of(folder)
    assert len(before["cells"]) == 8

    compact(folder, grace_s=0)

    assert rows_of(folder) == before
    assert len(list((folder / "cells").iterdir())) == 2


def test_what_is_not_committed_is_not_compacted(tmp_path: Path) -> None:
    folder = many(tmp_path / "run")
    before = rows_of(folder)
    running = create_row(create_cell("ngram", 3, concurrency=50))
    with RunStore.open(folder) as store:
        store.write(CellBatch(running.cell_id, 1, 0, [create_request(running, 0)]))

    compact(folder, grace_s=0)

    assert rows_of(folder) == before


def test_older_schemas_keep_their_columns_and_one_view_is_over_all(tmp_path: Path) -> None:
    olds = [Path(shutil.copytree(old, tmp_path / old.name)) for old in sorted(FIXTURES.iterdir()) if old.is_dir()]
    folders = [*olds, many(tmp_path / "new")]
    assert len(olds) >= 2
    before = rows_of(*folders)
    with open_runs(folders) as runs:
        cells = sorted(runs.execute("SELECT run, cell_id, al, output_tps, reasons FROM cells").fetchall())

    for folder in folders:
        compact(folder, grace_s=0)

    assert rows_of(*folders) == before
    with open_runs(folders) as runs:
        assert sorted(runs.execute("SELECT run, cell_id, al, output_tps, reasons FROM cells").fetchall()) == cells


def test_rows_of_two_schemas_go_into_files_of_their_own(tmp_path: Path) -> None:
    old, new = tmp_path / "old.parquet", tmp_path / "new.parquet"
    rows = pq.read_table(next((many(tmp_path / "run") / "cells").iterdir()))
    pq.write_table(rows, new)
    pq.write_table(rows.append_column("acceptance_source", [["steps"]]), old)

    merged = [pq.read_table(io.BytesIO(content)) for content in merged_files([old, new, old])]

    assert [(table.num_rows, "acceptance_source" in table.column_names) for table in merged] == [(2, True), (1, False)]


def test_a_run_that_is_written_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = many(tmp_path / "run")
    with RunStore.open(folder):
        with pytest.raises(BadRun, match="A run has one driver at a time"):
            compact(folder)
        assert main([str(folder)]) == 2
    assert "A run has one driver at a time" in capsys.readouterr().err
    assert not (folder / MANIFEST).exists()


def test_the_command_says_how_many_files_there_were(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(many(tmp_path / "run")), "--grace-s", "0"]) == 0
    assert capsys.readouterr().out.endswith("run: 26 files of rows, now 5\n")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        pytest.param("{", "must be as it was written", id="torn"),
        pytest.param('{"version": 99}', "must be of a known version: got 99", id="newer"),
    ],
)
def test_a_manifest_that_cannot_be_read_is_one_line(tmp_path: Path, content: str, told: str) -> None:
    folder = many(tmp_path / "run")
    (folder / MANIFEST).write_text(content)

    with pytest.raises(BadRun, match=told):
        open_runs([folder])


KILLED = """
import os, signal, sys
sys.path[:0] = [sys.argv[1]]
import storage.compact, storage.runs
left = int(sys.argv[3])
def dying(act):
    def step(*arguments, **options):
        global left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
        return act(*arguments, **options)
    return step
storage.compact.write_whole = dying(storage.compact.write_whole)
storage.runs.remove = dying(storage.runs.remove)
storage.compact.compact(sys.argv[2], grace_s=0)
"""


def test_killed_at_any_step_it_loses_nothing_and_the_next_one_ends_it(tmp_path: Path) -> None:
    """Before each file that appears and each that goes: 5 merged files, the manifest, and the small files."""
    whole = many(tmp_path / "whole", 1)
    before, n_steps = rows_of(whole), 6 + len([path for kind in KINDS for path in (whole / kind).iterdir()])

    for step in [*range(9), n_steps - 1]:
        folder = Path(shutil.copytree(whole, tmp_path / f"{step}" / "whole"))
        done = subprocess.run([sys.executable, "-c", KILLED, str(ROOT), str(folder), str(step)], check=False)
        assert done.returncode == -9, step
        assert rows_of(folder) == before, step
        compact(folder, grace_s=0)
        assert rows_of(folder) == before, step
        assert files_of(folder) == 5, step


def test_a_driver_removes_what_a_killed_compaction_left(tmp_path: Path) -> None:
    folder = many(tmp_path / "run", 1)
    before = rows_of(folder)
    subprocess.run([sys.executable, "-c", KILLED, str(ROOT), str(folder), "7"], check=False)
    assert files_of(folder) > 5

    RunStore.open(folder).close()

    assert files_of(folder) == 5
    assert rows_of(folder) == before


def test_readers_see_every_row_once_while_runs_are_compacted(tmp_path: Path) -> None:
    """A reader that began before the small files go must be able to end: that is what the grace is for."""
    folder = many(tmp_path / "run", 30)
    expected = {kind: len(rows) for kind, rows in rows_of(folder).items()}
    ended = threading.Event()
    compacting = threading.Thread(target=lambda: (compact(folder, grace_s=3), ended.set()))
    n_looks = 0

    compacting.start()
    while not ended.is_set() or n_looks < 3:
        with open_records([folder]) as runs:
            found = {kind: runs.execute(f"SELECT count(*) FROM recorded_{kind}").fetchall()[0][0] for kind in KINDS}
        assert found == expected
        n_looks += 1
    compacting.join()

    assert len(parts_of(folder).files["cells"]) == 1
