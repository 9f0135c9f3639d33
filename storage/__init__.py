"""Owns the way in for notebooks. Does not own what it opens (`storage.views`)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb

    from storage.places import Place

__all__ = ["open_runs"]


def open_runs(patterns: Place | str | Iterable[Place | str]) -> duckdb.DuckDBPyConnection:
    """Every view over the runs that a folder, a glob, or several of them name.

    `open_runs("results/*").sql("FROM drafts").df()`, or `.pl()`: those need the extra `notebook`. Files are only read; the
    database is in memory. DuckDB is imported here, so that `storage.errors` needs nothing.
    """
    from storage.places import BucketPath
    from storage.views import open_runs as open_all

    return open_all([patterns] if isinstance(patterns, str | Path | BucketPath) else patterns)
