"""How run folders become views: patterns, empty runs, other schemas, and the `query` command."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from recorded import create_cell, create_request, create_row, create_session, record

from storage.errors import BadRun
from storage.query import main
from storage.report import find
from storage.rows import SCHEMA_VERSION, CellResult, TelemetryRow
from storage.runs import history_of
from storage.tables import SCHEMAS
from storage.views import PUBLIC_VIEWS, open_runs, settle_for

ROOT = Path(__file__).parents[2]
FIXTURES = Path(__file__).parent / "fixtures"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with a baseline and a draft."""
    results = []
    for method, k in (("none", 0), ("ngram", 3)):
        row = create_row(create_cell(method, k))
        results += [create_session(row), CellResult(row, [create_request(row, n) for n in range(3)])]
    return record(tmp_path / "results" / "run", *results)


OF_NO_RUN = ("thresholds", "remedies", "advice", "glossary")
"""What says the same of every run."""


def test_a_run_without_any_result_has_every_view_empty_and_typed(tmp_path: Path) -> None:
    with open_runs([record(tmp_path / "run")]) as runs:
        settle_for(runs, PUBLIC_VIEWS)
        for view in PUBLIC_VIEWS:
            found = runs.execute(f"SELECT count(*) FROM {view}").fetchall()[0][0]
            assert (found > 0) == (view in (*OF_NO_RUN, "runs")), view
        types = dict(runs.execute("SELECT column_name, column_type FROM (DESCRIBE cells)").fetchall())
    assert (types["al"], types["reasons"], types["valid"], types["n_requests"]) == (
        "DOUBLE",
        "VARCHAR[]",
        "BOOLEAN",
        "BIGINT",
    )


def test_every_view_tells_its_run(run: Path) -> None:
    with open_runs([run]) as runs:
        for view in set(PUBLIC_VIEWS) - set(OF_NO_RUN):
            names = [row[0] for row in runs.execute(f"DESCRIBE {view}").fetchall()]
            assert names[0] == "run", view


def test_runs_are_named_once_and_told_apart_when_they_are_called_the_same(tmp_path: Path, run: Path) -> None:
    twin = record(tmp_path / "elsewhere" / "run", CellResult(create_row(create_cell())))

    with open_runs([run, run.parent / "*", twin]) as runs:
        assert runs.execute("SELECT run, count(*) FROM cells GROUP BY run ORDER BY run").fetchall() == [
            ("elsewhere/run", 1),
            ("results/run", 2),
        ]


def test_a_folder_with_glob_characters_is_taken_literally(tmp_path: Path) -> None:
    record(tmp_path / "run [1]*'", CellResult(create_row(create_cell())))
    record(tmp_path / "run 1", CellResult(create_row(create_cell())), CellResult(create_row(create_cell("ngram", 3))))

    with open_runs([tmp_path / "run [1]*'"]) as runs:
        assert runs.execute("SELECT run, count(*) FROM cells GROUP BY run").fetchall() == [("run [1]*'", 1)]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        pytest.param("nope", r"A run must exist: got .*nope\. Runs there: .*run\. Use one of them", id="no such folder"),
        pytest.param("no*", r"A pattern must match a run: got .*no\*\. Runs there: .*run", id="no match"),
        pytest.param(".", r"A run is a folder with sweep.yaml and cells/: got .*Runs there: .*run", id="the folder of runs"),
    ],
)
def test_a_pattern_that_names_no_run_is_one_line_with_what_exists(run: Path, pattern: str, message: str) -> None:
    with pytest.raises(BadRun, match=message) as refusal:
        open_runs([run.parent / pattern])
    assert "\n" not in str(refusal.value)


def test_no_pattern_at_all_is_refused() -> None:
    with pytest.raises(BadRun, match="At least one run must be named: got none"):
        open_runs([])


