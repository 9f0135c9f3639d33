"""What a sweep leaves that is refused after its run was made: nothing, unless rows have come."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from recorded import DECISION, create_cell, create_row, fail, record, refuse

from storage import runs
from storage.errors import BadInput, StorageFailed
from storage.lock import Lock, lock_run
from storage.rows import CellResult
from storage.runs import RunStore, history_of


def content(folder: Path) -> dict[Path, bytes | bool]:
    return {path: path.is_dir() or path.read_bytes() for path in folder.rglob("*")}


def test_a_sweep_that_is_refused_before_its_first_row_leaves_no_run(tmp_path: Path) -> None:
    refuse(tmp_path / "run")
    assert content(tmp_path) == {}


def test_a_sweep_that_is_refused_leaves_the_run_that_was_there_as_it_was(tmp_path: Path) -> None:
    record(tmp_path / "run", CellResult(create_row(create_cell())), sweep="a: 1\n")
    before = content(tmp_path)
    refuse(tmp_path / "run")
    assert content(tmp_path) == before


def test_what_a_search_had_decided_before_is_put_back(tmp_path: Path) -> None:
    with RunStore.create(tmp_path / "run", "a: 1\n") as store:
        store.write_decisions([DECISION, replace(DECISION, number=1)])
    before = content(tmp_path)
    refuse(tmp_path / "run")
    assert content(tmp_path) == before


def test_a_log_is_kept_as_rows_are(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="late"), RunStore.create(tmp_path / "run", "a: 1\n") as store:
        fail(BadInput("late"), store.write_log("s1", "why it did not start"))
    RunStore.create(tmp_path / "run", "a: 2\n").close()
    assert (tmp_path / "run/logs/s1.log").read_text() == "why it did not start"


def test_a_run_that_another_driver_made_until_the_lock_was_ours_is_not_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = create_row(create_cell())

    def lock_late(folder: Path) -> Lock:
        monkeypatch.setattr(runs, "lock_run", lock_run)
        record(folder, CellResult(row), sweep="a: 1\n")
        return lock_run(folder)

    monkeypatch.setattr(runs, "lock_run", lock_late)
    refuse(tmp_path / "run")
    assert [attempt.cell_id for attempt in history_of(tmp_path / "run").attempts] == [row.cell_id]
    assert (tmp_path / "run" / "sweep.yaml").read_text() == "a: 1\n"


@pytest.mark.parametrize("failure", [BadInput("late"), StorageFailed("full"), KeyboardInterrupt()], ids=repr)
def test_what_was_recorded_stays_whatever_comes(failure: BaseException, tmp_path: Path) -> None:
    row = create_row(create_cell())
    with pytest.raises(type(failure)), RunStore.create(tmp_path / "run", "a: 1\n") as store:
        fail(failure, store.write(CellResult(row)))
    assert [attempt.cell_id for attempt in history_of(tmp_path / "run").attempts] == [row.cell_id]
    assert (tmp_path / "run" / "sweep.yaml").read_text() == "a: 1\n"
