"""Every file of conf/ composes into its schema, and every grid into cells."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from yamllint import linter
from yamllint.config import YamlLintConfig

from jobs.spec import DRAFT_FIELDS, NEEDS_MODEL
from orchestrator.config import CONF, compose
from orchestrator.grid import expand
from orchestrator.settings import PARTS

CHOICES = sorted(path.relative_to(CONF) for path in CONF.glob("*/*.yaml"))
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


@pytest.mark.parametrize("path", [pytest.param(path, id=str(path)) for path in CHOICES if path.parts[0] == "grid"])
def test_every_grid_expands_and_pairs_each_speculative_cell(path: Path) -> None:
    sweep = compose([f"+grid={path.stem}"])
    assert sweep is not None
    cells = expand(sweep.points, sweep.grid)
    baselines = {cell.id for cell in cells if not cell.deployment.is_speculative}
    assert {cell.pair_id for cell in cells} <= baselines
    assert (CONF / path).read_text().startswith("# @package _global_\n# "), "a grid says which question it answers"


@pytest.mark.parametrize("path", [pytest.param(path, id=str(path)) for path in [*CHOICES, Path("config.yaml")]])
def test_every_file_is_clean_yaml(path: Path) -> None:
    problems = list(linter.run((CONF / path).read_text(), YamlLintConfig(LINT)))
    assert [str(problem) for problem in problems] == []


def test_every_method_has_a_file_of_its_name() -> None:
    assert {path.stem for path in CHOICES if path.parts[0] == "draft"} >= set(DRAFT_FIELDS)
