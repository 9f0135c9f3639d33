"""What other tenants, heat and errors of a GPU make of a cell, and the energy that it took."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recorded import create_cell, create_request, create_row, create_session, record

from storage.rows import CellResult, TelemetryRow
from storage.views import open_runs

SECOND_NS = 10**9


def samples(device: str = "gpu0", **columns: list[Any]) -> list[TelemetryRow]:
    """One a second."""
    n = len(next(iter(columns.values())))
    return [
        TelemetryRow("", 1, at * SECOND_NS, device, **{name: values[at] for name, values in columns.items()})
        for at in range(n)
    ]


def recorded(folder: Path, telemetry: list[TelemetryRow], *held_before_bytes: int | None) -> Path:
    row = create_row(create_cell())
    rows = [TelemetryRow(**{**vars(sample), "cell_id": row.cell_id}) for sample in telemetry]
    gpus = json.dumps([{"device": "gpu0", "used_bytes": held} for held in held_before_bytes])
    record(
        folder,
        replace(create_session(row), gpus_json=gpus),
        CellResult(row, [create_request(row, n) for n in range(3)], rows),
    )
    return folder


@pytest.mark.parametrize(
    ("telemetry", "reasons"),
    [
        pytest.param([], [], id="no GPU"),
        pytest.param(samples(other_processes=[0, None, 0]), [], id="nobody else"),
        pytest.param(samples(other_processes=[None, None]), [], id="nobody knows"),
        pytest.param(samples(other_processes=[0, 1, 0]), ["gpu_not_idle"], id="another tenant, once"),
        pytest.param(samples(throttle_reasons=[4, 1, 0, 4]), [], id="at its power limit, and idle"),
        pytest.param(samples(throttle_reasons=[4 + 32, 0, 0, 0]), ["gpu_throttled"], id="too hot"),
        pytest.param(samples(throttle_reasons=[8] + [0] * 40), [], id="slowed down for a moment"),
        pytest.param(
            samples("gpu0", throttle_reasons=[0] * 9) + samples("gpu1", throttle_reasons=[64] * 9),
            ["gpu_throttled"],
            id="one of two",
        ),
        pytest.param(samples(xid=[None, 79]), ["gpu_error"], id="an Xid error"),
        pytest.param(samples(ecc_uncorrected=[3, 3, 4]), ["gpu_error"], id="a memory error while it ran"),
        pytest.param(samples(ecc_uncorrected=[3, 3, 3]), [], id="memory errors of before"),
    ],
)
def test_what_makes_a_cell_invalid(tmp_path: Path, telemetry: list[TelemetryRow], reasons: list[str]) -> None:
    with open_runs([recorded(tmp_path / "run", telemetry)]) as runs:
        found = runs.execute("SELECT reasons FROM cells").fetchall()
        known = {reason for (reason,) in runs.execute("SELECT reason FROM remedies").fetchall()}
    assert found == [(reasons,)]
    assert set(reasons) <= known


@pytest.mark.parametrize(
    ("telemetry", "energy_j"),
    [
        pytest.param(samples(energy_j=[1000.0, 1300.0, 1700.0], power_w=[1.0] * 3), 700.0, id="by the device's own counter"),
        pytest.param(samples(power_w=[100.0, 200.0, 300.0]), 400.0, id="by its power over time"),
        pytest.param(
            samples("gpu0", energy_j=[0.0, 10.0]) + samples("gpu1", energy_j=[5.0, 25.0]), 30.0, id="of all GPUs together"
        ),
        pytest.param(
            samples("gpu0", energy_j=[0.0, 10.0]) + samples("gpu1", power_w=[None, None]),
            None,
            id="unknown where one does not tell",
        ),
        pytest.param([], None, id="no GPU"),
    ],
)
def test_energy_of_a_cell(tmp_path: Path, telemetry: list[TelemetryRow], energy_j: float | None) -> None:
    with open_runs([recorded(tmp_path / "run", telemetry)]) as runs:
        assert runs.execute("SELECT energy_j FROM cells").fetchall() == [(energy_j,)]


@pytest.mark.parametrize(
    ("others", "held", "reasons"),
    [
        pytest.param(None, (5, 3 * 2**30), ["gpu_not_idle"], id="a container's neighbour, on one of two"),
        pytest.param(None, (5, None), [], id="a driver's own, and what it does not tell"),
        pytest.param(0, (3 * 2**30,), [], id="it was gone when the cell ran, for the driver tells who is there"),
    ],
)
def test_memory_that_nobody_owned_before_the_engine_started_is_a_neighbours(
    tmp_path: Path, others: int | None, held: tuple[int | None, ...], reasons: list[str]
) -> None:
    with open_runs([recorded(tmp_path / "run", samples(other_processes=[others] * 3), *held)]) as runs:
        assert runs.execute("SELECT reasons FROM cells").fetchall() == [(reasons,)]
