"""Every file of conf/ composes into its schema, and every grid into cells."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from yamllint import linter
from yamllint.config import YamlLintConfig

from jobs.spec import DRAFT_FIELDS, NEEDS_MODEL
from orchestrator.config import CONF, compose
from orchestrator.expected import Size, expect
from orchestrator.grid import expand
from orchestrator.plan import make_plan
from orchestrator.settings import PARTS
from storage.datasets import write_rows
from storage.rows import History
from tests.jobs.test_speed_bench import ROWS

CHOICES = sorted(path.relative_to(CONF) for path in CONF.glob("*/*.yaml"))
GRIDS = [path.stem for path in CHOICES if path.parts[0] == "grid"]
LINT = """
extends: default
rules: {line-length: {max: 140}, document-start: disable, comments: disable}
"""


@pytest.mark.parametrize("path", [pytest.param(path, id=str(path)) for path in CHOICES if path.parts[0] != "grid"])
def test_every_choice_composes_into_its_schema(path: Path) -> None:
    folder, choice = path.parts[0], path.stem
    sweep = compose([f"{folder}={choice}", *(["draft.model=x"] if choice in NEEDS_MODEL else [])])
    assert sweep is not None
    if folder in PARTS:
        (point,) = sweep.points
        assert point.choices[folder] == choice
        assert set(point.parts[folder]) == {field.name for field in fields(PARTS[folder])}
        PARTS[folder](**point.parts[folder])


@pytest.fixture(scope="session")
def speed_bench(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that has the shape of SPEED-Bench's qualitative split, and none of its texts."""
    folder = tmp_path_factory.mktemp("speed_bench")
    write_rows(folder / "qualitative.parquet", ROWS)
    return folder


@pytest.mark.parametrize("grid", GRIDS)
def test_every_grid_expands_pairs_each_speculative_cell_and_plans(grid: str, speed_bench: Path) -> None:
    sweep = compose(
        [f"+grid={grid}", *([f"workload.path={speed_bench}", "workload.revision="] if grid == "speed_bench_table1" else [])]
    )
    assert sweep is not None
    cells = expand(sweep.points, sweep.grid)
    baselines = {cell.id for cell in cells if not cell.deployment.is_speculative}
    assert {cell.pair_id for cell in cells} <= baselines
    plan = make_plan(cells, History(), sweep.limits, "now", expect(cells, History(), lambda workload: Size(11, 1, 100.0)))
    assert sorted(order.cell.id for session in plan for order in session.orders) == sorted(cell.id for cell in cells)


@pytest.mark.parametrize("grid", GRIDS)
def test_every_grid_says_first_which_question_it_answers_and_then_what_it_costs(grid: str) -> None:
    head, *comment = [line for line in (CONF / f"grid/{grid}.yaml").read_text().splitlines() if line.startswith("#")]
    assert head == "# @package _global_"
    told = " ".join(comment)
    assert grid == "simulated_smoke" or ("?" in comment[0] and any(word in told for word in ("minutes", "hours", "days")))


def test_every_grid_is_in_the_page_of_grids() -> None:
    page = (CONF.parent / "docs/grids.md").read_text()
    assert [grid for grid in GRIDS if f"| `{grid}` |" not in page] == []


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        pytest.param(["engine=vllm", "engine.batch=512"], (1, 512, {1000, 8000, 32000}, 84), id="a GPU has the whole"),
        pytest.param(["engine=vllm"], (1, 64, {1000, 8000, 32000}, 48), id="what would queue is left out"),
        pytest.param(["engine=vllm", "axes.load.concurrency=[4]", "axes.workload.isl=[8k]"], (4, 4, {8000}, 4), id="cut"),
    ],
)
def test_worth_it_is_cut_by_overrides(argv: list[str], expected: tuple[int, int, set[int], int]) -> None:
    sweep = compose(["+grid=worth_it", "model=llama31_8b", *argv])
    assert sweep is not None
    cells = expand(sweep.points, sweep.grid)
    loads = [cell.load.concurrency for cell in cells]
    assert (min(loads), max(loads), {cell.workload.isl for cell in cells}, len(cells)) == expected


def test_batch_keeps_every_batch_full_and_a_cpu_below_what_it_cannot_bear() -> None:
    on_cpu, on_gpu = compose(["+grid=batch"]), compose(["+grid=batch", "engine=vllm"])
    assert on_cpu is not None
    assert on_gpu is not None
    for sweep, batches in ((on_cpu, {1, 2, 4, 8}), (on_gpu, {2**n for n in range(10)})):
        pairs = {(cell.deployment.engine.batch, cell.load.concurrency) for cell in expand(sweep.points, sweep.grid)}
        assert pairs == {(batch, batch) for batch in batches}


@pytest.mark.parametrize("path", [pytest.param(path, id=str(path)) for path in [*CHOICES, Path("config.yaml")]])
def test_every_file_is_clean_yaml(path: Path) -> None:
    problems = list(linter.run((CONF / path).read_text(), YamlLintConfig(LINT)))
    assert [str(problem) for problem in problems] == []


def test_every_method_has_a_file_of_its_name() -> None:
    assert {path.stem for path in CHOICES if path.parts[0] == "draft"} >= set(DRAFT_FIELDS)
