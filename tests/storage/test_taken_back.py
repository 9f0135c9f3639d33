"""What a sweep leaves that is refused after its run was made: nothing, unless rows have come."""

from __future__ import annotations

from pathlib import Path

import pytest
from recorded import create_cell, create_row, record

from storage.errors import BadInput, StorageFailed
from storage.rows import CellResult, DecisionRow
from storage.runs import RunStore, history_of

DECISION = DecisionRow("search", 0, 1, "measure", "crossover", "user_tps", "mini", "an end of the loads")


def content(folder: Path) -> dict[Path, bytes | bool]:
    return {path: path.is_dir() or path.read_bytes() for path in folder.rglob("*")}


def fail(failure: BaseException, *before: object) -> None:
    raise failure


def refuse(folder: Path) -> None:
    """As where there is no cluster: a search has written what it would measure first."""
    with pytest.raises(BadInput, match="no cluster"), RunStore.create(folder, "a: 2\n") as store:
        fail(BadInput("no cluster"), store.write_decisions([DECISION]))


def test_a_sweep_that_is_refused_before_its_first_row_leaves_no_run(tmp_path: Path) -> None:
    refuse(tmp_path / "run")
    assert content(tmp_path) == {}


def test_a_sweep_that_is_refused_leaves_the_run_that_was_there_as_it_was(tmp_path: Path) -> None:
    record(tmp_path / "run", CellResult(create_row(create_cell())), sweep="a: 1\n")
    before = content(tmp_path)
    refuse(tmp_path / "run")
    assert content(tmp_path) == before


@pytest.mark.parametrize("failure", [BadInput("late"), StorageFailed("full"), KeyboardInterrupt()], ids=repr)
def test_what_was_recorded_stays_whatever_comes(failure: BaseException, tmp_path: Path) -> None:
    row = create_row(create_cell())
    with pytest.raises(type(failure)), RunStore.create(tmp_path / "run", "a: 1\n") as store:
        fail(failure, store.write(CellResult(row)))
    assert [attempt.cell_id for attempt in history_of(tmp_path / "run").attempts] == [row.cell_id]
    assert (tmp_path / "run" / "sweep.yaml").read_text() == "a: 1\n"
