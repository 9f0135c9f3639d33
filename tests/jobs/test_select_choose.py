"""What is picked is compared with brute force: all exchanges, all sets, all pairs."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.workloads.select import choose as choosing
from jobs.workloads.select.choose import GAIN, Indices, Vectors, best_swap, choose, greedy, loss_of, mean_similarity
from jobs.workloads.select.near import near_duplicates
from jobs.workloads.select.strata import quotas_of, strata_of

SEEDS = st.integers(0, 2**32 - 1)


def pool(count: int, dims: int, seed: int, common: float = 0.5) -> Vectors:
    """Vectors of length 1 with something in common, as texts have it."""
    vectors = np.random.default_rng(seed).standard_normal((count, dims), np.float32) + np.float32(common)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def one_stratum(count: int) -> Indices:
    return np.zeros(count, np.intp)


def by_pairs(vectors: Vectors) -> float:
    """L as the paper writes it."""
    wide = vectors.astype(np.float64)
    return sum(float(wide[i] @ wide[j]) for i in range(len(wide)) for j in range(len(wide)) if i != j)


def exchanges(vectors: Vectors, strata: Indices, members: Indices) -> dict[tuple[int, int], float]:
    """(place in members, newcomer) → the change of L/2, for every exchange within a stratum."""
    before = by_pairs(vectors[members])
    found = {}
    for position, leaver in enumerate(members):
        for newcomer in set(range(len(vectors))) - set(members.tolist()):
            if strata[newcomer] == strata[leaver]:
                after = members.copy()
                after[position] = newcomer
                found[position, newcomer] = (by_pairs(vectors[after]) - before) / 2
    return found


@settings(deadline=None, max_examples=30)
@given(seed=SEEDS, count=st.integers(2, 12))
def test_the_loss_by_sums_is_the_loss_by_pairs(seed: int, count: int) -> None:
    vectors = pool(count, 6, seed)
    assert loss_of(vectors) == pytest.approx(by_pairs(vectors), abs=1e-9)
    assert mean_similarity(vectors) == pytest.approx(by_pairs(vectors) / (count * (count - 1)), abs=1e-9)


def test_a_single_prompt_resembles_nothing() -> None:
    assert mean_similarity(pool(1, 4, 0)) == 0


@settings(deadline=None, max_examples=30)
@given(seed=SEEDS, strata=st.integers(1, 3))
def test_each_greedy_pick_is_the_one_that_resembles_those_before_it_least(seed: int, strata: int) -> None:
    vectors = pool(15, 5, seed)
    labels = np.arange(15) % strata
    quotas = [6 // strata] * strata
    members = greedy(vectors, labels, quotas, first=7)
    assert members[0] == 7
    for n in range(1, len(members)):
        taken = np.bincount(labels[members[:n]], minlength=strata)
        open_ = [i for i in range(15) if i not in members[:n] and taken[labels[i]] < quotas[labels[i]]]
        similarity = {i: sum(float(vectors[i] @ vectors[j]) for j in members[:n]) for i in open_}
        assert similarity[int(members[n])] == pytest.approx(min(similarity.values()), abs=1e-5)


@settings(deadline=None, max_examples=40)
@given(seed=SEEDS, strata=st.integers(1, 3), block=st.sampled_from([1, 7, 1 << 22]))
def test_the_best_swap_is_the_best_of_all_exchanges(seed: int, strata: int, block: int) -> None:
    vectors, labels = pool(14, 5, seed), np.arange(14) % strata
    members = np.random.default_rng(seed).permutation(14)[:5]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choosing, "BLOCK", block)
        found = best_swap(vectors, labels, members)
    changes = exchanges(vectors, labels, members)
    best = min(changes.values(), default=0.0)
    if found is None:
        assert best > -2 * GAIN
    else:
        assert changes[found] == pytest.approx(best, abs=1e-5)


@settings(deadline=None, max_examples=30)
@given(seed=SEEDS, strata=st.integers(1, 3), common=st.sampled_from([0.0, 0.5, 2.0]))
def test_the_choice_is_never_worse_than_greedy_and_no_exchange_gains(seed: int, strata: int, common: float) -> None:
    vectors, labels = pool(20, 6, seed, common), np.arange(20) % strata
    quotas = quotas_of(labels, strata, 7)
    choice = choose(vectors, labels, quotas, first=int(np.flatnonzero(np.array(quotas)[labels])[0]))
    assert choice.loss <= choice.greedy_loss + 1e-9
    assert choice.loss == pytest.approx(by_pairs(vectors[choice.members]), abs=1e-9)
    assert min(exchanges(vectors, labels, choice.members).values()) > -2 * GAIN
    assert np.bincount(labels[choice.members], minlength=strata).tolist() == quotas
    assert len(set(choice.members.tolist())) == 7


def test_the_choice_is_close_to_the_best_of_all_sets() -> None:
    """The problem is hard, and the choice need not be the best of all; by brute force over 40 pools it mostly is."""
    is_best, excess = 0, []
    for seed in range(40):
        vectors = pool(14, 6, seed)
        choice = choose(vectors, one_stratum(14), [5], first=0)
        best = min(loss_of(vectors[list(members)]) for members in combinations(range(14), 5))
        assert choice.loss > best - 1e-6
        is_best += choice.loss < best + 1e-5
        excess.append((choice.loss - best) / 20)
    assert is_best >= 24
    assert np.mean(excess) < 0.01  # of mean similarity


def test_swaps_repair_a_bad_beginning() -> None:
    """The first is one of a dozen alike; it is exchanged, and all that are picked are unlike each other."""
    alike = pool(12, 8, 0, common=20.0)
    vectors = np.concatenate([alike, np.eye(8, dtype=np.float32) - np.float32(0.05)])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    choice = choose(vectors, one_stratum(20), [4], first=0)
    assert choice.swaps >= 1
    assert choice.loss < choice.greedy_loss
    assert min(choice.members) >= 12


def test_all_of_a_pool_can_be_picked() -> None:
    choice = choose(pool(6, 4, 1), one_stratum(6), [6], first=3)
    assert choice.members.tolist() == list(range(6))
    assert choice.swaps == 0


def test_equal_vectors_do_not_swap_for_ever() -> None:
    vectors = np.ones((30, 4), np.float32) / 2
    assert choose(vectors, one_stratum(30), [10], first=5).swaps == 0


def test_a_large_choice_out_of_close_vectors_ends_with_an_exact_loss() -> None:
    """Rounding of 32 bits grows with the number that is picked: the loss is recomputed, and falls with every swap."""
    vectors = pool(3000, 32, 3, common=1.0)
    choice = choose(vectors, one_stratum(3000), [600], first=0)
    picked = vectors[choice.members].astype(np.float64)
    products = picked @ picked.T
    assert choice.loss == pytest.approx(products.sum() - np.trace(products), rel=1e-12)
    assert choice.loss < choice.greedy_loss


# ----------------------------------------------------------------------------------------------------------- near duplicates


def near_by_pairs(vectors: Vectors, threshold: float) -> list[bool]:
    """Whether each is kept: it is, if none that is kept before it is near."""
    kept: list[int] = []
    for i, vector in enumerate(vectors):
        if all(float(vector @ vectors[j]) < threshold for j in kept):
            kept.append(i)
    return [i in kept for i in range(len(vectors))]


@settings(deadline=None, max_examples=25)
@given(seed=SEEDS, rows=st.sampled_from([3, 8, 1024]), columns=st.sampled_from([2, 8192]))
def test_near_duplicates_are_those_of_brute_force_in_blocks_of_any_size(seed: int, rows: int, columns: int) -> None:
    vectors = pool(40, 3, seed)  # in three dimensions many are near
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jobs.workloads.select.near.ROWS", rows)
        patch.setattr("jobs.workloads.select.near.COLUMNS", columns)
        twin, similarity = near_duplicates(vectors, 0.9)
    is_kept = twin == np.arange(40)
    assert is_kept.tolist() == near_by_pairs(vectors, 0.9)
    assert is_kept[twin].all(), "a twin is itself kept"
    for place, other in enumerate(twin):
        assert other <= place
        assert similarity[place] == pytest.approx(float(vectors[place] @ vectors[other]), abs=1e-5)


def test_copies_go_and_their_first_stays() -> None:
    vectors = pool(6, 16, 0, common=0.0)[[0, 1, 0, 2, 1, 0]]
    twin, _ = near_duplicates(vectors, 0.999)
    assert twin.tolist() == [0, 1, 0, 3, 1, 0]


def test_progress_is_told_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.workloads.select.near.ROWS", 4)
    told: list[int] = []
    near_duplicates(pool(10, 4, 0), 0.9, told.append)
    assert told == [4, 8, 10]


# -------------------------------------------------------------------------------------------------------------------- strata


@settings(deadline=None)
@given(lengths=st.lists(st.integers(0, 50), min_size=1, max_size=40), count=st.integers(1, 9), data=st.data())
def test_strata_are_equal_parts_by_length_and_quotas_can_be_met(lengths: list[int], count: int, data: st.DataObject) -> None:
    wanted = data.draw(st.integers(1, len(lengths)))
    strata = strata_of(lengths, count)
    sizes = np.bincount(strata, minlength=count)
    assert sizes.max() - sizes.min() <= 1
    by_length = [strata[place] for place in np.argsort(lengths, kind="stable")]
    assert by_length == sorted(by_length)
    quotas = quotas_of(strata, count, wanted)
    assert sum(quotas) == wanted
    assert all(0 <= quota <= size for quota, size in zip(quotas, sizes, strict=True))


@pytest.mark.parametrize(
    ("wanted", "quotas"),
    [
        pytest.param(4, [1, 1, 1, 1], id="one of each"),
        pytest.param(8, [2, 2, 2, 2], id="equal shares"),
        pytest.param(6, [2, 2, 1, 1], id="equal remainders go to the shortest"),
    ],
)
def test_quotas_follow_the_pool(wanted: int, quotas: list[int]) -> None:
    assert quotas_of(strata_of(list(range(16)), 4), 4, wanted) == quotas
