"""Owns `python -m storage.report`. Does not own what a report says."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from storage.command import OneLineParser, run_command, write_output
from storage.errors import BadInput
from storage.report import find, html_of, render_summary, report_of
from storage.report.between import Change, changes_between, changes_page, missing_of
from storage.report.exports import export_of
from storage.views import find_runs

EPILOG = """\
examples:
  python -m storage.report results/quickstart -o report.html          one file to send around
  python -m storage.report 'results/*' -o drafts.csv                  a row a draft and load, with its comparisons
  python -m storage.report results/before results/after -o changes.html    what changed, then the report over both
  python -m storage.report results/before results/after --fail-on-regression
"""
REGRESSED = 1

WRITERS: dict[str, Callable[[Sequence[Path | str], Sequence[Change]], bytes]] = {
    ".md": lambda runs, changes: _markdown(runs, changes).encode(),
    ".html": lambda runs, changes: html_of(runs, changes).encode(),
    ".csv": lambda runs, _: export_of(runs, "csv"),
    ".json": lambda runs, _: export_of(runs, "json"),
    ".parquet": lambda runs, _: export_of(runs, "parquet"),
}
"""Suffix of the file → its content; of two runs, pages begin with what changed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code: 0 reported, 1 not written or regressed, 2 bad input."""
    return run_command(lambda: _report(_parser().parse_args(arguments)))


def _parser() -> OneLineParser:
    parser = OneLineParser(
        prog="python -m storage.report",
        description="A report over one run or many; of two runs also what changed from the first to the second.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run's folder, or a glob of them")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="write there: .html, .md, .csv, .json or .parquet; else the summary on a terminal, Markdown through a pipe",
    )
    parser.add_argument(
        "--fail-on-regression", action="store_true", help="of two runs: exit code 1 where the second is slower"
    )
    return parser


def _report(options: argparse.Namespace) -> int:
    folders = find_runs(options.runs)
    _require_known(options.output)
    if options.fail_on_regression and len(folders) != 2:
        raise BadInput(f"--fail-on-regression compares two runs: got {len(folders)}. Name the run before and the run after.")
    changes = changes_between(*folders) if len(folders) == 2 else []
    if options.fail_on_regression and not changes:
        raise BadInput(
            f"--fail-on-regression needs a measurement that both runs have: {folders[0]} and {folders[1]} share none. "
            "Run one grid twice: model, engine, TP, batch, workload, sampling and load the same."
        )
    _write(options, changes)
    if options.fail_on_regression and (missing := missing_of(folders[1])):
        sys.stderr.write(
            f"{folders[1]} is not whole ({missing}). What is missing cannot be compared, and counts as a regression.\n"
        )
        return REGRESSED
    return REGRESSED if options.fail_on_regression and any(change.is_regression for change in changes) else 0


def _write(options: argparse.Namespace, changes: Sequence[Change]) -> None:
    if options.output:
        write_output(options.output, WRITERS[options.output.suffix.lower()](options.runs, changes))
    elif sys.stdout.isatty():
        sys.stdout.write(changes_page(changes) if changes else "")
        Console().print(render_summary(find(options.runs)))
    else:
        sys.stdout.write(_markdown(options.runs, changes))


def _markdown(runs: Sequence[Path | str], changes: Sequence[Change]) -> str:
    return (changes_page(changes) if changes else "") + report_of(runs)


def _require_known(output: Path | None) -> None:
    if output and output.suffix.lower() not in WRITERS:
        raise BadInput(
            f"--output must end in one of {', '.join(WRITERS)}: got {output.name}. Rename it, for example {output.stem}.html"
        )


if __name__ == "__main__":
    sys.exit(main())
