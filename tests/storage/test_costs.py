"""What a million output tokens cost, what a draft takes of the memory, and the life of a run, worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from recorded import create_session, record
from recorded_grid import ask, baseline, fast, pair, point

from storage.rows import CellResult, TelemetryRow

TWO_GPUS = json.dumps([{"name": "H200", "driver": "580"}] * 2)
PRICED = "cluster:\n  gpu_hour_price: 3.6\n"


def with_telemetry(result: CellResult, **devices: dict[str, float]) -> CellResult:
    rows = [TelemetryRow(result.cell.cell_id, 1, n, name, **facts) for name, facts in devices.items() for n in range(3)]
    return CellResult(result.cell, result.requests, rows)


def test_gpu_seconds_money_and_joules_are_for_a_million_output_tokens(tmp_path: Path) -> None:
    base = with_telemetry(baseline(point(), duration_ms=1000.0), gpu0={"power_w": 300.0}, gpu1={"power_w": 500.0})
    folder = record(tmp_path / "run", create_session(base.cell, gpus_json=TWO_GPUS), base, sweep=PRICED)

    found = ask(folder, "SELECT n_gpus, gpu_s, energy_j, money, gpu_s_per_mtok, joules_per_mtok, money_per_mtok FROM costs")

    # 40 tokens in 1 s on 2 GPUs: 2 GPU-seconds, 800 J, 2 / 3600 of 3.6
    assert found == [(2, 2.0, 800.0, pytest.approx(0.002), 50_000.0, 20_000_000.0, pytest.approx(50.0))]


def test_on_the_cpu_there_are_cpu_seconds_and_no_price(tmp_path: Path) -> None:
    base = with_telemetry(baseline(point(), duration_ms=1000.0), cpu={"utilisation": 0.5})
    folder = record(tmp_path / "run", create_session(base.cell, host_json='{"cpus": 4}'), base, sweep=PRICED)

    assert ask(
        folder, "SELECT n_gpus, cpu_s, cpu_s_per_mtok, gpu_s_per_mtok, money_per_mtok, joules_per_mtok FROM costs"
    ) == [(None, 2.0, 50_000.0, None, None, None)]


def test_energy_is_unknown_where_one_gpu_does_not_tell_its_power(tmp_path: Path) -> None:
    base = with_telemetry(baseline(point()), gpu0={"power_w": 300.0}, gpu1={"utilisation": 0.5})
    folder = record(tmp_path / "run", create_session(base.cell, gpus_json=TWO_GPUS), base)

    assert ask(folder, "SELECT energy_j, money FROM costs") == [(None, None)]


def test_a_meter_of_energy_is_believed_before_samples_of_power(tmp_path: Path) -> None:
    base = baseline(point(), duration_ms=2000.0)
    samples = [
        TelemetryRow(base.cell.cell_id, 1, second * 1_000_000_000, "gpu0", power_w=300.0, energy_j=70.0 + 400.0 * second)
        for second in range(2)
    ]
    session = create_session(base.cell, gpus_json='[{"name": "H200"}]')
    folder = record(tmp_path / "run", session, CellResult(base.cell, base.requests, samples))

    assert ask(folder, "SELECT power_w, energy_j FROM costs") == [(400.0, 800.0)]


def test_a_cheaper_token_is_a_ratio_below_one(tmp_path: Path) -> None:
    base, quick = pair(point("ngram"), 20.0)  # the same tokens in half the time
    sessions = [create_session(row.cell, gpus_json=TWO_GPUS) for row in (base, quick)]
    folder = record(tmp_path / "run", *sessions, base, quick, sweep=PRICED)

    assert ask(folder, "SELECT method, gpu_s_ratio, money_ratio FROM costs ORDER BY method") == [
        ("ngram", 0.5, pytest.approx(0.5)),
        ("none", None, None),
    ]


def test_the_cost_of_a_draft_is_a_mean_over_its_valid_repeats(tmp_path: Path) -> None:
    rows = [
        baseline(point(repeat=0), duration_ms=1000.0),
        baseline(point(repeat=1), duration_ms=3000.0),
        baseline(point(repeat=2), duration_ms=9000.0, caches_reset=False),
    ]
    folder = record(tmp_path / "run", create_session(rows[0].cell, gpus_json=TWO_GPUS), *rows)

    assert ask(folder, "SELECT n, n_invalid, gpu_s_per_mtok, device_s_per_mtok_sd FROM draft_costs") == [
        (2, 1, 100_000.0, pytest.approx(100_000 / 2**0.5))
    ]


def test_memory_lost_to_a_draft_is_told_in_requests(tmp_path: Path) -> None:
    base, quick = pair(point("ngram"), 20.0)  # 50 + 5 tokens a request
    deployed = [json.dumps(json.loads(row.cell.cell_json)["deployment"]) for row in (base, quick)]
    sessions = [
        create_session(row.cell, deployment_json=text, kv_capacity_tokens=tokens, node="n")
        for row, text, tokens in zip((base, quick), deployed, (5500, 4400), strict=True)
    ]
    folder = record(tmp_path / "run", *sessions, base, quick)
    columns = "method, kv_lost_tokens, kv_lost_share, context_tokens_mean, n_requests, requests_fit, requests_lost"

    assert ask(folder, f"SELECT {columns} FROM memory ORDER BY method") == [
        ("ngram", 1100, 0.2, 55.0, 16, 80, 20),
        ("none", None, None, 55.0, 16, 100, None),
    ]


# ------------------------------------------------------------------------------------------------------------------ runs


@pytest.mark.parametrize(
    ("sweep", "expected"),
    [
        pytest.param("invocation:\n  n_cells: 8\n", (8, 2, 6, False, "so far: 2 of 8 cells"), id="a run that goes on"),
        pytest.param("invocation:\n  n_cells: 2\n", (2, 2, 0, True, "2 of 2 cells measured"), id="a whole run"),
        pytest.param("grid: old\n", (None, 2, 0, True, "2 of 2 cells measured"), id="a run that does not tell"),
        pytest.param("not: [yaml", (None, 2, 0, True, "2 of 2 cells measured"), id="a torn sweep.yaml"),
    ],
)
def test_a_run_tells_how_far_it_is(tmp_path: Path, sweep: str, expected: Any) -> None:
    folder = record(tmp_path / "run", *pair(point("ngram"), 20.0), sweep=sweep)

    assert ask(folder, "SELECT n_planned, n_cells, n_missing, is_whole, progress FROM runs") == [expected]


def test_a_run_sums_up_its_cells_and_its_sessions(tmp_path: Path) -> None:
    base, quick = pair(point("ngram"), 20.0)
    failed = fast(point("ngram", concurrency=2), 20.0, status="failed")
    sessions = [
        create_session(base.cell, gpus_json=TWO_GPUS, ended_s=1800.0, engine_version="5.1", versions_json='{"ray": "2"}')
    ]
    sweep = 'invocation:\n  command: "python sweep.py"\n  n_cells: 3\n' + PRICED
    folder = record(tmp_path / "run", *sessions, base, quick, failed, sweep=sweep)
    sql = "SELECT command, n_ok, n_valid, n_failed, n_sessions, gpus, gpu_hours, money, methods FROM runs"

    assert ask(folder, sql) == [("python sweep.py", 2, 2, 1, 1, ["H200"], 1.0, 3.6, ["ngram"])]
    assert ask(folder, "SELECT thing, version, n_versions FROM versions ORDER BY thing") == [
        ("engine", "5.1", 1),
        ("gpu driver", "580", 1),
        ("ray", "2", 1),
    ]
