"""Owns the picking of a benchmark: near duplicates go, then each category is picked from. Does not own vectors or files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from jobs.errors import BadInput
from jobs.workloads.base import Prompt
from jobs.workloads.select.choose import Indices, Vectors, choose, mean_similarity
from jobs.workloads.select.near import near_duplicates
from jobs.workloads.select.pool import text_of
from jobs.workloads.select.strata import quotas_of, strata_of
from jobs.workloads.stratify import chance

DRAWS = 200  # uniform ones, that the choice is compared with


@dataclass(frozen=True)
class Wish:
    """How many of each category, in how many strata of length, without what is at least so near to another; and the seed."""

    per_category: int
    strata: int = 1
    near: float = 0.95
    seed: int = 0


@dataclass(frozen=True)
class Category:
    """What came out for one category: mean similarity of two prompts of the pool, of uniform draws, and of the choice."""

    name: str
    in_pool: int
    kept: int
    chosen: Indices = field(repr=False)  # places in the pool
    pool_similarity: float
    uniform: NDArray[np.float64] = field(repr=False)  # of each draw from what was kept
    greedy_similarity: float
    similarity: float
    swaps: int


@dataclass(frozen=True)
class Benchmark:
    """The categories by name; for each prompt of the pool its twin that was kept (itself, if it was), and how similar."""

    categories: list[Category]
    twin: Indices
    twin_similarity: NDArray[np.float32]

    @property
    def chosen(self) -> list[int]:
        """Places in the pool of all that are picked, in its order."""
        return sorted(int(place) for category in self.categories for place in category.chosen)

    @property
    def left_out(self) -> int:
        """How many of the pool nearly are another that was kept."""
        return int(np.sum(self.twin != np.arange(len(self.twin))))


def pick(prompts: Sequence[Prompt], vectors: Vectors, wish: Wish, tell: Callable[[int], None] = lambda _: None) -> Benchmark:
    """So many prompts of each category; `BadInput` where one has too few. `tell` hears how many were compared."""
    twin, similarity = near_duplicates(vectors, wish.near, tell)
    places: dict[str, list[int]] = defaultdict(list)
    for place, prompt in enumerate(prompts):
        places[prompt.category].append(place)
    kept = {name: np.array([place for place in places[name] if twin[place] == place], np.intp) for name in sorted(places)}
    _check_sizes(kept, wish)
    categories = [_category(name, np.array(places[name]), kept[name], prompts, vectors, wish) for name in kept]
    return Benchmark(categories, twin, similarity)


def _check_sizes(kept: dict[str, Indices], wish: Wish) -> None:
    few = {name: len(found) for name, found in kept.items() if len(found) < wish.per_category}
    if few:
        told = ", ".join(f"{name} has {count}" for name, count in few.items())
        raise BadInput(
            f"--per-category must be at most what each category has without near duplicates: got {wish.per_category}; "
            f"{told}. Use {min(few.values()) or 'a larger pool'}, name the larger ones with --category, or raise --near."
        )


def _category(
    name: str, places: Indices, kept: Indices, prompts: Sequence[Prompt], vectors: Vectors, wish: Wish
) -> Category:
    ours = vectors[kept]
    strata = strata_of([len(text_of(prompts[place])) for place in kept], wish.strata)
    quotas = quotas_of(strata, wish.strata, wish.per_category)
    choice = choose(ours, strata, quotas, _first(kept, prompts, strata, quotas, wish.seed))
    pairs = max(wish.per_category * (wish.per_category - 1), 1)
    return Category(
        name,
        in_pool=len(places),
        kept=len(kept),
        chosen=kept[choice.members],
        pool_similarity=mean_similarity(vectors[places]),
        uniform=uniform_draws(ours, wish.per_category, wish.seed),
        greedy_similarity=choice.greedy_loss / pairs,
        similarity=choice.loss / pairs,
        swaps=choice.swaps,
    )


def _first(kept: Indices, prompts: Sequence[Prompt], strata: Indices, quotas: Sequence[int], seed: int) -> int:
    """Where the greedy pass begins: the one thing in which chance has a part."""
    has_room = [place for place in range(len(kept)) if quotas[strata[place]]]
    return min(has_room, key=lambda place: chance(seed, "first", prompts[int(kept[place])]))


def uniform_draws(vectors: Vectors, count: int, seed: int) -> NDArray[np.float64]:
    """The mean similarity of each of DRAWS uniform draws of `count` of the vectors."""
    random = np.random.default_rng(seed)
    return np.array([mean_similarity(vectors[random.permutation(len(vectors))[:count]]) for _ in range(DRAWS)])
