"""Owns which vectors of a pool are picked: those that resemble each other least. Does not own what they stand for.

L(S) = Σ over i ≠ j in S of xᵢ·xⱼ = |s|² − |S| for vectors of length 1, where s is the sum of those that are picked. How
much a vector resembles all of them is x·s, so no matrix of all pairs is ever made: with n vectors of d numbers a pick costs
O(n·d), and a swap O(n·d + c·k·d) for the c that lie outside and could gain anything. Memory: O(n) and one block beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]
Indices = NDArray[np.intp]

GAIN = 1e-5  # a swap that gains less of L/2 is rounding: products are taken in 32 bits
BLOCK = 1 << 22  # numbers in a block of pairs: 16 MiB


@dataclass(frozen=True)
class Choice:
    """What is picked: indices in order, L after the greedy pass and after the swaps, and how many swaps there were."""

    members: Indices
    greedy_loss: float
    loss: float
    swaps: int


def choose(vectors: Vectors, strata: Indices, quotas: Sequence[int], first: int) -> Choice:
    """`quotas[g]` of the vectors (rows of length 1) whose stratum is g, beginning with `first`.

    No exchange of one that is picked for one of the same stratum that is not makes L smaller.
    """
    members = greedy(vectors, strata, quotas, first)
    greedy_loss = loss_of(vectors[members])
    swaps = 0
    while pair := best_swap(vectors, strata, members):
        position, newcomer = pair
        members[position] = newcomer
        swaps += 1
    return Choice(np.sort(members), greedy_loss, loss_of(vectors[members]), swaps)


def loss_of(picked: Vectors) -> float:
    """L of these vectors: the sum of the similarities of all ordered pairs."""
    wide = picked.astype(np.float64)
    total = wide.sum(axis=0)
    return float(total @ total - np.einsum("ij,ij->", wide, wide))


def mean_similarity(picked: Vectors) -> float:
    """The mean similarity of two of these vectors; 0 for a single one."""
    pairs = len(picked) * (len(picked) - 1)
    return loss_of(picked) / pairs if pairs else 0.0


def greedy(vectors: Vectors, strata: Indices, quotas: Sequence[int], first: int) -> Indices:
    """`first`, then again and again the one that resembles those before it least, of a stratum that has room."""
    left = np.array(quotas)
    is_open = left[strata] > 0
    total = np.zeros(vectors.shape[1])
    members = []
    newcomer = first
    while True:
        members.append(newcomer)
        total += vectors[newcomer]
        is_open[newcomer] = False
        left[strata[newcomer]] -= 1
        if not left[strata[newcomer]]:
            is_open &= strata != strata[newcomer]
        if not is_open.any():
            return np.array(members)
        newcomer = int(np.where(is_open, vectors @ total.astype(np.float32), np.inf).argmin())


def best_swap(vectors: Vectors, strata: Indices, members: Indices) -> tuple[int, int] | None:
    """The exchange within a stratum that makes L smallest: place in `members`, and who comes there. None = none gains.

    To put i in the place of o changes L/2 by (xᵢ − xₒ)·(s − xₒ) = xᵢ·s − xᵢ·xₒ − (xₒ·s − 1).
    """
    total = vectors[members].sum(axis=0, dtype=np.float64)
    affinity = vectors @ total.astype(np.float32)
    is_outside = np.ones(len(vectors), bool)
    is_outside[members] = False
    best, pair = -GAIN, None
    for stratum in np.unique(strata[members]):
        leavers = np.flatnonzero(strata[members] == stratum)
        newcomers = np.flatnonzero(is_outside & (strata == stratum))
        change, found = _best_pair(vectors, affinity, members, leavers, newcomers, best)
        if found:
            best, pair = change, found
    if pair is None:
        return None
    return pair if _exact_change(vectors, total, members[pair[0]], pair[1]) < -GAIN else None


def _best_pair(
    vectors: Vectors, affinity: Vectors, members: Indices, leavers: Indices, newcomers: Indices, best: float
) -> tuple[float, tuple[int, int] | None]:
    """The pair that changes L/2 by least, and by less than `best`, with its change.

    As xᵢ·xₒ ≤ 1, no pair changes it by less than xᵢ·s − xₒ·s: those whose bound is too high are never multiplied.
    """
    leaving = affinity[members[leavers]]
    newcomers = newcomers[affinity[newcomers] - leaving.max() < best]
    newcomers = newcomers[np.argsort(affinity[newcomers], kind="stable")]
    pair = None
    step = max(1, BLOCK // len(leavers))
    for start in range(0, len(newcomers), step):
        block = newcomers[start : start + step]
        live = np.flatnonzero(affinity[block[0]] - leaving < best)
        if not len(live):
            break
        change = vectors[block] @ vectors[members[leavers[live]]].T
        np.subtract(affinity[block, None], change, out=change)
        change -= leaving[live] - 1
        at = int(change.argmin())
        if change.flat[at] < best:
            best = float(change.flat[at])
            pair = int(leavers[live[at % len(live)]]), int(block[at // len(live)])
    return best, pair


def _exact_change(vectors: Vectors, total: NDArray[np.float64], leaver: int, newcomer: int) -> float:
    """The change of L/2, with 64 bits: L falls with every swap, so the swaps come to an end."""
    out, into = vectors[leaver].astype(np.float64), vectors[newcomer].astype(np.float64)
    return float((into - out) @ (total - out))
