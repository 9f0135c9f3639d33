"""Cells that have every name in common are told apart by the settings in which they differ, wherever they are shown."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from recorded import create_session, record
from recorded_grid import ask, baseline, fast, pair, point, with_engine

from jobs.spec import Cell
from storage.report import find, report_of
from storage.report.between import changes_between
from storage.report.html_data import page_data
from storage.rows import CellResult
from storage.tower import views_sql


def with_draft(cell: Cell, **settings: Any) -> Cell:
    return replace(cell, deployment=replace(cell.deployment, draft=replace(cell.deployment.draft, **settings)))


def with_limit(cell: Cell, output_limit: int) -> Cell:
    return replace(cell, workload=replace(cell.workload, output_limit=output_limit))


def two_limits(folder: Path) -> Path:
    return record(folder, *pair(with_limit(point("ngram"), 64), 20.0), *pair(with_limit(point("ngram"), 512), 50.0))


def test_a_setting_without_a_column_tells_places_apart_and_the_answer_names_it(tmp_path: Path) -> None:
    told = ask(
        two_limits(tmp_path),
        "SELECT answer, where_it_pays, where_it_does_not, best_at FROM verdicts WHERE metric = 'user_tps'",
    )

    pays = "concurrency 1, workload.output_limit=64"
    assert told == [("depends", pays, "concurrency 1, workload.output_limit=512", pays)]


def test_settings_without_a_column_have_tables_and_drawings_of_their_own(tmp_path: Path) -> None:
    findings = find([two_limits(tmp_path)])

    titles = [line for line in report_of([tmp_path]).splitlines() if line.startswith("### ") and "output_limit" in line]
    assert len(set(titles)) == 2
    assert [setting["variant"] for setting in page_data(findings)["settings"]] == [
        "workload.output_limit=512",
        "workload.output_limit=64",
    ]


def test_drafts_of_one_name_are_two_drafts_and_the_better_one_is_named(tmp_path: Path) -> None:
    old, new = (with_draft(point("eagle3"), model=f"org/{name}") for name in ("old", "new"))
    folder = record(tmp_path, *pair(old, 50.0), fast(new, 20.0))

    assert ask(folder, "SELECT best_draft, what_to_do FROM verdicts WHERE metric = 'user_tps'") == [
        ("eagle3 k=3 model=org/new", "Use eagle3 k=3 model=org/new (draft.method=eagle3, draft.k=3).")
    ]


def test_what_is_written_for_the_engine_tells_from_nothing_written(tmp_path: Path) -> None:
    plain = point("ngram")
    tuned = with_engine(plain, args={"attention_backend": "x"})
    folder = record(tmp_path, *pair(plain, 20.0), *pair(tuned, 20.0))

    assert ask(folder, "SELECT DISTINCT draft, variant FROM cells ORDER BY ALL") == [
        ("ngram k=3", ""),
        ("ngram k=3", "engine.args.attention_backend=x"),
        ("none", ""),
        ("none", "engine.args.attention_backend=x"),
    ]


def test_loads_of_one_name_are_told_apart(tmp_path: Path) -> None:
    cells = [point("ngram", kind="gamma", rate=2.0, burstiness=burstiness) for burstiness in (0.5, 1.0)]
    folder = record(tmp_path, *(row for cell in cells for row in pair(cell, 20.0)))

    assert ask(folder, "SELECT DISTINCT load, variant FROM cells ORDER BY ALL") == [
        ("gamma 2/s, burstiness=0.5", ""),
        ("gamma 2/s, burstiness=1.0", ""),
    ]


def test_a_field_that_an_older_row_does_not_have_tells_nothing_apart(tmp_path: Path) -> None:
    new, old = point("ngram"), point("ngram", repeat=1)
    settings = asdict(old)
    del settings["deployment"]["engine"]["cuda_graphs"]
    folder = record(tmp_path, *pair(new, 20.0), fast(old, 20.0, cell_json=json.dumps(settings)))

    assert ask(folder, "SELECT DISTINCT variant FROM cells") == [("",)]


@pytest.mark.parametrize("name", ["start_timeout_s", "url", "python", "runtime_env"])
def test_what_may_change_from_start_to_start_tells_nothing_apart(name: str, tmp_path: Path) -> None:
    value = {"start_timeout_s": 1800.0, "runtime_env": {"pip": ["x"]}}.get(name, "other")
    first, second = point("ngram"), with_engine(point("ngram", repeat=1), **{name: value})
    folder = record(tmp_path, *pair(first, 20.0), *pair(second, 20.0))

    assert ask(folder, "SELECT draft, variant, n_cells FROM drafts ORDER BY draft") == [
        ("ngram k=3", "", 2),
        ("none", "", 2),
    ]


def outside_ids(value: Any, path: str = "") -> Iterator[str]:
    for item in fields(value):
        if not item.metadata.get("in_id", True):
            yield path + item.name
        elif is_dataclass(part := getattr(value, item.name)):
            yield from outside_ids(part, f"{path}{item.name}.".removeprefix("deployment."))


def test_the_settings_that_tell_nothing_apart_are_those_outside_a_cells_id() -> None:
    told = re.search(r"SELECT unnest\(\[(.*?)\]\) AS setting", views_sql(), re.DOTALL)
    assert told is not None
    assert sorted(re.findall(r"'(.*?)'", told[1])) == sorted(outside_ids(point("ngram")))


def test_nothing_written_for_the_engine_is_a_setting_too(tmp_path: Path) -> None:
    cells = [with_engine(point("ngram"), args={"x": x}) for x in (None, 5)]
    folder = record(tmp_path, *(row for cell in cells for row in pair(cell, 20.0)))

    assert ask(folder, "SELECT DISTINCT variant FROM cells ORDER BY ALL") == [("engine.args.x=5",), ("engine.args.x=null",)]


@pytest.mark.parametrize(
    ("after", "n_alike"),
    [
        pytest.param(["1", "2"], 2, id="the same versions"),
        pytest.param(["1"], 1, id="one of them"),
        pytest.param(["3"], 0, id="another, and none says which it follows"),
    ],
)
def test_versions_of_two_runs_are_compared_with_their_like(after: list[str], n_alike: int, tmp_path: Path) -> None:
    step_ms = {"1": 20.0, "2": 40.0, "3": 30.0}

    def versions(folder: Path, names: list[str]) -> Path:
        cells = [(with_engine(point("ngram"), version=name), step_ms[name]) for name in names]
        return record(folder, *(row for cell, ms in cells for row in pair(cell, ms)))

    changes = changes_between(versions(tmp_path / "before", ["1", "2"]), versions(tmp_path / "after", after))
    assert {change.row["ratio"] for change in changes} <= {1.0}
    assert len(changes) == 2 * 4 * n_alike


def fractions(folder: Path, *told: tuple[float, float]) -> Path:
    """Cells of these shares of memory, each with the time of a step."""
    cells = [(with_engine(point("ngram"), kv_fraction=fraction), step_ms) for fraction, step_ms in told]
    return record(folder, *(row for cell, step_ms in cells for row in pair(cell, step_ms)))


@pytest.mark.parametrize(
    "after", [pytest.param([(0.6, 20.0), (0.9, 40.0)], id="as many"), pytest.param([(0.6, 20.0)], id="fewer settings")]
)
def test_two_runs_are_compared_setting_by_setting(tmp_path: Path, after: list[tuple[float, float]]) -> None:
    before = fractions(tmp_path / "before", (0.6, 20.0), (0.9, 40.0))

    changes = changes_between(before, fractions(tmp_path / "after", *after))

    assert {change.row["ratio"] for change in changes} == {1.0}
    assert len(changes) == 2 * 4 * len(after)


def test_a_draft_is_held_against_a_start_on_another_node_that_is_like_its_own(tmp_path: Path) -> None:
    cell = point("ngram")
    sessions = [
        create_session(
            row,
            deployment_json=json.dumps(asdict(of.deployment)),
            node=node,
            gpus_json=json.dumps([{"name": gpu}]),
            kv_capacity_tokens=tokens,
        )
        for of, row, node, gpu, tokens in (
            (cell, fast(cell, 20.0).cell, "b", "H100", 800),
            (cell.with_draft(replace(cell.deployment.draft, method="none", k=0)), baseline(cell).cell, "a", "H100", 1000),
        )
    ]
    strange = replace(sessions[1], session_id="strange", node="c", gpus_json='[{"name": "A100"}]', kv_capacity_tokens=5000)
    folder = record(tmp_path, *pair(cell, 20.0), *sessions, strange)

    assert ask(folder, "SELECT kv_lost_tokens, kv_lost_share FROM memory WHERE method = 'ngram'") == [(200, 0.2)]


def test_the_checklist_has_a_question_for_each_tp(tmp_path: Path) -> None:
    results: list[CellResult] = []
    for tp, first_ms in ((1, 100.0), (8, 1000.0)):
        results += pair(with_engine(point("ngram"), tp=tp), 20.0, first_ms=first_ms)
    folder = record(tmp_path, *results)

    assert ask(folder, "SELECT tp, answer FROM checklist WHERE nr = 6 ORDER BY tp") == [(1, "yes"), (8, "yes")]
    assert len(ask(folder, "SELECT DISTINCT evidence FROM checklist WHERE nr = 6")) == 2
