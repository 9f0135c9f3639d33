"""Owns which prompts of a workload are sent, and in which order. Does not own where they come from.

Chance is a SHA-256 of the seed and the question's id, not a generator of random numbers: the draw is the same on every
version of Python, and a prompt that is added elsewhere moves no other prompt within its category.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Sequence

from jobs.errors import BadInput
from jobs.workloads.base import Prompt


def of_categories(prompts: Sequence[Prompt], wanted: Sequence[str], workload: str) -> list[Prompt]:
    """The prompts of the categories that are wanted ([] = all); `BadInput` for a category that the workload lacks."""
    known = sorted({prompt.category for prompt in prompts})
    unknown = sorted(set(wanted) - set(known))
    if unknown:
        raise BadInput(
            f"`workload.categories` must be categories of `{workload}`: got {', '.join(unknown)}. "
            f"It has: {', '.join(known)}. Use some of them, or [] for all."
        )
    return [prompt for prompt in prompts if not wanted or prompt.category in wanted]


def stratified(prompts: Sequence[Prompt], limit: int, seed: int) -> list[Prompt]:
    """At most `limit` prompts (0 = all), drawn round robin over the categories, and spread evenly over the order of sending.

    The draw of a smaller limit is part of the draw of a larger one.
    """
    if limit < 0:
        raise BadInput(f"`workload.limit` must be a number of prompts, or 0 for all: got {limit}. Use 0 or more.")
    ranks = _ranks(prompts, seed)
    rounds = sorted(prompts, key=lambda prompt: (ranks[prompt.question_id], chance(seed, "round", prompt)))
    drawn = rounds[:limit] if limit else rounds
    sizes = Counter(prompt.category for prompt in drawn)

    def place(prompt: Prompt) -> tuple[float, str]:
        """Where in the whole, from 0 to 1: the i-th of n prompts of a category lies somewhere in the i-th n-th of it."""
        rank = ranks[prompt.question_id] + chance(seed, "place", prompt)
        return rank / sizes[prompt.category], prompt.question_id

    return sorted(drawn, key=place)


def _ranks(prompts: Sequence[Prompt], seed: int) -> dict[str, int]:
    """question_id → its place in the shuffled order of its category."""
    by_category: dict[str, list[Prompt]] = defaultdict(list)
    for prompt in sorted(prompts, key=lambda prompt: chance(seed, "rank", prompt)):
        by_category[prompt.category].append(prompt)
    return {prompt.question_id: rank for group in by_category.values() for rank, prompt in enumerate(group)}


def chance(seed: int, purpose: str, prompt: Prompt) -> float:
    """A number in [0, 1), of the prompt's id and nothing else of it: the same wherever it is asked for."""
    text = f"{seed}/{purpose}/{prompt.question_id}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") / 2**48
