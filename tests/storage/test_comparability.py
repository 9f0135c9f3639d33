"""What differs between cells that are compared is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recorded import create_session, record
from recorded_grid import ask, baseline, fast, pair, point

from storage.rows import CellResult, SessionRow
from storage.views import open_runs

SAME = {
    "gpus_json": '[{"name": "H200", "driver": "580"}]',
    "engine_version": "5.0",
    "node": "n1",
    "git_commit": "abc",
    "host_json": '{"cpu": "Xeon"}',
    "effective_config_json": '{"dtype": "float32"}',
}


def differences(*results: CellResult | SessionRow, folder: Path) -> list[Any]:
    record(folder / "run", *results)
    return ask(folder / "run", "SELECT link, difference, own, others, is_grave FROM comparability ORDER BY ALL")


def test_nothing_differs_where_nothing_does(tmp_path: Path) -> None:
    base, quick = pair(point("ngram"), 20.0)

    assert differences(*(create_session(row.cell, **SAME) for row in (base, quick)), base, quick, folder=tmp_path) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param({"gpus_json": '[{"name": "B200", "driver": "580"}]'}, ("gpu", "B200", "H200", True), id="GPU"),
        pytest.param({"gpus_json": '[{"name": "H200", "driver": "590"}]'}, ("driver", "590", "580", False), id="driver"),
        pytest.param({"engine_version": "5.1"}, ("engine_version", "5.1", "5.0", True), id="engine version"),
        pytest.param({"node": "n2"}, ("node", "n2", "n1", False), id="node"),
        pytest.param({"host_json": '{"cpu": "EPYC"}'}, ("cpu", "EPYC", "Xeon", True), id="CPU"),
        pytest.param({"git_commit": "def"}, ("commit", "def", "abc", False), id="our own commit"),
        pytest.param(
            {"effective_config_json": '{"dtype": "bfloat16"}'}, ("precision", "bfloat16", "float32", True), id="precision"
        ),
    ],
)
def test_a_pair_on_different_ground_is_told(tmp_path: Path, change: dict[str, str], expected: Any) -> None:
    base, quick = pair(point("ngram"), 20.0)
    sessions = create_session(base.cell, **SAME), create_session(quick.cell, **{**SAME, **change})

    assert differences(*sessions, base, quick, folder=tmp_path) == [("baseline", *expected)]


def test_other_prompts_and_another_clock_are_grave(tmp_path: Path) -> None:
    base, quick = pair(point("ngram"), 20.0)
    requests = [replace(row, prompt_hash="other") if row.index < 2 else row for row in quick.requests]

    assert differences(base, CellResult(replace(quick.cell, clock="kernel"), requests), folder=tmp_path) == [
        ("baseline", "clock", "kernel", "monotonic", True),
        ("baseline", "prompts", "75 % the same", "100 %", True),
    ]


def test_repeats_far_apart_and_drifting_are_told_before_they_are_averaged(tmp_path: Path) -> None:
    first = fast(point("ngram", repeat=0), 20.0)
    later = fast(point("ngram", repeat=1), 25.0, started_at="2026-01-03T00:00:00+00:00")
    folder = record(tmp_path / "run", first, later)

    assert ask(folder, "SELECT link, difference, own, others FROM comparability ORDER BY ALL") == [
        ("repeat", "drift", "80.0 tokens/s", "100.0 tokens/s"),
        ("repeat", "time", "2026-01-03T00:00:00+00:00", "2026-01-01T00:00:00+00:00"),
    ]
    assert ask(folder, "SELECT n_cells, sentence FROM warnings ORDER BY difference") == [
        (1, "1 repeat and the first one differ by more than 10 % in user TPS: their mean hides a drift"),
        (1, "1 repeat and the first one were measured more than 24 hours apart"),
    ]


def test_the_same_measurement_of_an_earlier_run_is_held_beside(tmp_path: Path) -> None:
    for name, version, day in (("a", "5.0", 1), ("b", "5.1", 9)):
        base = baseline(point(), started_at=f"2026-01-0{day}T00:00:00+00:00")
        record(tmp_path / name, create_session(base.cell, engine_version=version), base)

    with open_runs([tmp_path / "*"]) as runs:
        found = runs.execute("SELECT run, link, other_run, sentence FROM warnings").fetchall()

    assert found == [("b", "run", "a", "1 cell and the same one of a differ in engine version: 5.1 against 5.0")]
