"""Owns what an interruption is: the same wherever it comes, and without a word. Does not own what is stopped by it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

INTERRUPTED = 130
"""The exit code."""


@contextmanager
def interruptible_queries() -> Iterator[None]:
    """What DuckDB makes of a Ctrl-C becomes again what it was."""
    try:
        yield
    except RuntimeError as error:
        if str(error) == "Query interrupted":
            raise KeyboardInterrupt from error
        raise


def end_without_a_word() -> None:
    """While a command is imported: a KeyboardInterrupt that nobody catches, or that nobody can, is no traceback."""
    sys.excepthook, sys.unraisablehook = _uncaught, _unraisable


def end_in_order() -> None:
    """From now on, a KeyboardInterrupt that cannot be raised (in a `__del__`) ends nothing: there is much to put away."""
    if sys.unraisablehook is _unraisable:
        sys.unraisablehook = sys.__unraisablehook__


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        raise SystemExit(INTERRUPTED)
    sys.__excepthook__(kind, error, trace)


def _unraisable(what: sys.UnraisableHookArgs) -> None:
    """The import system has callbacks; in one of them an interruption would be told, and then be forgotten."""
    if issubclass(what.exc_type, KeyboardInterrupt):
        os._exit(INTERRUPTED)
    sys.__unraisablehook__(what)
