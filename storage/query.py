"""Owns `python -m storage.query`: SQL over one run or many, in the format asked for. Does not own views or metrics."""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import shutil
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import duckdb

from storage.command import OneLineParser, run_command, write_output
from storage.errors import BadInput
from storage.interrupted import interruptible_queries
from storage.views import PUBLIC_VIEWS, one_line, open_runs, quoted, readable_files, settle_for

__all__ = ["main", "open_runs"]

ANSWERING = ("SELECT", "EXPLAIN", "MULTI")  # MULTI is PIVOT
_GAP = r"(?:\s|--[^\n]*\n|/\*.*?\*/)*"
EXPLAINED = re.compile(rf"{_GAP}EXPLAIN{_GAP}(?:ANALYZE\b|\([^)]*\))?{_GAP}(.*)", re.IGNORECASE | re.DOTALL)
OBEYED = ("CREATE", "DROP", "SET")  # in memory: as long as the connection
FORMATS = ("table", "csv", "json", "parquet")

EPILOG = f"""\
views: {", ".join(PUBLIC_VIEWS)}
examples:
  python -m storage.query results/quickstart "SELECT draft, al, user_tps_p50 FROM cells ORDER BY al DESC"
  python -m storage.query 'results/*' "FROM speedups WHERE category = 'all' AND significant" --format csv --output wins.csv
  python -m storage.query results/quickstart          # a shell
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code: 0 answered, 1 the answer could not be written, 2 bad input."""
    return run_command(lambda: _run(_parser().parse_args(arguments)))


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="python -m storage.query",
        description="SQL over one run or many; without SQL an interactive shell.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("words", nargs="+", metavar="RUN... [SQL]", help="run folders or globs, then one SQL statement")
    parser.add_argument("--format", choices=FORMATS, help="as the suffix of --output says, else table")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write there instead of to stdout")
    return parser


def _run(options: argparse.Namespace) -> int:
    patterns, sql = _split(options.words)
    form = _form_of(options.format, options.output)
    with open_runs(patterns) as runs:
        if sql is None:
            from storage.shell import talk  # readline changes the terminal: only where it is wanted

            talk(runs)
        else:
            answer = ask(runs, sql)
            if answer is None:
                raise BadInput(f"SQL must ask for rows: got {sql!r}. Begin with SELECT or FROM.")
            write_answer(runs, answer, form, options.output)
    return 0


def _form_of(asked: str | None, output: Path | None) -> str:
    """The format that is asked for, and that the file's suffix promises."""
    suffix = output.suffix[1:].lower() if output else ""
    if asked and suffix in FORMATS and suffix != asked:
        raise BadInput(f"--output must end in what --format says: got --format {asked} and {output}. Leave --format out.")
    return asked or (suffix if suffix in FORMATS else "table")


def _split(words: Sequence[str]) -> tuple[Sequence[str], str | None]:
    """SQL has a space in it, and no run's folder has that name."""
    is_sql = any(space in words[-1].strip() for space in " \n\t") and not _is_there(words[-1])
    if is_sql and len(words) == 1:
        raise BadInput(
            "A run must be named before the SQL: got only SQL. Try: python -m storage.query results/quickstart 'FROM cells'"
        )
    return (words[:-1], words[-1]) if is_sql else (words, None)


def _is_there(word: str) -> bool:
    """Whether there is a file or folder of this name; a name too long for one, as SQL often is, is none."""
    with contextlib.suppress(OSError):
        return Path(word).exists()
    return False


def ask(runs: duckdb.DuckDBPyConnection, sql: str, obeyed: Collection[str] = OBEYED) -> duckdb.DuckDBPyRelation | None:
    """The answer to one statement; None when it is obeyed and answers nothing. `BadInput` when it's wrong or would write."""
    if any("\ud800" <= letter <= "\udfff" for letter in sql):  # the terminal's bytes were no UTF-8
        raise BadInput("SQL must be text in UTF-8: got other bytes. Check the terminal's encoding.")
    with sql_mistakes():
        statements = runs.extract_statements(sql)
        if len(statements) != 1:
            raise BadInput(f"One statement at a time: got {len(statements)}. Example: FROM cells")
        kind = statements[0].type.name
        if kind == "EXPLAIN":
            _require_harmless(runs, sql)
        if kind not in (*ANSWERING, *obeyed):
            raise BadInput(f"A query only reads: got {kind}. To keep an answer use --format and --output.")
        if kind == "SELECT":
            settle_for(runs, re.findall(r"\w+", sql))
        answer = runs.sql(sql)
        return answer if kind in ANSWERING else None


def _require_harmless(runs: duckdb.DuckDBPyConnection, sql: str) -> None:
    """EXPLAIN ANALYZE does what it explains."""
    found = EXPLAINED.fullmatch(sql)
    kinds = [statement.type.name for statement in runs.extract_statements(found[1])] if found else []
    if kinds != ["SELECT"]:
        raise BadInput(f"A query only reads: got EXPLAIN of {', '.join(kinds) or sql}. Explain a SELECT.")


@contextlib.contextmanager
def sql_mistakes() -> Iterator[None]:
    """What DuckDB says about a mistake, as `BadInput` in one line. Some mistakes show only when the answer is fetched."""
    try:
        with readable_files(only_if_named=True), interruptible_queries():
            yield
    except duckdb.Error as error:
        raise BadInput(f"SQL must be valid: {one_line(error)}") from error


def write_answer(runs: duckdb.DuckDBPyConnection, answer: duckdb.DuckDBPyRelation, form: str, output: Path | None) -> None:
    """The answer to the file (whole or not at all) or to stdout."""
    with sql_mistakes():
        content = render_table(answer, None).encode() if form == "table" and output else b""
        if form == "table" and not output:
            content = render_table(answer, terminal_width()).encode()
        elif form != "table":
            content = _exported(runs, answer, form)
    if output:
        write_output(output, content)
    else:
        sys.stdout.buffer.write(content)
        sys.stdout.flush()


def terminal_width() -> int | None:
    """Columns of the terminal; None where stdout is none, and nothing needs to be cut."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def render_table(answer: duckdb.DuckDBPyRelation, width: int | None) -> str:
    """The answer as a box; as wide and as long as it is where there is no width to keep to."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        if width:
            answer.show(max_width=width, max_rows=200)
        else:
            answer.show(max_width=1_000_000, max_rows=1_000_000_000, max_col_width=100_000)
    return text.getvalue().rstrip("\n") + "\n"


def _exported(runs: duckdb.DuckDBPyConnection, answer: duckdb.DuckDBPyRelation, form: str) -> bytes:
    options = {"csv": "FORMAT csv, HEADER", "json": "FORMAT json, ARRAY true", "parquet": "FORMAT parquet"}[form]
    answer.create("exported_answer")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "answer"
        runs.execute(f"COPY exported_answer TO {quoted(str(path))} ({options})").fetchall()
        return path.read_bytes()


if __name__ == "__main__":
    sys.exit(main())
