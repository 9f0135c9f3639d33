"""What identifies a cell, and what does not."""

from __future__ import annotations

import pytest

from jobs.spec import Cell, Deployment, Draft, Engine, Load, Model, Sampling, Workload


def cell(**parts: object) -> Cell:
    deployment = Deployment(
        parts.get("model", Model(path="some/model")), parts.get("engine", Engine()), parts.get("draft", Draft())
    )
    return Cell(
        deployment,
        parts.get("workload", Workload()),
        parts.get("sampling", Sampling()),
        parts.get("load", Load()),
        parts.get("repeat", 0),
    )


@pytest.mark.parametrize(
    ("made", "golden"),
    [
        pytest.param(cell(), "c968121e21ec7bc8", id="all defaults but the model"),
        pytest.param(cell(draft=Draft(method="ngram", k=3)), "541fb83339f8593d", id="ngram"),
        pytest.param(cell(repeat=1, load=Load(concurrency=8)), "aea77b6162e4a95b", id="second repeat at concurrency 8"),
    ],
)
def test_ids_of_today_are_the_ids_of_tomorrow(made: Cell, golden: str) -> None:
    """A sweep resumes after an upgrade only while these stay: a new field needs a default, not a new golden id."""
    assert made.id == golden


@pytest.mark.parametrize(
    "same",
    [
        pytest.param(cell(model=Model(name="a label", path="some/model")), id="the model's name is a label"),
        pytest.param(cell(engine=Engine(python="elsewhere/bin/python")), id="where the engine lives"),
        pytest.param(cell(engine=Engine(start_timeout_s=1)), id="patience with its start"),
        pytest.param(cell(load=Load(cell_timeout_s=1, request_timeout_s=1)), id="patience with the cell"),
        pytest.param(cell(load=Load(slo_ttft_s=0.5, slo_tpot_s=0.05)), id="by which limits it is judged"),
        pytest.param(cell(draft=Draft(name="nothing", k=7, ngram_max=9)), id="fields that mean nothing without a draft"),
    ],
)
def test_what_is_not_measured_is_not_in_the_id(same: Cell) -> None:
    assert same.id == cell().id


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(cell(model=Model(path="some/other")), id="model"),
        pytest.param(cell(model=Model(path="some/model", revision="abc")), id="revision"),
        pytest.param(cell(engine=Engine(batch=2)), id="batch"),
        pytest.param(cell(engine=Engine(args={"x": 1})), id="engine arguments"),
        pytest.param(cell(draft=Draft(method="ngram", k=3)), id="draft"),
        pytest.param(cell(workload=Workload(categories=["qa"])), id="categories"),
        pytest.param(cell(sampling=Sampling(temperature=1.0)), id="temperature"),
        pytest.param(cell(load=Load(concurrency=2)), id="concurrency"),
        pytest.param(cell(repeat=1), id="repeat"),
    ],
)
def test_what_is_measured_is_in_the_id(other: Cell) -> None:
    assert other.id != cell().id


def test_a_speculative_cell_and_its_baseline_share_the_pair_id() -> None:
    speculative, baseline = cell(draft=Draft(method="ngram", k=3)), cell()

    assert speculative.pair_id == baseline.pair_id == baseline.id
    assert speculative.with_draft(Draft()).id == baseline.id


def test_fields_that_mean_nothing_for_a_method_are_normalised() -> None:
    draft = Draft(method="ngram", k=3, model="a/draft", exit_layer=7, k_by_batch={1: 3})

    assert draft == Draft(method="ngram", k=3)


def test_an_engine_on_the_cpu_takes_no_gpu() -> None:
    assert cell(engine=Engine(device="cpu", tp=4)).deployment.gpus == 0
    assert cell(engine=Engine(device="cuda", tp=4)).deployment.gpus == 4


@pytest.mark.parametrize(
    ("written", "tokens"),
    [
        pytest.param("1k", 1000, id="k is a thousand, not 1024"),
        pytest.param("32K", 32_000, id="capital K"),
        pytest.param("700", 700, id="digits"),
        pytest.param(1000, 1000, id="a number"),
        pytest.param("long", "long", id="what is no length is left for the rules to refuse"),
    ],
)
def test_a_length_is_the_same_in_tokens_and_in_thousands(written: object, tokens: object) -> None:
    assert Workload(isl=written).isl == tokens
    assert cell(workload=Workload(isl=written)).id == cell(workload=Workload(isl=tokens)).id


def test_an_engine_over_nodes_takes_as_many_gpus_of_each_and_one_node_is_no_new_cell() -> None:
    over_two = cell(engine=Engine(device="cuda", tp=4, pp=2, nodes=2))
    assert (over_two.deployment.gpus, over_two.deployment.gpus_a_node) == (8, 4)
    assert cell(engine=Engine(nodes=1)).id == cell(engine=Engine()).id != cell(engine=Engine(nodes=2)).id
