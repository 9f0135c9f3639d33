"""The registry, and which prompts of a workload are sent in which order."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobs.errors import BadInput
from jobs.spec import Workload
from jobs.workloads import load_prompts
from jobs.workloads.base import Prompt
from jobs.workloads.stratify import of_categories, stratified

CATEGORIES = ["coding", "qa", "rag", "writing"]

FOR_EVER = [
    "humanities-03",
    "stem-01",
    "qa-07",
    "roleplay-02",
    "summarization-01",
    "reasoning-01",
    "writing-02",
    "coding-02",
    "rag-08",
    "math-07",
    "multilingual-08",
]


def prompts_of(sizes: dict[str, int]) -> list[Prompt]:
    return [
        Prompt(f"{category}-{i}", category, (f"{category} {i}",)) for category, size in sizes.items() for i in range(size)
    ]


def ids(prompts: list[Prompt]) -> list[str]:
    return [prompt.question_id for prompt in prompts]


some_prompts = st.dictionaries(st.sampled_from(CATEGORIES), st.integers(1, 12), min_size=1).map(prompts_of)
seeds = st.integers(0, 1000)
limits = st.integers(0, 60)
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # other tests share the machine


@unhurried
@given(some_prompts, limits, seeds)
def test_a_draw_takes_each_prompt_once_and_as_many_as_were_asked_for(prompts: list[Prompt], limit: int, seed: int) -> None:
    drawn = ids(stratified(prompts, limit, seed))
    assert len(drawn) == len(set(drawn)) == min(limit or len(prompts), len(prompts))
    assert set(drawn) <= set(ids(prompts))


@unhurried
@given(some_prompts, st.integers(1, 60), seeds)
def test_categories_get_equal_shares_until_one_is_used_up(prompts: list[Prompt], limit: int, seed: int) -> None:
    there = Counter(prompt.category for prompt in prompts)
    got = Counter(prompt.category for prompt in stratified(prompts, limit, seed))
    not_used_up = [got[category] for category in there if got[category] < there[category]]
    assert all(most <= min(not_used_up, default=most) + 1 for most in got.values())


@unhurried
@given(some_prompts, limits, seeds, st.randoms(use_true_random=False))
def test_the_order_in_which_prompts_are_stored_does_not_matter(prompts: list[Prompt], limit: int, seed: int, luck) -> None:
    shuffled = list(prompts)
    luck.shuffle(shuffled)
    assert ids(stratified(shuffled, limit, seed)) == ids(stratified(prompts, limit, seed))


@unhurried
@given(some_prompts, st.integers(1, 60), seeds)
def test_a_smaller_draw_is_part_of_a_larger_one(prompts: list[Prompt], limit: int, seed: int) -> None:
    assert set(ids(stratified(prompts, limit, seed))) <= set(ids(stratified(prompts, limit + 1, seed)))


@unhurried
@given(some_prompts, seeds)
def test_leaving_categories_out_keeps_the_order_within_the_others(prompts: list[Prompt], seed: int) -> None:
    kept = prompts[0].category
    alone = ids(stratified(of_categories(prompts, [kept], "w"), 0, seed))
    assert alone == [prompt.question_id for prompt in stratified(prompts, 0, seed) if prompt.category == kept]


@unhurried
@given(st.integers(1, 5), st.dictionaries(st.sampled_from(CATEGORIES), st.integers(1, 4), min_size=2), seeds)
def test_every_part_of_the_order_has_the_mixture_of_the_whole(parts: int, sizes: dict[str, int], seed: int) -> None:
    order = stratified(prompts_of({category: size * parts for category, size in sizes.items()}), 0, seed)
    length = len(order) // parts
    mixtures = [Counter(prompt.category for prompt in order[length * part : length * (part + 1)]) for part in range(parts)]
    assert mixtures == [Counter(sizes)] * parts


def test_equal_categories_come_once_in_each_round() -> None:
    order = stratified(prompts_of(dict.fromkeys(CATEGORIES, 9)), 0, seed=3)
    rounds = [{prompt.category for prompt in order[start : start + 4]} for start in range(0, 36, 4)]
    assert rounds == [set(CATEGORIES)] * 9
    assert len({tuple(prompt.category for prompt in order[start : start + 4]) for start in range(0, 36, 4)}) > 1


def test_another_seed_draws_other_prompts_in_another_order() -> None:
    prompts = prompts_of(dict.fromkeys(CATEGORIES, 9))
    assert ids(stratified(prompts, 0, 1)) != ids(stratified(prompts, 0, 2))
    assert set(ids(stratified(prompts, 8, 1))) != set(ids(stratified(prompts, 8, 2)))


def test_the_draw_is_the_same_for_ever() -> None:
    """These are fixed: a draw that changes with a version would compare a cell with a baseline of other prompts."""
    drawn = [prompt.src_id for prompt in load_prompts(Workload(limit=11, seed=7))]
    assert drawn == FOR_EVER


@pytest.mark.parametrize("seed", [0, 1, 99])
def test_a_limit_of_eleven_has_every_category_once(seed: int) -> None:
    assert len({prompt.category for prompt in load_prompts(Workload(limit=11, seed=seed))}) == 11


def test_only_the_categories_that_are_wanted_are_drawn() -> None:
    drawn = load_prompts(Workload(categories=["rag", "qa"], limit=6))
    assert Counter(prompt.category for prompt in drawn) == {"rag": 3, "qa": 3}


def test_fields_that_do_not_choose_prompts_do_not_change_them() -> None:
    plain = Workload(limit=20, seed=4)
    assert load_prompts(plain) == load_prompts(replace(plain, output_limit=17, ignore_eos=True))


@pytest.mark.parametrize(
    ("workload", "complaint"),
    [
        pytest.param(Workload(name="maxi"), r"`workload.name` .* got 'maxi'. Known: .*mini, ", id="unknown name"),
        pytest.param(
            Workload(categories=["qa", "sports", "art"]),
            r"`workload.categories` .* got art, sports. It has: coding, .*, writing",
            id="unknown categories",
        ),
        pytest.param(Workload(limit=-1), r"`workload.limit` .* got -1", id="negative limit"),
        pytest.param(Workload(isl=1000), r"`workload.isl` .* got 1000, but .* none is padded or cut", id="length"),
        pytest.param(Workload(split="test"), r"`workload.split` .* got 'test', but its prompts are one set", id="split"),
        pytest.param(Workload(path="x.jsonl"), r"`workload.path` .* got 'x.jsonl', but its prompts are part", id="path"),
    ],
)
def test_what_a_workload_does_not_have_is_refused_in_one_line(workload: Workload, complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint) as refusal:
        load_prompts(workload)
    assert "\n" not in str(refusal.value)
