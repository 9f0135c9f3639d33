"""Owns how data sets of others are read from Parquet and written to it. Does not own the rows of runs (`storage.tables`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from storage.errors import BadInput
from storage.files import write_whole


def read_rows(path: Path, columns: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The rows of a Parquet file in its order, with these columns ([] = all); a column that the file lacks is left out."""
    try:
        with pq.ParquetFile(path) as file:
            found = file.schema_arrow.names
            table = file.read([name for name in found if name in columns] if columns else None)
    except (OSError, pa.ArrowException) as error:
        reason = str(error).partition("\n")[0]
        raise BadInput(f"a .parquet file must be readable as Parquet: {path} is not ({reason}). Copy it anew.") from None
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the rows as Parquet, whole or not at all. The columns are those of the first row; each is of one type."""
    columns, sink = {}, pa.BufferOutputStream()
    for name in rows[0] if rows else ():
        with _of_one_type(f" in {name!r}"):
            columns[name] = pa.array([row.get(name) for row in rows])
    with _of_one_type():
        pq.write_table(pa.table(columns), sink, compression="zstd")
    write_whole(path, sink.getvalue().to_pybytes())


@contextmanager
def _of_one_type(place: str = "") -> Iterator[None]:
    """What Arrow refuses, as `BadInput` in one line; of a whole table it says itself which column it is."""
    try:
        yield
    except (pa.ArrowException, OverflowError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise BadInput(
            f"each column of a data set must be of one type: got {reason}{place}. Give that column one type in the files "
            "that were read, or take it out."
        ) from None
