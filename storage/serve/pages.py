"""Owns the pages: an address → what is shown there. Does not own who may ask (`guard.py`), or how SQL is confined."""

from __future__ import annotations

import csv
import functools
import io
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from storage.errors import BadInput, SpecSweepError
from storage.glossary import Word, columns_of, meaning_of, words
from storage.report import html_of
from storage.report.between import COLUMNS, HOW_TO_READ, MAX_LISTED, Change, cells_of, changes_between, summary_of
from storage.report.html import PAGE as REPORT_PAGE
from storage.serve.guard import Door, Guard
from storage.serve.sandbox import Answer, Sandbox
from storage.serve.shelf import Shelf
from storage.views import PUBLIC_VIEWS, open_runs

PAGE = Path(__file__).parent / "page"
FIRST_WAIT_S = 1.0  # of the list for runs that are read for the first time; what is not there then comes later
MAX_CHARACTERS = 20_000  # of a statement
SANDBOXED = {"Content-Security-Policy": "sandbox allow-scripts allow-downloads; frame-ancestors 'none'"}
"""A report brings scripts inside: they see the report, and none of the other pages."""

EXAMPLES = (
    "SELECT run, draft, load, al, user_tps_p50, valid FROM cells ORDER BY al DESC",
    "SELECT run, draft, load, metric, ratio, ci_low, ci_high FROM draft_speedups WHERE category = 'all' AND significant",
    "SELECT run, reason, remedy, count(*) AS n FROM cell_verdicts GROUP BY ALL ORDER BY n DESC",
)


@dataclass(frozen=True)
class Limits:
    """Of one question in SQL."""

    seconds: float = 30.0
    rows: int = 500
    downloaded_rows: int = 100_000


class Pages:
    """One method an address; each runs in a thread of its own."""

    def __init__(self, shelf: Shelf, limits: Limits) -> None:
        self._shelf, self._limits, self._sandbox = shelf, limits, Sandbox()
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(PAGE),
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=jinja2.StrictUndefined,
        )

    def routes(self) -> list[Route]:
        places = {
            "/": self.runs, "/rows": self.rows, "/report/{run}": self.report, "/compare": self.compare, "/sql": self.sql,
            "/answer.csv": self.answer, "/serve.css": self.style, "/serve.js": self.script,
        }  # fmt: skip
        return [Route(path, act) for path, act in places.items()]

    def runs(self, request: Request) -> Response:
        summaries = self._shelf.summaries(FIRST_WAIT_S)
        return self._page("runs.html.j2", title="Runs", folder=str(self._shelf.folder), summaries=summaries)

    def rows(self, request: Request) -> Response:
        """The list alone, for the script that keeps it up to date."""
        return self._page("rows.html.j2", summaries=self._shelf.summaries())

    def report(self, request: Request) -> Response:
        folders = self._shelf.named([request.path_params["run"]])
        return HTMLResponse(self._shelf.kept("report", folders, lambda: html_of(folders)), headers=SANDBOXED)

    def compare(self, request: Request) -> Response:
        """The first run that is named against the second."""
        names = request.query_params.getlist("run")
        if len(names) != 2 or names[0] == names[1]:
            raise BadInput(
                f"Two runs are compared: got {len(set(names))}. Choose the run before and the run after in the list."
            )
        after, before = self._shelf.named(names)
        changes = self._shelf.kept("compare", [before, after], lambda: changes_between(before, after))
        return self._page(
            "compare.html.j2",
            title=f"{after.name} against {before.name}",
            before=before.name,
            after=after.name,
            summary=summary_of(changes) if changes else "",
            how_to_read=HOW_TO_READ,
            columns=COLUMNS,
            parts=_parts(changes),
        )

    def sql(self, request: Request) -> Response:
        sql, names = _asked(request)
        told: dict[str, Any] = {"answer": None, "error": ""}
        if sql:
            try:
                told["answer"] = self._ask(names, sql, self._limits.rows)
            except SpecSweepError as error:
                told["error"] = str(error)
        told |= {"sql": sql, "chosen": names, "runs": list(self._shelf.runs()), "query": request.url.query}
        told |= {"views": described_views(), "examples": EXAMPLES, "limits": self._limits}
        return self._page("sql.html.j2", 400 if told["error"] else 200, title="SQL", **told)

    def answer(self, request: Request) -> Response:
        sql, names = _asked(request)
        answer = self._ask(names, sql, self._limits.downloaded_rows)
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(answer.columns)
        writer.writerows(answer.rows)
        headers = {"Content-Disposition": 'attachment; filename="specsweep.csv"'}
        return PlainTextResponse(text.getvalue(), media_type="text/csv", headers=headers)

    def style(self, request: Request) -> Response:
        """That of the report, and what is added here."""
        files = (REPORT_PAGE / "report.css", PAGE / "serve.css")
        return Response("\n".join(file.read_text(encoding="utf-8") for file in files), media_type="text/css")

    def script(self, request: Request) -> Response:
        return Response((PAGE / "serve.js").read_text(encoding="utf-8"), media_type="text/javascript")

    def mistake(self, request: Request, error: Exception) -> Response:
        status = 400 if isinstance(error, BadInput) else 500
        if request.url.path == "/answer.csv":
            return PlainTextResponse(f"{error}\n", status)
        return self._page("mistake.html.j2", status, title="A mistake", error=str(error))

    def _ask(self, names: Sequence[str], sql: str, most_rows: int) -> Answer:
        if len(sql) > MAX_CHARACTERS:
            raise BadInput(f"SQL may have {MAX_CHARACTERS} characters here: got {len(sql)}. Use storage.query for more.")
        folders = self._shelf.named(names)
        with self._shelf.turn():
            return self._sandbox.answer(folders, sql, most_rows=most_rows, limit_s=self._limits.seconds)

    def _page(self, template: str, status: int = 200, /, **told: Any) -> Response:
        return HTMLResponse(self._templates.get_template(template).render(**told), status)


def create_app(shelf: Shelf, door: Door, limits: Limits) -> Starlette:
    """The whole page behind its door."""
    pages = Pages(shelf, limits)
    return Starlette(
        routes=pages.routes(),
        middleware=[Middleware(Guard, door=door), Middleware(GZipMiddleware)],
        exception_handlers={SpecSweepError: pages.mistake},
    )


@functools.cache
def described_views() -> Sequence[tuple[str, str, Sequence[tuple[str, Word]]]]:
    """Of every view: name, meaning, and each column's type and meaning; from a database with no rows."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "cells").mkdir()
        with open_runs([folder]) as runs:
            columns = columns_of(runs)
    return [
        (view, words()[0].get(view, ""), [(kind.lower(), _word(view, name)) for name, kind in columns[view]])
        for view in PUBLIC_VIEWS
    ]


def _word(view: str, column: str) -> Word:
    return meaning_of(view, column) or Word(column, "", "")


def _asked(request: Request) -> tuple[str, list[str]]:
    return request.query_params.get("sql", "").strip(), request.query_params.getlist("run")


def _parts(changes: Sequence[Change]) -> list[tuple[str, list[list[str]], int]]:
    """Head, rows and number of what got worse, better, and neither."""
    parts = {
        "Worse": [change for change in changes if change.is_regression],
        "Better": [change for change in reversed(changes) if change.is_gain],
        "Within noise, or not valid": [change for change in changes if not (change.is_regression or change.is_gain)],
    }
    return [
        (head, [list(cells_of(change)) for change in some[:MAX_LISTED]], len(some)) for head, some in parts.items() if some
    ]
