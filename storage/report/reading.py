"""Owns how rows of views become plain dicts. Does not own what is asked."""

from __future__ import annotations

from typing import Any

import duckdb

Row = dict[str, Any]
"""A row with the columns of the view that it comes from."""


def rows_of(runs: duckdb.DuckDBPyConnection, sql: str) -> list[Row]:
    """The answer, in its order."""
    answer = runs.execute(sql)
    names = [column[0] for column in answer.description]
    return [dict(zip(names, row, strict=True)) for row in answer.fetchall()]