def test_a_torn_file_from_elsewhere_is_one_line_with_its_name(run: Path) -> None:
    (run / "cells" / "torn-1.parquet").write_bytes(b"PAR1 and no more")

    with pytest.raises(BadRun, match=r"Every file of a run must be readable Parquet: got .*torn-1\.parquet") as refusal:
        open_runs([run])
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("last", [pytest.param(False, id="the first file"), pytest.param(True, id="the last file")])
@pytest.mark.parametrize("kind", ["cells", "requests", "sessions", "telemetry"])
def test_a_truncated_file_is_one_line_wherever_it_is_read(
    tmp_path: Path, kind: str, last: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [create_row(create_cell(method, k)) for method, k in (("none", 0), ("ngram", 3))]
    run = record(
        tmp_path / "run",
        *(create_session(row) for row in rows),
        *(CellResult(row, [create_request(row)], [TelemetryRow(row.cell_id, 1, 0, "cpu")]) for row in rows),
    )
    torn = sorted((run / kind).glob("*.parquet"))[-1 if last else 0]
    torn.write_bytes(torn.read_bytes()[:-20])

    assert main([str(run), f"FROM {kind}"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("Every file of a run must be readable Parquet: got ")
    assert torn.name in told
    assert told.count("\n") == 1
    if not (kind == "telemetry" and last):  # a report does not read it
        with pytest.raises(BadRun, match=torn.name):
            find([run])
    if kind in ("cells", "sessions"):
        with pytest.raises(BadRun, match=torn.name):
            history_of(run)


# --------------------------------------------------------------------------------------------------------------- schemas


def test_the_schema_is_that_of_the_recorded_version() -> None:
    """A change of a schema needs a new SCHEMA_VERSION, a line in its history, and a fixture (`record_fixture.py`)."""
    for kind, schema in SCHEMAS.items():
        recorded = pq.read_schema(next((FIXTURES / f"schema_{SCHEMA_VERSION}" / kind).glob("*.parquet")))
        assert (recorded.names, recorded.types) == (schema.names, schema.types), kind


@pytest.mark.parametrize("folder", sorted(FIXTURES.iterdir()), ids=lambda folder: folder.name)
def test_a_run_of_any_version_is_still_read(folder: Path) -> None:
    with open_runs([folder]) as runs:
        cells = runs.execute("SELECT method, n_requests, al, tpot_ms_p50, valid FROM cells ORDER BY method").fetchall()
        speedup = runs.execute("SELECT ratio FROM speedups WHERE category = 'all' AND metric = 'user_tps'").fetchall()
        samples = runs.execute("SELECT utilisation FROM telemetry WHERE device = 'cpu'").fetchall()

    assert cells == [("ngram", 3, 2.0, 12.5, True), ("none", 3, 1.0, 20.0, True)]
    assert speedup == [(1.6,)]
    assert samples == [(0.5,), (0.5,)]


def test_an_older_schema_is_read_beside_the_current_one(run: Path, tmp_path: Path) -> None:
    """An older run lacks columns, and has narrower numbers: absent is null, narrow is widened."""
    row = create_row(create_cell("ngram", 8))
    older = record(tmp_path / "results" / "older", CellResult(row, [create_request(row, n) for n in range(3)]))
    for kind, absent in (("cells", ["clock", "load_average", "merged_reads"]), ("requests", ["engine_al", "sub_category"])):
        path = older / kind / f"{row.cell_id}-1.parquet"
        table = pq.read_table(path).drop_columns(absent)
        versions = pa.array([SCHEMA_VERSION - 1] * len(table), pa.int32())
        pq.write_table(table.set_column(table.schema.get_field_index("schema_version"), "schema_version", versions), path)

    with open_runs([run, older]) as runs:
        found = runs.execute("SELECT run, count(*), any_value(merged_reads) FROM cells GROUP BY run ORDER BY run").fetchall()
        requests = runs.execute(
            "SELECT run, count(*), count(engine_al), count(ttft_ms) FROM requests GROUP BY run ORDER BY run"
        ).fetchall()

    assert found == [("older", 1, 0), ("run", 2, 0)]
    assert requests == [("older", 3, 0, 3), ("run", 6, 0, 6)]


# ------------------------------------------------------------------------------------------------------------ the command


def query(*words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "storage.query", *words], cwd=ROOT, capture_output=True, text=True, input=stdin, check=False
    )


SQL = "SELECT method, k, reasons FROM cells ORDER BY method"


def test_csv_is_for_other_programs(run: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main([str(run), SQL, "--format", "csv"]) == 0

    assert list(csv.reader(io.StringIO(capfdbinary.readouterr().out.decode()))) == [
        ["method", "k", "reasons"],
        ["ngram", "3", "[]"],
        ["none", "0", "[]"],
    ]


def test_json_is_an_array_of_objects(run: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main([str(run), SQL, "--format", "json"]) == 0

    assert json.loads(capfdbinary.readouterr().out) == [
        {"method": "ngram", "k": 3, "reasons": []},
        {"method": "none", "k": 0, "reasons": []},
    ]


@pytest.mark.parametrize("form", ["table", "csv", "json", "parquet"])
def test_an_answer_goes_to_a_file_when_asked(run: Path, tmp_path: Path, form: str) -> None:
    output = tmp_path / "answer"

    assert main([str(run), SQL, "--format", form, "--output", str(output)]) == 0

    if form == "parquet":
        assert pq.read_table(output).column("method").to_pylist() == ["ngram", "none"]
    else:
        assert "ngram" in output.read_text()


def test_the_suffix_of_the_file_is_its_format(run: Path, tmp_path: Path) -> None:
    output = tmp_path / "answer.csv"
    assert main([str(run), SQL, "--output", str(output)]) == 0
    assert output.read_text().startswith("method,k,")
    told = query(str(run), SQL, "--format", "json", "--output", str(output))
    assert (told.returncode, told.stderr.count("\n")) == (2, 1)
    assert "--output must end in what --format says: got --format json and " in told.stderr


def test_a_table_in_a_pipe_is_not_cut(run: Path) -> None:
    done = query(str(run), "SELECT *, repeat('x', 300) AS wide FROM cells, range(300)")

    assert done.returncode == 0
    assert done.stdout.count("x" * 300) == 600
    assert "cell_json" in done.stdout


def test_a_pivot_can_be_exported(run: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert (
        main([str(run), "PIVOT cells ON method IN ('ngram', 'none') USING max(k) GROUP BY repeat", "--format", "json"]) == 0
    )

    assert json.loads(capfdbinary.readouterr().out) == [{"repeat": 0, "ngram": 3, "none": 0}]


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        pytest.param("SELEC 1 FROM cells", "SQL must be valid: Parser Error", id="no SQL"),
        pytest.param(
            "SELECT nope FROM cells", 'SQL must be valid: Binder Error: Referenced column "nope"', id="no such column"
        ),
        pytest.param(
            "SELECT error('boom') FROM cells", "SQL must be valid: Invalid Input Error: boom", id="fails while it runs"
        ),
        pytest.param("COPY cells TO 'x.csv'", "A query only reads: got COPY", id="would write"),
        pytest.param(
            "EXPLAIN /* x */ ANALYZE COPY cells TO 'written.csv'", "A query only reads: got EXPLAIN of COPY", id="explained"
        ),
        pytest.param(
            "EXPLAIN (ANALYZE) COPY cells TO 'written.csv'", "A query only reads: got EXPLAIN of COPY", id="also so"
        ),
        pytest.param("ATTACH 'x.db' AS x", "A query only reads: got ATTACH", id="would attach"),
        pytest.param("SELECT 1; SELECT 2", "One statement at a time: got 2", id="two statements"),
        pytest.param("SET threads = 1", "SQL must ask for rows", id="answers nothing"),
    ],
)
def test_wrong_sql_is_one_line_and_exit_code_2(
    run: Path, capsys: pytest.CaptureFixture[str], sql: str, message: str
) -> None:
    assert main([str(run), sql]) == 2

    told = capsys.readouterr().err
    assert told.startswith(message)
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(["nowhere", "FROM cells"], "A run must exist: got nowhere", id="no run"),
        pytest.param(["SELECT 1"], "A run must be named before the SQL", id="only SQL"),
    ],
)
def test_a_run_that_is_not_there_is_one_line_and_exit_code_2(words: list[str], message: str) -> None:
    done = query(*words)

    assert done.returncode == 2
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1


def test_a_reader_that_has_seen_enough_is_no_error(run: Path) -> None:
    asked = f"{sys.executable} -m storage.query {run} 'FROM chunks, range(20000)' --format csv"
    command = f"{asked} | head -1; echo ${{PIPESTATUS[0]}}"

    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.stdout.splitlines()[-1] == "0"
    assert done.stderr == ""


def test_the_shell_lists_the_views_answers_and_survives_mistakes(run: Path) -> None:
    done = query(
        str(run),
        stdin="SELECT count(*) AS n\nFROM cells;\nSELECT nope;\n\n.views speedups\n.views nothing\n.what\n"
        "CREATE VIEW mine AS FROM cells;\nFROM mine\n\n.quit\nSELECT 77;\n",
    )

    assert done.returncode == 0
    assert done.stdout.count("speedups             one row a speculative cell, metric and category") == 1
    assert "  ci_low            double: lower end of the 95 % bootstrap interval, paired by prompt" in done.stdout
    assert "A view must exist: got nothing. .views lists them." in done.stdout
    assert "│     2 │" in done.stdout
    assert "SQL must be valid: Binder Error" in done.stdout
    assert "done" in done.stdout
    assert "│    77 │" not in done.stdout
    assert done.stderr == ""


def test_the_shell_answers_the_last_statement_before_the_end_of_its_input(run: Path) -> None:
    assert "│     3 │" in query(str(run), stdin="SELECT 3").stdout
