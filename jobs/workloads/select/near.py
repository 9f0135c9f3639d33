"""Owns which vectors of a pool are nearly the same. Does not own what becomes of them.

Every vector is compared with all that were kept before it, block by block: O(n²·d) in products of matrices; memory O(n·d).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from jobs.workloads.select.choose import Indices, Vectors

ROWS, COLUMNS = 1024, 8192  # of a block: 32 MiB


def near_duplicates(
    vectors: Vectors, threshold: float, tell: Callable[[int], None] = lambda _: None
) -> tuple[Indices, NDArray[np.float32]]:
    """For each vector: itself where it is kept, else one before it that is kept and at least so similar; and how similar.

    `tell` hears how many vectors have been looked at.
    """
    twin = np.arange(len(vectors))
    similarity = np.ones(len(vectors), np.float32)
    kept, n_kept = np.empty_like(vectors), 0
    for start in range(0, len(vectors), ROWS):
        block = vectors[start : start + ROWS]
        nearest, where = _nearest(block, kept[:n_kept])
        is_old = nearest >= threshold
        olds = np.flatnonzero(is_old)
        twin[start + olds] = np.flatnonzero(twin[:start] == np.arange(start))[where[olds]]
        similarity[start + olds] = nearest[olds]
        for one, other, how in _pairs_within(block, threshold):
            if not is_old[one] and not is_old[other]:
                is_old[other], twin[start + other], similarity[start + other] = True, start + one, how
        fresh = block[~is_old]
        kept[n_kept : n_kept + len(fresh)] = fresh
        n_kept += len(fresh)
        tell(start + len(block))
    return twin, similarity


def _nearest(block: Vectors, kept: Vectors) -> tuple[NDArray[np.float32], Indices]:
    """For each of the block: how similar the most similar of the kept ones is, and which it is."""
    nearest = np.full(len(block), -np.inf, np.float32)
    where = np.zeros(len(block), np.intp)
    rows = np.arange(len(block))
    for start in range(0, len(kept), COLUMNS):
        products = block @ kept[start : start + COLUMNS].T
        at = products.argmax(axis=1)
        value = products[rows, at]
        is_nearer = value > nearest
        nearest[is_nearer], where[is_nearer] = value[is_nearer], at[is_nearer] + start
    return nearest, where


def _pairs_within(block: Vectors, threshold: float) -> list[tuple[int, int, float]]:
    """The pairs of a block that are near each other, by the first, then by the second."""
    products = block @ block.T
    ones, others = np.nonzero(np.triu(products >= threshold, 1))
    return [(int(one), int(other), float(products[one, other])) for one, other in zip(ones, others, strict=True)]
