"""Owns a report as a table for papers and CI: CSV, JSON, Parquet. Does not own its numbers."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from storage.places import Place
from storage.views import open_runs, quoted, readable_files, settle_for

_WIDE = """
SELECT drafts.* EXCLUDE (a_pair_id), {gains} FROM drafts
LEFT JOIN (PIVOT_GAINS) USING (run, deployment_id, condition)
ORDER BY run, engine, model, tp, batch, workload, isl, temperature, variant, load_kind, concurrency, rate,
         method <> 'none', draft
"""
METRICS = ("user_tps", "output_tps", "tpot", "ttft", "e2e")
GAIN = ("ratio", "ci_low", "ci_high", "verdict", "valid", "n_prompts", "n_repeats")
OPTIONS = {"csv": "FORMAT csv, HEADER", "json": "FORMAT json, ARRAY true", "parquet": "FORMAT parquet, COMPRESSION zstd"}


def export_of(runs: Sequence[Place | str], form: str) -> bytes:
    """One row a draft and load: what was measured, and each speed-up with its interval. `form` is csv, json or parquet."""
    with readable_files(), open_runs(runs) as opened, tempfile.TemporaryDirectory() as folder:
        settle_for(opened, ["drafts", "draft_speedups"])
        file = Path(folder) / f"report.{form}"
        opened.execute(f"COPY ({_sql()}) TO {quoted(str(file))} ({OPTIONS[form]})").fetchall()
        return file.read_bytes()


def _sql() -> str:
    """Each metric's comparison beside the measurement, as `user_tps_ratio`, `user_tps_ci_low`, ..."""
    names = [f"{metric}_{part}" for metric in METRICS for part in GAIN]
    parts = [
        f"any_value({part}) FILTER (metric = {quoted(metric)}) AS {metric}_{part}" for metric in METRICS for part in GAIN
    ]
    gains = (
        f"SELECT run, deployment_id, condition, {', '.join(parts)} FROM draft_speedups WHERE category = 'all' GROUP BY ALL"
    )
    return _WIDE.format(gains=", ".join(names)).replace("PIVOT_GAINS", gains)
