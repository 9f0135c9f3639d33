"""Owns strata of length: which prompts are short or long, and how many of each are picked. Does not own which."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jobs.workloads.select.choose import Indices


def strata_of(lengths: Sequence[int], count: int) -> Indices:
    """For each its stratum, 0 to count − 1: the shortest n-th is 0. What is equally long goes by its place."""
    order = np.argsort(np.array(lengths), kind="stable")
    strata = np.empty(len(lengths), np.intp)
    strata[order] = np.arange(len(lengths)) * count // len(lengths)
    return strata


def quotas_of(strata: Indices, count: int, wanted: int) -> list[int]:
    """How many of each stratum, `wanted` in all, as they are in the pool: whole shares, then the largest remainders."""
    sizes = np.bincount(strata, minlength=count)
    quotas, remainders = np.divmod(sizes * wanted, len(strata))
    largest = np.argsort(-remainders, kind="stable")[: wanted - quotas.sum()]
    quotas[largest] += 1
    return [int(quota) for quota in quotas]
