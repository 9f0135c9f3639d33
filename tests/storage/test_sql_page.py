"""`docs/sql.md`, the shell and the table `glossary` say the same of every view and column, and say it of each."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

import duckdb
import pytest
from recorded import record
from recorded_grid import pair, point

from storage import tower
from storage.glossary import columns_of, describe, meaning_of, page, words
from storage.views import PUBLIC_VIEWS, open_runs, settle_for

PAGE = Path(__file__).resolve().parents[2] / "docs" / "sql.md"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> duckdb.DuckDBPyConnection:
    folder = record(tmp_path_factory.mktemp("page") / "run", *pair(point("ngram"), 25.0))
    with open_runs([folder]) as connection:
        yield connection


def test_the_page_is_what_the_database_has(runs: duckdb.DuckDBPyConnection) -> None:
    assert PAGE.read_text(encoding="utf-8") == page(runs, PUBLIC_VIEWS), "python -m storage.glossary > docs/sql.md"


def test_every_view_and_column_has_a_meaning_and_nothing_else_has(runs: duckdb.DuckDBPyConnection) -> None:
    views, entries = words()
    columns = [(view, column) for view in PUBLIC_VIEWS for column, _ in columns_of(runs)[view]]

    assert set(views) == set(PUBLIC_VIEWS)
    assert [where for where in columns if meaning_of(*where) is None] == []
    spelled = {name for view, column in columns for name in (f"{view}.{column}", column)}
    assert [entry for entry in entries if not any(fnmatchcase(name, entry) for name in spelled)] == []


@pytest.mark.parametrize(
    ("view", "column", "unit", "begins"),
    [
        pytest.param("requests", "t_sent_ns", "ns", "when it was sent", id="a unit from the name"),
        pytest.param("cells", "al", "tokens/step", "acceptance length", id="a unit of its own"),
        pytest.param("drafts", "al", "tokens/step", "mean over the repeats", id="what one view means by it"),
        pytest.param("cells", "ttft_ms_p90", "ms", "percentile", id="a pattern"),
        pytest.param("runs", "n_cells", "count", "cells with a row", id="a count"),
    ],
)
def test_a_column_is_explained_with_its_unit(view: str, column: str, unit: str, begins: str) -> None:
    word = meaning_of(view, column)

    assert word is not None
    assert (word.unit, word.meaning[: len(begins)]) == (unit, begins)


def test_a_view_is_described_line_by_line(runs: duckdb.DuckDBPyConnection) -> None:
    lines = list(describe("crossovers", columns_of(runs)["crossovers"]))

    assert lines[0] == "crossovers: one row a series, metric, category and crossing: where the speed-up passes 1"
    assert "  x                       double: where the speed-up passes 1, between measured values" in lines


def test_the_database_can_be_asked(runs: duckdb.DuckDBPyConnection) -> None:
    assert runs.execute("SELECT unit, meaning FROM glossary WHERE name = 'ar_joint'").fetchall() == [
        ("share", "accepted with all before it: the product")
    ]


def test_what_many_views_build_on_is_computed_once_and_gives_the_same(tmp_path: Path) -> None:
    folder = record(tmp_path / "run", *pair(point("ngram"), 25.0))
    sql = "SELECT * EXCLUDE (causes) FROM causes"
    with open_runs([folder]) as runs:
        before = runs.execute(sql).fetchall()
        settle_for(runs, ["FROM", "verdicts"])
        settle_for(runs, ["verdicts", "checklist"])  # once more changes nothing
        tables = {name for (name,) in runs.execute("SELECT table_name FROM duckdb_tables()").fetchall()}

        assert {"cells", "draft_speedups", "causes"} <= tables
        assert runs.execute(sql).fetchall() == before


def test_a_view_that_a_column_is_named_after_is_not_computed_for_it(tmp_path: Path) -> None:
    with open_runs([record(tmp_path / "run", *pair(point("ngram"), 25.0))]) as runs:
        settle_for(runs, ["crossovers"])
        tables = {name for (name,) in runs.execute("SELECT table_name FROM duckdb_tables()").fetchall()}

        assert "draft_speedups" in tables
        assert "verdicts" not in tables, "crossovers has a column of that name, and verdicts builds on crossovers"


def test_other_runs_of_one_process_have_the_views_of_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns are found out once, and held for what has the same tables: they are those that each finds out by itself."""
    folders = [record(tmp_path / "none"), record(tmp_path / "one", *pair(point("ngram"), 25.0))]
    found = []
    for patterns, is_first in (([folders[0]], True), ([folders[1]], False), ([folders[1]], True), (folders, False)):
        if is_first:
            monkeypatch.setattr(tower, "_seen", {})
        with open_runs(patterns) as runs:
            found.append(runs.execute("FROM duckdb_columns() SELECT table_name, column_name, data_type").fetchall())
            assert len(runs.execute("FROM cells").fetchall()) == 2 * (folders[1] in patterns)
    assert found[0] == found[1] == found[2] == found[3]
