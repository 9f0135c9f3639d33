"""Owns what is counted of a run's records: what was lost or measured twice, the least time it could take, the overheads.

Does not own the run. `lower_bound_s` is what the sessions would take without kills, with perfect packing: the seconds of
the good cells and one engine start a deployment, divided by the seats, or the longest session. Those seconds are measured in
this very run: on a busy machine they are longer, and so is the bound.
"""

from __future__ import annotations

from pathlib import Path

from duckdb import DuckDBPyConnection

from storage.views import open_records

CELLS = """
CREATE TEMP TABLE tries AS
SELECT cell_id, deployment_id, session_id, status = 'ok' AS good, duration_ns / 1e9 AS took_s,
       epoch(started_at::TIMESTAMPTZ) AS began, began + took_s AS ended,
       began - lag(ended) OVER (PARTITION BY session_id ORDER BY position) AS since_last_s
FROM recorded_cells WHERE session_id <> '';
CREATE TEMP TABLE sessions AS
SELECT deployment_id, ready_s, epoch(started_at::TIMESTAMPTZ) AS began, began + ended_s AS ended,
       ended_s - (SELECT max(tries.ended) - min(tries.began) FROM tries WHERE tries.session_id = s.session_id) AS beside_s
FROM recorded_sessions s WHERE ready_s IS NOT NULL
"""
FATES = """
SELECT count(DISTINCT cell_id) FILTER (good), count(*) FILTER (good) - count(DISTINCT cell_id) FILTER (good),
       count(*) FILTER (NOT good)
FROM tries
"""
ROWS_TWICE = "SELECT count(*) - count(DISTINCT (cell_id, attempt, index, turn)) FROM recorded_requests"
WORK = """
WITH starts AS (SELECT median(ready_s) AS start_s FROM sessions),
work AS (SELECT deployment_id, sum(took_s) + any_value(start_s) AS session_s FROM tries, starts WHERE good GROUP BY 1)
SELECT max(start_s), avg(session_s), greatest(sum(session_s) / $seats, max(session_s)) FROM work, starts
"""
BESIDE = """
WITH starts AS (SELECT began, row_number() OVER (ORDER BY began) - $seats AS number FROM sessions),
ends AS (SELECT ended, row_number() OVER (ORDER BY ended) AS number FROM sessions WHERE ended IS NOT NULL)
SELECT (SELECT bool_and(ended IS NOT NULL) FROM sessions),
       (SELECT median(beside_s) FROM sessions),
       (SELECT median(began - ended) FROM starts JOIN ends USING (number)), -- the seat that became free first is taken first
       (SELECT median(since_last_s) FROM tries),
       (SELECT max(ended) - min(began) FROM sessions)
"""


def counted(run: Path, cells: int, seats: int, makespan_s: float) -> dict[str, object]:
    """`session_overhead_s`: from a session's end to the next one's start on that seat, and all in it that is neither a cell
    nor between cells: the engine's start and stop. `cell_overhead_s`: from a cell's end to the next one's start.
    `command_overhead_s`: before the first session and after the last: Ray's first workers, the report. None where kills make
    both meaningless.
    """
    with open_records([run]) as runs:
        runs.execute(CELLS)
        measured, twice, failed = one(runs, FATES)
        start_s, session_s, bound_s = one(runs, WORK, seats)
        is_whole, beside_s, between_s, cell_s, span_s = one(runs, BESIDE, seats)
        return {
            "cells": cells,
            "measured": int(measured),
            "lost": cells - int(measured),
            "duplicated": int(twice + one(runs, ROWS_TWICE)[0]),
            "failed_tries": int(failed),
            "makespan_s": round(makespan_s, 1),
            "lower_bound_s": round(bound_s, 1),
            "ratio": round(makespan_s / bound_s, 3),
            "session_s": round(session_s, 1),
            "engine_start_s": round(start_s, 2),
            "session_overhead_s": round(beside_s + between_s, 2) if is_whole else None,
            "cell_overhead_s": round(cell_s, 3),
            "command_overhead_s": round(makespan_s - span_s, 1) if is_whole else None,
        }


def one(runs: DuckDBPyConnection, sql: str, seats: int | None = None) -> tuple[float, ...]:
    """The only row; nothing to count is 0."""
    row = runs.execute(sql, {"seats": seats} if seats else None).fetchone() or ()
    return tuple(value or 0.0 for value in row)
