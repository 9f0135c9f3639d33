"""What engines offer: the table of the page, and refusals that name who can."""

from __future__ import annotations

import pytest

from jobs.engines import ENGINES, engine_named
from jobs.engines.rules import check_nodes, engines_over_nodes, engines_that_offer, offers_method, version_of
from jobs.engines.table import PAGE, page_with_table
from jobs.errors import BadInput, Unsupported
from jobs.spec import DRAFT_FIELDS, Deployment, Draft, Engine, Model


def test_the_page_of_engines_has_the_table_that_the_adapters_make() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == page_with_table(page), "run `python -m jobs.engines.table`"


@pytest.mark.parametrize("name", sorted(ENGINES))
def test_an_adapter_says_something_of_every_method(name: str) -> None:
    engine = engine_named(name)
    assert list(engine.methods) == list(DRAFT_FIELDS)
    assert not any(offer.refusal and (offer.run_on or offer.refusal.endswith(".")) for offer in engine.methods.values())


def test_a_refusal_names_why_and_who_can() -> None:
    holds, wrong = offers_method(engine_named("transformers"), "suffix")
    assert not holds
    assert "got 'suffix' (it has no suffix decoding)" in wrong
    assert all(name in wrong for name in engines_that_offer("suffix"))


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        pytest.param("0.32.0", (0, 32, 0), id="plain"),
        pytest.param("0.32.0+cpu", (0, 32, 0), id="local part"),
        pytest.param("1.2.0rc3", (1, 2), id="as far as it is numbers"),
        pytest.param("", (), id="none"),
    ],
)
def test_a_version_is_its_numbers(text: str, numbers: tuple[int, ...]) -> None:
    assert version_of(text) == numbers


def on_nodes(name: str, nodes: int, **engine: int) -> None:
    check_nodes(engine_named(name), Deployment(Model("m", "m"), Engine(name, nodes=nodes, **engine), Draft()))


def test_who_is_not_started_over_several_nodes_says_why_and_who_is() -> None:
    assert engines_over_nodes() == ("vllm", "sglang", "tensorrt_llm")
    for name in {*ENGINES} - {*engines_over_nodes(), "simulated"}:
        on_nodes(name, 1)
        with pytest.raises(Unsupported, match=rf"must be 1 for {name}, .*: it.*Got 2\. Over several nodes: vllm, sglang"):
            on_nodes(name, 2)


def test_nodes_have_as_many_gpus_each() -> None:
    on_nodes("vllm", 4, tp=4, pp=2)
    with pytest.raises(BadInput, match=r"must divide tp x pp x dp = 8, .*got 3\. Use one of 1, 2, 4, 8\."):
        on_nodes("vllm", 3, tp=4, pp=2)


def test_nodes_of_a_huge_engine_are_refused_without_counting_to_it() -> None:
    with pytest.raises(BadInput, match=r"must divide tp x pp x dp = 10{20}, .*got 3\. Use one of 1, 2, 4, .*, 1000\."):
        on_nodes("vllm", 3, tp=10**20)
