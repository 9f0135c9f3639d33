"""Owns the command `python sweep.py ...`: its words for what went wrong and its exit codes. Has no logic of its own.

Exit codes: 0 every cell measured; 1 some cells failed or invalid, or the results could not be written; 2 bad input, nothing
started; 130 interrupted by a signal (what was measured is kept, the same command goes on).
"""

from __future__ import annotations

import sys

from storage.errors import BadInput, SpecSweepError
from storage.interrupted import INTERRUPTED, end_in_order, end_without_a_word, interruptible_queries

FAILED, BAD_INPUT = 1, 2


def main(argv: list[str]) -> int:
    try:
        with interruptible_queries():
            return _run(argv)
    except BadInput as mistake:
        print(f"sweep.py: {mistake}", file=sys.stderr)
        return BAD_INPUT
    except SpecSweepError as failure:
        print(f"sweep.py: {failure}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:  # before there was anything to stop
        return INTERRUPTED


def _run(argv: list[str]) -> int:
    """Imports what takes a second here, where an interruption is no traceback."""
    from rich.console import Console

    from orchestrator.config import compose
    from orchestrator.reconcile import reconcile

    end_in_order()
    sweep = compose(argv)
    return reconcile(sweep, ["python", "sweep.py", *argv], Console(highlight=False)) if sweep else 0


if __name__ == "__main__":
    end_without_a_word()
    sys.exit(main(sys.argv[1:]))
