"""What DuckDB 1.5 refuses, the last one for Python 3.10: found there, and looked for here with any."""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from recorded import DECISION, create_cell, create_request, create_row, create_session

from storage.rows import ScoredRow, TelemetryRow
from storage.tables import DECISIONS, SCHEMAS, to_parquet
from storage.views import views_sql

KINDS = {**SCHEMAS, "decisions": DECISIONS}
CELL = create_row(create_cell())
ROWS = {
    "sessions": create_session(CELL),
    "cells": CELL,
    "requests": create_request(CELL),
    "scored": ScoredRow(CELL.cell_id, 1, 0, "q", "coding", "p", [1, 2], [-0.5, -0.25]),
    "telemetry": TelemetryRow(CELL.cell_id, 1, 1000, "gpu0", 0.9, 1 << 30, 300.0, 1980.0, 60.0, 1e6, 0, 0, 0, None, 0, 0),
    "decisions": DECISION,
}


def test_no_two_views_name_their_windows_alike() -> None:
    names = re.findall(r"\bWINDOW (\w+) AS", re.sub(r"--.*", "", views_sql()))

    assert names
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("kind", KINDS)
def test_no_whole_number_is_written_in_an_encoding_that_only_newer_ones_read(kind: str) -> None:
    group = pq.read_metadata(pa.BufferReader(to_parquet([ROWS[kind]], KINDS[kind]))).row_group(0)

    columns = [group.column(n) for n in range(group.num_columns)]
    assert len(columns) >= len(KINDS[kind])
    assert not [column.path_in_schema for column in columns if "BYTE_STREAM_SPLIT" in column.encodings]
