"""SQL on the page: answered within limits over the runs that are chosen, in one line where it is wrong, and never beyond."""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from recorded import create_cell, create_request, create_row, record
from served import Served, serving

from storage.rows import CellResult
from storage.serve.pages import Limits
from storage.tower import PUBLIC_VIEWS


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    for name, n in (("one", 3), ("two", 4)):
        row = create_row(create_cell())
        record(folder / name, CellResult(row, [create_request(row, index) for index in range(n)]))
    (folder / "secret.csv").write_text("secret\n1\n")
    return folder


@pytest.fixture(scope="module")
def page(results: Path) -> Iterator[Served]:
    with serving(results, limits=Limits(seconds=60, rows=5, downloaded_rows=20)) as served:
        yield served


@pytest.fixture(scope="module")
def hasty(results: Path) -> Iterator[Served]:
    with serving(results, limits=Limits(seconds=0.5)) as served:
        yield served


def rows(page: Served, sql: str, *names: str) -> list[list[str]]:
    answer = page.get("/answer.csv", sql=sql, run=list(names))
    assert answer.status_code == 200, answer.text
    return list(csv.reader(io.StringIO(answer.text)))


def mistake(page: Served, sql: str) -> str:
    """The one line that the page says, which is also that of the download."""
    answer = page.get("/sql", sql=sql)
    assert answer.status_code == 400, answer.text
    (line,) = re.findall(r'<p class="card error" role="alert">(.*?)</p>', answer.text)
    assert page.get("/answer.csv", sql=sql).text == f"{html.unescape(line)}\n"
    return html.unescape(line)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        pytest.param((), [["one", "3"], ["two", "4"]], id="none chosen: all"),
        pytest.param(("two",), [["two", "4"]], id="one"),
        pytest.param(("two", "one"), [["one", "3"], ["two", "4"]], id="both"),
    ],
)
def test_the_runs_that_are_chosen_are_asked(page: Served, names: tuple[str, ...], expected: list[list[str]]) -> None:
    told = rows(page, "SELECT run, count(*) AS n FROM requests GROUP BY run ORDER BY run", *names)

    assert told == [["run", "n"], *expected]


def test_the_page_shows_the_answer_and_offers_it_for_download(page: Served) -> None:
    told = page.get("/sql", sql="SELECT run, 1.5 AS x, NULL AS y FROM cells", run="one").text

    assert '<td>one</td><td class="number">1.5</td><td><span class="aside">null</span></td>' in told
    assert 'href="/answer.csv?sql=SELECT+run%2C+1.5+AS+x%2C+NULL+AS+y+FROM+cells&amp;run=one"' in told


def test_lists_and_times_read_as_in_duckdb(page: Served) -> None:
    assert rows(page, "SELECT [1, 2] AS a, true AS b, {'x': 1} AS c", "one")[1] == ["[1, 2]", "true", "{'x': 1}"]


@pytest.mark.parametrize(
    "sql", ["EXPLAIN FROM cells", "PIVOT cells ON run USING count(*)", "SHOW TABLES", "SUMMARIZE cells"]
)
def test_other_ways_to_ask_are_answered(page: Served, sql: str) -> None:
    assert page.get("/sql", sql=sql).status_code == 200


def test_what_a_query_shows_is_text(page: Served) -> None:
    told = page.get("/sql", sql="SELECT '<script>alert(1)</script>' AS \"<b>\"").text

    assert "<script>alert" not in told
    assert "<b>" not in told


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        pytest.param("SELECT nothing FROM cells", 'Referenced column "nothing" not found', id="a column"),
        pytest.param("SELECT\n*\nFROM\nnowhere", "Table with name nowhere does not exist", id="a view"),
        pytest.param("SELEC 1", "syntax error", id="syntax"),
        pytest.param("SELECT 1; SELECT 2", "One statement at a time: got 2", id="two"),
        pytest.param("-- nothing", "One statement at a time: got 0", id="none"),
        pytest.param("SELECT error('mine')", "mine", id="while it runs"),
        pytest.param("SELECT 1 -- " + "x" * 20_000, "SQL may have 20000 characters here: got 20012", id="too long"),
    ],
)
def test_a_mistake_is_one_line(page: Served, sql: str, message: str) -> None:
    assert message in mistake(page, sql)


