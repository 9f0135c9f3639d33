"""Owns reports: views → Markdown, HTML and the terminal. Does not own any number: every one comes from `storage/views/`."""

from __future__ import annotations

from collections.abc import Sequence

from storage.files import write_whole
from storage.places import Place
from storage.report.between import Change
from storage.report.findings import Findings, find
from storage.report.html import html_page
from storage.report.markdown import page
from storage.report.terminal import render_summary

__all__ = ["find", "html_of", "page", "render_summary", "report_of", "write_report"]


def report_of(runs: Sequence[Place | str]) -> str:
    """The Markdown report over these runs. Raises `BadRun` as `open_runs` does."""
    return page(find(runs))


def html_of(runs: Sequence[Place | str], changes: Sequence[Change] = ()) -> str:
    """The HTML report over these runs, in one file; of two also what changed. Raises `BadRun` as `open_runs` does."""
    return html_page(find(runs), changes)


def write_report(run_folder: Place, findings: Findings) -> Place:
    """Write `report.md` and `report.html` into the run that was read; returns the path of the page to open."""
    path = run_folder / "report.html"
    write_whole(run_folder / "report.md", page(findings).encode())
    write_whole(path, html_page(findings).encode())
    return path
