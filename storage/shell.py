"""Owns the interactive shell over runs. Does not own views, or how an answer is rendered."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import duckdb

from storage.errors import BadInput
from storage.glossary import columns_of, describe, words
from storage.query import ask, render_table, sql_mistakes, terminal_width
from storage.views import PUBLIC_VIEWS

PROMPT, CONTINUED = "sql> ", "...> "
HELP = "End a statement with ; or an empty line. .views lists the views, .views NAME its columns, .quit (or Ctrl-D) ends."


def talk(runs: duckdb.DuckDBPyConnection) -> None:
    """Answer statements from stdin until it ends; a mistake is one line, Ctrl-C drops the statement."""
    _use_readline(runs)
    _say(describe_views(runs))
    _say(HELP)
    for statement in _statements():
        try:
            if statement in (".quit", ".exit", "exit", "quit"):
                return
            _say(_obey(runs, statement) if statement.startswith(".") else _answer(runs, statement))
        except BadInput as error:
            _say(str(error))
        except KeyboardInterrupt:
            _say("stopped")


def describe_views(runs: duckdb.DuckDBPyConnection) -> str:
    """Each view in a line."""
    views, _ = words()
    width = max(map(len, PUBLIC_VIEWS))
    return "\n".join(f"{view:<{width}}  {views.get(view, '')}" for view in PUBLIC_VIEWS)


def _obey(runs: duckdb.DuckDBPyConnection, statement: str) -> str:
    command, *names = statement.rstrip(";").split()
    if command != ".views" or len(names) > 1:
        return HELP
    if not names:
        return describe_views(runs)
    columns = columns_of(runs)
    if names[0] not in columns:
        raise BadInput(f"A view must exist: got {names[0]}. .views lists them.")
    return "\n".join(describe(names[0], columns[names[0]]))


def _answer(runs: duckdb.DuckDBPyConnection, statement: str) -> str:
    answer = ask(runs, statement)
    if answer is None:
        return "done"
    with sql_mistakes():
        return render_table(answer, terminal_width()).rstrip("\n")


def _statements() -> Iterator[str]:
    lines: list[str] = []
    while True:
        try:
            line = input(CONTINUED if lines else PROMPT)
        except KeyboardInterrupt:
            lines = []
            _say("")
            continue
        except EOFError:
            if lines:
                yield "\n".join(lines)
            return
        lines.append(line.strip())
        if not line.strip() or line.rstrip().endswith(";") or lines[0].startswith(".") or lines[0] in ("exit", "quit"):
            statement = "\n".join(lines).strip()
            lines = []
            if statement:
                yield statement


def _use_readline(runs: duckdb.DuckDBPyConnection) -> None:
    """Line editing, and Tab for the names of views and columns, where the platform has readline."""
    with contextlib.suppress(ImportError):
        import readline

        names = sorted(
            {name for (name,) in runs.execute("SELECT column_name FROM duckdb_columns()").fetchall()} | set(PUBLIC_VIEWS)
        )
        readline.set_completer(lambda text, n: ([name for name in names if name.startswith(text)] + [None])[n])
        readline.parse_and_bind("tab: complete")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
