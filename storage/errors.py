"""Owns the root of the exception tree and the errors of storage. Does not own what to do about them.

The rest of the tree is drawn in `jobs/errors.py`; it grows from here because packages import only to their right.
"""

from __future__ import annotations


class SpecSweepError(Exception):
    """Everything that SpecSweep raises on purpose."""

    @property
    def kind(self) -> str:
        """`EngineDidNotStart` → `engine_did_not_start`: the name in rows, that people query for."""
        return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in type(self).__name__).lstrip("_")

    @property
    def text(self) -> str:
        """What a row says of it."""
        return str(self)


class BadInput(SpecSweepError):
    """A mistake in what the user gave: one line (rule; value; what exists; remedy), exit code 2, nothing started."""


class BadRun(BadInput):
    """A run folder that cannot be read or written: absent, unreadable, foreign, or of a newer schema."""


class StorageFailed(SpecSweepError):
    """The disk or bucket refused a write (full, read-only, gone). What was committed before stays."""
