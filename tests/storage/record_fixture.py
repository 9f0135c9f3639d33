"""Records `fixtures/schema_N`, the run that later versions must still read. Once a version, from the project's root:

PYTHONPATH=. python tests/storage/record_fixture.py
"""

from __future__ import annotations

from pathlib import Path

from recorded import create_cell, create_request, create_row, create_session, record

from storage.rows import SCHEMA_VERSION, CellResult, DecisionRow, ScoredRow, TelemetryRow
from storage.runs import RunStore

FIXTURES = Path(__file__).parent / "fixtures"


def main() -> None:
    results = []
    for method, k, gap_ms in (("none", 0, 20.0), ("ngram", 3, 25.0)):
        row = create_row(create_cell(method, k), counters_after={"drafts": 6.0, "accepted_tokens": 6.0} if k else {})
        requests = [
            create_request(
                row,
                n,
                gaps_ms=(100.0, gap_ms, gap_ms),
                tokens=(1, 2, 2) if k else (1, 1, 1),
                drafted=(0, k, k),
                accepted=(0, 1, 1) if k else (0, 0, 0),
                first_step_is_prefill=True,
            )
            for n in range(3)
        ]
        sample = TelemetryRow(row.cell_id, 1, 1000, "cpu", utilisation=0.5, memory_bytes=1 << 20)
        device = TelemetryRow(row.cell_id, 1, 1000, "gpu0", 0.9, 1 << 30, 300.0, 1980.0, 60.0, 1e6, 0, 0, 0, None, 0, 0)
        scored = [ScoredRow(row.cell_id, 1, 0, "q0", "coding", "p0-0", [1, 2], [-0.5, -0.25])]
        results += [create_session(row, engine_version="5.0"), CellResult(row, requests, [sample, device], scored=scored)]
    folder = record(FIXTURES / f"schema_{SCHEMA_VERSION}", *results)
    decision = DecisionRow(
        "0123456789abcdef", 0, 1, "measure", "crossover", "user_tps", "small", "a coarse point", cell_id=row.cell_id
    )
    with RunStore.open(folder) as store:
        store.write_decisions([decision])


if __name__ == "__main__":
    main()
