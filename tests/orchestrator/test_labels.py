"""What cells and deployments are called beside others."""

from __future__ import annotations

from dataclasses import replace

from jobs.spec import Cell, Deployment, Draft, Engine, Load, Model, Sampling, Workload
from orchestrator.labels import cell_labels, deployment_labels


def deployment(draft: Draft | None = None, **engine: object) -> Deployment:
    return Deployment(Model("small", "models/small"), Engine(**engine), draft or Draft())  # type: ignore[arg-type]


def cell(temperature: float = 0.0, repeat: int = 0, **workload: object) -> Cell:
    return Cell(deployment(), Workload(**workload), Sampling(temperature=temperature), Load(), repeat)  # type: ignore[arg-type]


def test_a_label_of_its_own_is_left_alone() -> None:
    cells = [cell(), cell(repeat=1), cell(name="mt_bench")]
    assert list(cell_labels(cells).values()) == [each.label for each in cells]


def test_equal_labels_are_told_apart_by_what_differs_as_overrides_name_it() -> None:
    cells = [cell(), cell(0.8, limit=3), cell(0.8, repeat=1)]
    assert list(cell_labels(cells).values()) == [
        f"{cells[0].label} workload.limit=0 sampling.temperature=0.0",
        f"{cells[0].label} workload.limit=3 sampling.temperature=0.8",
        cells[2].label,
    ]


def test_deployments_are_told_apart_by_what_only_one_of_them_has_too() -> None:
    dice = Draft(method="synthetic", k=3, drafter="ngram", acceptance_length=1.4)
    known = [
        deployment(batch=4, args={"block": "x" * 99}),
        deployment(batch=8),
        deployment(dice),
        deployment(replace(dice, acceptance_length=3.0)),
        deployment(tp=2),
    ]
    assert list(deployment_labels(known).values()) == [
        f"small transformers none engine.batch=4 engine.args.block=…{'x' * 39}",
        "small transformers none engine.batch=8 engine.args.block=None",
        "small transformers synthetic k=3 draft.acceptance_length=1.4",
        "small transformers synthetic k=3 draft.acceptance_length=3.0",
        "small transformers tp=2 none",
    ]
