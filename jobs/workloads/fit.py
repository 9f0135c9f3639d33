"""Owns the search for the cut of a text that gives a prompt of a certain length. Does not own texts or tokenizers."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from jobs.errors import BadInput

CHARACTERS_A_TOKEN = 4  # the first guess
AROUND = 8  # characters on both sides that are tried where none of the search gives the length exactly


def fit(isl: int, n_tokens: Callable[[int], int], most: int) -> int:
    """How many characters (0 to `most`) make `n_tokens` give `isl`, or the nearest number to it where no cut gives it.

    A prompt is tokenized some five times: the number of tokens grows almost evenly with that of characters.
    """
    count = cache(n_tokens)
    if count(0) > isl:
        raise BadInput(
            f"`workload.isl` must leave room for a text: got {isl}, and the order alone, in the chat template, takes "
            f"{count(0)} tokens of this model. Use more."
        )
    low, high = _bounds(isl, count, most)
    while high - low > 1 and count(high) != isl:
        middle = _between(isl, low, high, count)
        low, high = (middle, high) if count(middle) < isl else (low, middle)
    nearby = range(max(low - AROUND, 0), min(high + AROUND, most) + 1)
    return high if count(high) == isl else min(nearby, key=lambda n: (abs(count(n) - isl), abs(n - low)))


def _bounds(isl: int, count: Callable[[int], int], most: int) -> tuple[int, int]:
    """Numbers of characters that give less than `isl` tokens (or none at all), and at least so many."""
    low, high = 0, min((isl - count(0)) * CHARACTERS_A_TOKEN + AROUND, most)
    while count(high) < isl:
        if high == most:
            raise BadInput(
                f"`workload.isl` must be at most {count(most)} for this model, in whose tokens that is all of the text that "
                f"SpecSweep brings: got {isl}. No text is repeated. Use less, or a file of your own (`workload=jsonl`)."
            )
        low, high = high, min(high + (isl - count(high)) * 2 * CHARACTERS_A_TOKEN + AROUND, most)
    return low, high


def _between(isl: int, low: int, high: int, count: Callable[[int], int]) -> int:
    """Where the length would lie if tokens were spread evenly, strictly between the bounds."""
    share = (isl - count(low)) / max(count(high) - count(low), 1)
    return min(max(low + round((high - low) * share), low + 1), high - 1)