@pytest.mark.parametrize(
    "sql",
    [
        pytest.param("SELECT count(*) FROM range(1000000000000) a, range(1000) b", id="much to count"),
        pytest.param("WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i FROM n) SELECT count(*) FROM n", id="no end"),
    ],
)
def test_what_takes_too_long_is_ended(hasty: Served, sql: str) -> None:
    assert mistake(hasty, sql).startswith("SQL must answer within 0.5 s: this did not.")


def test_more_rows_than_fit_are_cut_and_it_says_so(page: Served) -> None:
    shown = page.get("/sql", sql="FROM range(100)").text

    assert "The first 5 rows" in shown
    assert shown.count("<td") == 5
    assert [row[0] for row in rows(page, "FROM range(100)")] == ["range", *map(str, range(20))]


@pytest.mark.parametrize(
    "sql",
    [
        pytest.param("COPY cells TO '{results}/x.csv'", id="to a file"),
        pytest.param("COPY cells TO '{results}/one/requests/x.csv'", id="into a run"),
        pytest.param("EXPORT DATABASE '{results}/x'", id="export"),
        pytest.param("ATTACH '{results}/x.db'", id="attach"),
        pytest.param("CREATE TABLE x AS FROM cells", id="create"),
        pytest.param("CREATE PERSISTENT SECRET s (TYPE s3, KEY_ID 'a', SECRET 'b')", id="secret"),
        pytest.param("DROP VIEW cells", id="drop"),
        pytest.param("UPDATE thresholds SET resamples = 1", id="update"),
        pytest.param("SET enable_external_access = true", id="set"),
        pytest.param("EXPLAIN ANALYZE COPY cells TO '{results}/x.csv'", id="explain"),
        pytest.param("INSTALL httpfs", id="install"),
        pytest.param("LOAD httpfs", id="load"),
        pytest.param("PRAGMA enable_profiling", id="pragma"),
        pytest.param("CALL enable_logging(storage = 'file', storage_path = '{results}/log')", id="call"),
    ],
)
def test_what_would_write_is_refused(page: Served, results: Path, sql: str) -> None:
    before = sorted(results.rglob("*"))

    assert "A query only reads: got " in mistake(page, sql.format(results=results))
    assert sorted(results.rglob("*")) == before


@pytest.mark.parametrize(
    "sql",
    [
        pytest.param("FROM read_csv('{results}/secret.csv')", id="csv"),
        pytest.param("FROM '{results}/secret.csv'", id="by its name"),
        pytest.param("FROM read_text('/etc/passwd')", id="text"),
        pytest.param("FROM read_text('{results}/one/requests/../../secret.csv')", id="out of the run"),
        pytest.param("FROM read_text('{results}/one/sweep.yaml')", id="of the run, and none of its rows"),
        pytest.param("FROM read_parquet('{results}/two/requests/*.parquet')", id="a run that is not chosen"),
        pytest.param("FROM glob('{results}/*')", id="names"),
        pytest.param("FROM 'https://127.0.0.1/x.parquet'", id="the network"),
        pytest.param("FROM enable_logging(storage = 'file', storage_path = '{results}/log')", id="a log"),
        pytest.param("FROM query('COPY cells TO ''{results}/x''')", id="SQL in SQL"),
        pytest.param("FROM duckdb_secrets()", id="secrets"),
        pytest.param("FROM secret", id="variables of the process"),
    ],
)
def test_no_other_file_is_read(page: Served, results: Path, sql: str) -> None:
    secret = [1, 2, 3]  # in reach of Python's replacement scans, were they on
    answer = page.get("/answer.csv", sql=sql.format(results=results), run="one")

    assert (answer.status_code, len(secret)) == (400, 3)
    assert re.search("disabled by configuration|configuration has been locked|does not exist|single SELECT", answer.text), (
        answer.text
    )
    assert answer.text.count("\n") == 1


def test_every_view_and_column_is_explained(page: Served) -> None:
    told = page.get("/sql").text

    assert re.findall(r"<summary><strong>(\w+)</strong>", told) == list(PUBLIC_VIEWS)
    assert "<dt>user_tps_p50</dt>" in told
    assert not re.findall(r"<dd> <span", told)
