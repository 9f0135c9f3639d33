"""Owns `python -m storage.report`. Does not own what a report says."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from storage.command import OneLineParser, run_command, write_output
from storage.report import report_of


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code: 0 reported, 1 the report could not be written, 2 bad input."""
    parser = OneLineParser(prog="python -m storage.report", description="A Markdown report over one run or many.")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run's folder, or a glob of them")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write there instead of to stdout")
    return run_command(lambda: _report(parser.parse_args(arguments)))


def _report(options: argparse.Namespace) -> int:
    text = report_of(options.runs)
    if options.output:
        write_output(options.output, text.encode())
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
