"""Owns `python -m storage.query`: SQL over one run or many, in the format that the caller wants. Does not own views or metrics."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import duckdb
from rich.console import Console
from rich.table import Table

from storage.errors import BadInput, SpecSweepError
from storage.files import write_whole
from storage.views import PUBLIC_VIEWS, one_line, open_runs

__all__ = ["main", "open_runs"]

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
    try:
        return _run(_parser().parse_args(arguments))
    except SpecSweepError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 2 if isinstance(error, BadInput) else 1
    except BrokenPipeError:  # `| head` has seen enough; nothing more may be flushed at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m storage.query",
        description="SQL over one run or many; without SQL an interactive shell.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("words", nargs="+", metavar="RUN... [SQL]", help="run folders or globs, then one SQL statement")
    parser.add_argument("--format", choices=FORMATS, default="table")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write there instead of to stdout (parquet: needed on a terminal)")
    return parser


def _run(options: argparse.Namespace) -> int:
    patterns, sql = _split(options.words)
    with open_runs(patterns) as runs:
        if sql is None:
            from storage.shell import talk  # readline changes the terminal: only where it is wanted

            talk(runs)
        else:
            write_answer(ask(runs, sql), options.format, options.output)
    return 0


def _split(words: Sequence[str]) -> tuple[Sequence[str], str | None]:
    """SQL has a space in it, and no run's folder has that name."""
    is_sql = any(space in words[-1].strip() for space in " \n\t") and not Path(words[-1]).exists()
    if is_sql and len(words) == 1:
        raise BadInput("A run must be named before the SQL: got only SQL. Example: python -m storage.query results/quickstart 'FROM cells'")
    return (words[:-1], words[-1]) if is_sql else (words, None)


def ask(runs: duckdb.DuckDBPyConnection, sql: str) -> duckdb.DuckDBPyRelation:
    """The answer to one statement; `BadInput` in one line for SQL that is wrong or answers nothing."""
    try:
        answer = runs.sql(sql)
    except duckdb.Error as error:
        raise BadInput(f"SQL must be valid: {one_line(error)}") from error
    if answer is None:
        raise BadInput(f"SQL must ask for rows: got {sql!r}. Begin with SELECT or FROM.")
    return answer
