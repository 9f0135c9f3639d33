"""What DuckDB 1.5 refuses, the last one for Python 3.10: found there, and looked for here with any."""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.parquet as pq
from recorded import create_cell, create_request, create_row

from storage.tables import SCHEMAS, to_parquet
from storage.views import views_sql


def test_no_two_views_name_their_windows_alike() -> None:
    names = re.findall(r"\bWINDOW (\w+) AS", re.sub(r"--.*", "", views_sql()))

    assert names
    assert sorted(names) == sorted(set(names))


def test_no_whole_number_is_written_in_an_encoding_that_only_newer_ones_read() -> None:
    content = to_parquet([create_request(create_row(create_cell()))], SCHEMAS["requests"])

    group = pq.read_metadata(pa.BufferReader(content)).row_group(0)
    columns = [group.column(n) for n in range(group.num_columns)]
    assert not [column.path_in_schema for column in columns if "BYTE_STREAM_SPLIT" in column.encodings]
