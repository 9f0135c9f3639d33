"""What a report says of memory, of reasons, and of outputs that are not the baseline's."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from recorded import create_cell, create_request, create_row, create_session, record

from storage.report import report_of
from storage.rows import CellResult


def test_a_report_tells_what_a_draft_costs_of_memory_and_what_to_do_about_reasons(tmp_path: Path) -> None:
    results = []
    for method, kv_tokens in (("none", 1000), ("ngram", 900)):
        cell = create_cell(method, 3 if method == "ngram" else 0)
        row = create_row(cell, client_cpu_share=0.95 if method == "ngram" else 0.1)
        deployment = json.dumps(asdict(cell.deployment))
        results += [
            create_session(row, deployment_json=deployment, node="n1", kv_capacity_tokens=kv_tokens),
            CellResult(row, [create_request(row, n) for n in range(3)]),
        ]

    page = report_of([record(tmp_path / "run", *results)])

    assert "| small on transformers | ngram k=3 | n1 | 900 | 100 | 10.0 | - | - | - | - |" in page
    assert "| client_saturated | the load client uses at most 80 % of a core |" in page
    assert "| late_sends |" not in page
