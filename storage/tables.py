"""Owns the Arrow schema of every kind of row, and how it is encoded in Parquet. Does not own paths or metrics.

A schema names its columns explicitly and in the order of the dataclass in `storage/rows.py`; a test holds the two together.
Encodings are measured (`benchmarks/storage`): a gap of 3.2 bytes of entropy takes 3.46 in DELTA_BINARY_PACKED, 4.1 plain,
and 7 with the default dictionary. BYTE_STREAM_SPLIT takes 3.34, but DuckDB 1.5, the last for Python 3.10, cannot read it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from storage.redact import redact
from storage.rows import CellRow, DecisionRow, RequestRow, ScoredRow, SessionRow, TelemetryRow

Row = SessionRow | CellRow | RequestRow | ScoredRow | TelemetryRow | DecisionRow

_TEXT, _INT, _REAL, _FLAG = pa.string(), pa.int64(), pa.float64(), pa.bool_()
_COUNTS, _TIMES, _REALS = pa.list_(pa.int32()), pa.list_(pa.int64()), pa.list_(pa.float64())
_COUNTERS = pa.map_(pa.string(), pa.float64())


def _schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema(list(columns.items()))


SESSIONS = _schema(
    session_id=_TEXT,
    invocation_id=_TEXT,
    deployment_id=_TEXT,
    deployment_json=_TEXT,
    status=_TEXT,
    started_at=_TEXT,
    ready_s=_REAL,
    ended_s=_REAL,
    error_kind=_TEXT,
    error=_TEXT,
    engine_version=_TEXT,
    effective_config_json=_TEXT,
    simulated=_FLAG,
    weights_bytes=_INT,
    draft_weights_bytes=_INT,
    kv_capacity_tokens=_INT,
    peak_memory_bytes=_INT,
    node=_TEXT,
    host_json=_TEXT,
    gpus_json=_TEXT,
    versions_json=_TEXT,
    git_commit=_TEXT,
    git_dirty=_FLAG,
    log=_TEXT,
    schema_version=_INT,
)

CELLS = _schema(
    cell_id=_TEXT,
    attempt=_INT,
    session_id=_TEXT,
    invocation_id=_TEXT,
    deployment_id=_TEXT,
    pair_id=_TEXT,
    position=_INT,
    status=_TEXT,
    cell_json=_TEXT,
    started_at=_TEXT,
    duration_ns=_INT,
    error_kind=_TEXT,
    error=_TEXT,
    caches_reset=_FLAG,
    counters_before=_COUNTERS,
    counters_after=_COUNTERS,
    clock=_TEXT,
    clock_stepped=_FLAG,
    late_send_ns=_TIMES,
    merged_reads=_INT,
    loop_lag_ns_max=_INT,
    client_cpu_share=_REAL,
    load_average=_REAL,
    scored_error=_TEXT,
    schema_version=_INT,
)

REQUESTS = _schema(
    cell_id=_TEXT,
    attempt=_INT,
    index=_INT,
    turn=_INT,
    question_id=_TEXT,
    category=_TEXT,
    sub_category=_TEXT,
    prompt_tokens=_INT,
    prompt_hash=_TEXT,
    t_sched_ns=_INT,
    t_sent_ns=_INT,
    chunk_gap_ns=_TIMES,
    chunk_tokens=_COUNTS,
    step_drafted=_COUNTS,
    step_accepted=_COUNTS,
    first_step_is_prefill=_FLAG,
    last_step_is_cut=_FLAG,
    output_ids=_COUNTS,
    output_hash=_TEXT,
    n_thinking_tokens=_INT,
    output_valid=_FLAG,
    engine_al=_REAL,
    finish_reason=_TEXT,
    error=_TEXT,
    schema_version=_INT,
)

SCORED = _schema(
    cell_id=_TEXT,
    attempt=_INT,
    index=_INT,
    question_id=_TEXT,
    category=_TEXT,
    prompt_hash=_TEXT,
    output_ids=_COUNTS,
    logprobs=_REALS,
    error=_TEXT,
    schema_version=_INT,
)

TELEMETRY = _schema(
    cell_id=_TEXT,
    attempt=_INT,
    t_ns=_INT,
    device=_TEXT,
    utilisation=_REAL,
    memory_bytes=_INT,
    power_w=_REAL,
    clock_mhz=_REAL,
    temperature_c=_REAL,
    energy_j=_REAL,
    throttle_reasons=_INT,
    ecc_corrected=_INT,
    ecc_uncorrected=_INT,
    xid=_INT,
    other_processes=_INT,
    other_memory_bytes=_INT,
    schema_version=_INT,
)

DECISIONS = _schema(
    search_id=_TEXT,
    number=_INT,
    round=_INT,
    action=_TEXT,
    goal=_TEXT,
    metric=_TEXT,
    question=_TEXT,
    reason=_TEXT,
    presumed=_TEXT,
    cell_id=_TEXT,
    deployment_id=_TEXT,
    pair_id=_TEXT,
    draft=_TEXT,
    k=_INT,
    concurrency=_INT,
    value=_REAL,
    low=_REAL,
    high=_REAL,
    pays_to=_INT,
    costs_from=_INT,
    schema_version=_INT,
)

SCHEMAS: Mapping[str, pa.Schema] = {
    "sessions": SESSIONS,
    "cells": CELLS,
    "requests": REQUESTS,
    "scored": SCORED,
    "telemetry": TELEMETRY,
}
"""folder of a run → schema of the files in it. Those of `decisions/` are rewritten whole, and so are never compacted."""

_DELTA = ("t_sched_ns", "t_sent_ns", "t_ns", "late_send_ns.list.element", "chunk_gap_ns.list.element")
_PLAIN = (
    "output_ids.list.element",
    "logprobs.list.element",
)  # hardly ever repeats: a dictionary of token ids only adds to them


def to_parquet(rows: Sequence[Row], schema: pa.Schema) -> bytes:
    """The rows as one Parquet file with one row group; every string is redacted, lists may be numpy arrays."""
    columns = [pa.array([_value(getattr(row, name)) for row in rows], type=schema.field(name).type) for name in schema.names]
    sink = pa.BufferOutputStream()
    with parquet_writer(sink, schema) as writer:
        writer.write_table(pa.table(columns, schema=schema))
    content: bytes = sink.getvalue().to_pybytes()
    return content


def parquet_writer(sink: pa.NativeFile, schema: pa.Schema) -> pq.ParquetWriter:
    """A writer of rows of this schema, which may be an older one's. The caller closes it, and then the sink."""
    paths = _column_paths(schema)
    return pq.ParquetWriter(
        sink,
        schema,
        compression="zstd",
        compression_level=3,
        use_dictionary=[path for path in paths if path not in (*_DELTA, *_PLAIN)],
        column_encoding={path: "DELTA_BINARY_PACKED" for path in paths if path in _DELTA},
        write_statistics=["cell_id", "schema_version"],
        store_schema=False,
    )


def _column_paths(schema: pa.Schema) -> list[str]:
    return [f"{field.name}.list.element" if pa.types.is_list(field.type) else field.name for field in schema]


def _value(value: Any) -> Any:
    if isinstance(value, str):
        return redact(value)
    return list(value.items()) if isinstance(value, Mapping) else value
