"""Owns the way in for notebooks. Does not own what it opens (`storage.views`)."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from storage.interrupted import end_without_a_word

if TYPE_CHECKING:
    import duckdb

    from storage.places import Place

__all__ = ["open_runs"]

if sys.argv[:1] == ["-m"]:  # one of our commands is being looked up: it has yet to be imported
    end_without_a_word()


def open_runs(patterns: Place | str | Iterable[Place | str]) -> duckdb.DuckDBPyConnection:
    """Every view over the runs that a folder, a glob, or several of them name.

    `open_runs("results/*").sql("FROM drafts").df()`, or `.pl()`: those need the extra `notebook`. Files are only read; the
    database is in memory. DuckDB is imported here, so that `storage.errors` needs nothing.
    """
    from storage.places import BucketPath
    from storage.views import open_runs as open_all

    return open_all([patterns] if isinstance(patterns, str | Path | BucketPath) else patterns)
