"""Owns reports: views → Markdown and the terminal. Does not own any number: every one comes from `storage/views/`."""

from __future__ import annotations

from collections.abc import Sequence

from storage.files import write_whole
from storage.places import Place
from storage.report.findings import Findings, find
from storage.report.markdown import page
from storage.report.terminal import render_summary

__all__ = ["find", "page", "render_summary", "report_of", "write_report"]


def report_of(runs: Sequence[Place | str]) -> str:
    """The Markdown report over these runs. Raises `BadRun` as `open_runs` does."""
    return page(find(runs))


def write_report(run_folder: Place, findings: Findings) -> Place:
    """Write `report.md` into the run that was read; returns its path."""
    path = run_folder / "report.md"
    write_whole(path, page(findings).encode())
    return path
