"""Owns the command `python sweep.py ...`: its words for what went wrong and its exit codes. Has no logic of its own.

Exit codes: 0 every cell measured; 1 some cells failed or invalid, or the results could not be written; 2 bad input, nothing
started; 130 interrupted by a signal (what was measured is kept, the same command goes on).
"""

from __future__ import annotations

import sys

from rich.console import Console

from jobs.errors import BadInput, SpecSweepError
from orchestrator.config import compose
from orchestrator.interrupts import INTERRUPTED
from orchestrator.reconcile import reconcile

FAILED, BAD_INPUT = 1, 2


def main(argv: list[str]) -> int:
    try:
        sweep = compose(argv)
        return reconcile(sweep, ["python", "sweep.py", *argv], Console(highlight=False)) if sweep else 0
    except BadInput as mistake:
        print(f"sweep.py: {mistake}", file=sys.stderr)
        return BAD_INPUT
    except SpecSweepError as failure:
        print(f"sweep.py: {failure}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:  # before there was anything to stop
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
