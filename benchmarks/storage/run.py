"""Owns the benchmark of storage: a run of realistic gaps is written, and asked what users ask. Does not own any metric.

    python benchmarks/storage/run.py --events 10000000 [--compact] [--json]

Gaps are log-normal around 40 ms at nanosecond resolution: their entropy alone is 3.2 bytes. A cell has 200 requests of 250
chunks or fewer, half of the cells speculate, and every speculative one has its baseline.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402

from jobs.spec import Cell, Deployment, Draft, Engine, Load, Model, Sampling, Workload  # noqa: E402
from storage.query import ask  # noqa: E402
from storage.rows import CellResult, CellRow, RequestRow  # noqa: E402
from storage.runs import RunStore  # noqa: E402
from storage.views import open_runs  # noqa: E402

CHUNKS, REQUESTS, K = 250, 200, 3
PERCENTILES = "SELECT percentile(0.5, itl_ms), percentile(0.9, itl_ms), percentile(0.99, itl_ms), count(itl_ms) FROM chunks"
TIMING = ("chunk_gap_ns", "chunk_tokens", "step_drafted", "step_accepted")


@dataclass
class Result:
    """What is printed. Bytes are of whole files but for `output_ids`, which are there once more with them."""

    events: int
    cells: int
    bytes_per_event: float
    bytes_per_event_with_ids: float
    bytes_per_gap: float
    write_events_per_cpu_s: float
    write_events_per_s: float
    compact_s: float | None
    files: int
    open_s: float
    percentiles_s: float
    percentiles_cpu_s: float
    cells_s: float
    cells_cpu_s: float
    speedups_s: float
    speedups_cpu_s: float
    speedups_rows: int
    peak_mb: float
    load_average: float


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        result = measure(Path(folder) / "run", options)
    if options.json:
        print(json.dumps(asdict(result)))
        return
    for name, value in asdict(result).items():
        print(f"{name:26} {value:,.3f}" if isinstance(value, float) else f"{name:26} {value}")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Bytes an event, write rate, and the time of what users ask.")
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--cells", type=int, default=0, help="default: one for 50,000 events, at least 2")
    parser.add_argument("--requests", type=int, default=REQUESTS, help="of a cell")
    parser.add_argument("--compact", action="store_true", help="compact the run before it is asked")
    parser.add_argument("--folder", type=Path, help="where the run is made (default: the temporary folder)")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(arguments)


def measure(folder: Path, options: argparse.Namespace) -> Result:
    """Write the run, ask it, and say what both took."""
    n_cells = max(2, (options.cells or options.events // (CHUNKS * options.requests)) // 2 * 2)
    n_chunks = max(2, round(options.events / (n_cells * options.requests)))
    events = n_cells * options.requests * n_chunks
    with RunStore.create(folder, "grid: benchmark\n") as store:
        wall_s, cpu_s = _write(store, results(n_cells, options.requests, n_chunks))
    compact_s = _compacted(folder) if options.compact else None
    n_bytes, ids_bytes, gap_bytes, n_files = _sizes(folder)
    with open_runs([folder]) as runs:
        opened = _timed(lambda: open_runs([folder]).close())[0]
        percentiles_s, percentiles_cpu_s, [(*_, n_gaps)] = _timed(lambda: runs.execute(PERCENTILES).fetchall())
        assert n_gaps == events - n_cells * options.requests, "every gap but the first of each request is counted"
        cells_s, cells_cpu_s, _ = _timed(lambda: runs.execute("FROM cells").fetchall())
        speedups_s, speedups_cpu_s, speedups = _timed(lambda: ask(runs, "FROM speedups").fetchall())
    return Result(
        events,
        n_cells,
        (n_bytes - ids_bytes) / events,
        n_bytes / events,
        gap_bytes / events,
        events / cpu_s,
        events / wall_s,
        compact_s,
        n_files,
        opened,
        percentiles_s,
        percentiles_cpu_s,
        cells_s,
        cells_cpu_s,
        speedups_s,
        speedups_cpu_s,
        len(speedups),
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        os.getloadavg()[0],
    )


def _write(store: RunStore, made: Iterator[CellResult]) -> tuple[float, float]:
    """Seconds and CPU seconds of writing alone; making the rows is not counted."""
    wall_s = cpu_s = 0.0
    for result in made:
        wall, cpu = time.perf_counter(), time.process_time()
        store.write(result)
        wall_s += time.perf_counter() - wall
        cpu_s += time.process_time() - cpu
    return wall_s, cpu_s


def _timed(ask: Callable[[], Any]) -> tuple[float, float, Any]:
    """Seconds, CPU seconds of all threads, and the answer."""
    begun, begun_cpu = time.perf_counter(), time.process_time()
    answer = ask()
    return time.perf_counter() - begun, time.process_time() - begun_cpu, answer


def _compacted(folder: Path) -> float:
    from storage.compact import compact

    return _timed(lambda: compact(folder, grace_s=0))[0]


def _sizes(folder: Path) -> tuple[int, int, int, int]:
    """Bytes of the files of requests, of their `output_ids`, of their gaps; and how many files there are."""
    paths = list((folder / "requests").glob("*.parquet"))
    ids = gaps = 0
    for path in paths:
        ids += _column_bytes(path, "output_ids")
        gaps += _column_bytes(path, "chunk_gap_ns")
    return sum(path.stat().st_size for path in paths), ids, gaps, len(paths)


def _column_bytes(path: Path, name: str) -> int:
    metadata = pq.read_metadata(path)
    groups = [metadata.row_group(n) for n in range(metadata.num_row_groups)]
    columns = [group.column(n) for group in groups for n in range(group.num_columns)]
    return sum(column.total_compressed_size for column in columns if column.path_in_schema.startswith(name))


def results(n_cells: int, n_requests: int, n_chunks: int) -> Iterator[CellResult]:
    """Pairs of a baseline and a speculative cell with the same prompts, one concurrency each."""
    random = np.random.default_rng(0)
    for n in range(n_cells):
        method, k = (("none", 0), ("ngram", K))[n % 2]
        deployment = Deployment(Model("bench", "/models/bench"), Engine(version=""), Draft(method=method, k=k))
        row = _row(Cell(deployment, Workload(), Sampling(), Load(concurrency=1 + n // 2)))
        yield CellResult(row, [_request(row, index, n_chunks, k, random) for index in range(n_requests)])


def _row(cell: Cell) -> CellRow:
    return CellRow(
        cell_id=cell.id,
        attempt=1,
        session_id="s",
        invocation_id="i",
        deployment_id=cell.deployment.id,
        pair_id=cell.pair_id,
        position=0,
        status="ok",
        cell_json=json.dumps(asdict(cell)),
        started_at="2026-01-01T00:00:00+00:00",
        duration_ns=60_000_000_000,
    )


def _request(row: CellRow, index: int, n_chunks: int, k: int, random: np.random.Generator) -> RequestRow:
    accepted = random.binomial(k, 0.6, n_chunks).astype(np.int32)
    return RequestRow(
        cell_id=row.cell_id,
        attempt=1,
        index=index,
        turn=0,
        question_id=f"question-{index}",
        category=("coding", "math", "writing", "roleplay")[index % 4],
        sub_category="",
        prompt_tokens=int(random.integers(50, 2000)),
        prompt_hash=f"{index:016x}",
        t_sched_ns=index * 1_000_000,
        t_sent_ns=index * 1_000_000 + int(random.integers(1000, 100_000)),
        chunk_gap_ns=np.rint(random.lognormal(np.log(40e6), 0.35, n_chunks)).astype(np.int64),
        chunk_tokens=accepted + 1,
        step_drafted=np.full(n_chunks if k else 0, k, np.int32),
        step_accepted=accepted if k else (),
        first_step_is_prefill=False,
        output_ids=random.zipf(1.2, int(accepted.sum()) + n_chunks).clip(max=128_000).astype(np.int32),
        output_hash=f"{random.integers(2**60):016x}",
        finish_reason="length",
    )


if __name__ == "__main__":
    main()
