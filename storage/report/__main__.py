"""Owns `python -m storage.report`. Does not own what a report says."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from storage.errors import BadInput, SpecSweepError
from storage.files import write_whole
from storage.report import report_of


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code: 0 reported, 1 the report could not be written, 2 bad input."""
    parser = argparse.ArgumentParser(prog="python -m storage.report", description="A Markdown report over one run or many.")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run's folder, or a glob of them")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write there instead of to stdout")
    options = parser.parse_args(arguments)
    try:
        text = report_of(options.runs)
        if options.output:
            write_whole(options.output, text.encode())
        else:
            sys.stdout.write(text)
    except SpecSweepError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 2 if isinstance(error, BadInput) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
