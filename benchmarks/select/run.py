"""Owns the benchmark of the selection: how long a pool of vectors takes, and how much memory. Does not own embedding them.

    python benchmarks/select/run.py [--prompts 100000] [--dims 384] [--categories 11] [--per-category 80] [--json]

The vectors are made up: clusters within each category, and one in fifty a near copy of another, as pools have them.
A resident set includes Python and its libraries (about 100 MB).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

from jobs.workloads.base import Prompt  # noqa: E402
from jobs.workloads.select.benchmark import Wish, pick  # noqa: E402
from jobs.workloads.select.choose import Vectors  # noqa: E402

CLUSTERS = 40  # of a category
COPIES = 50  # one in so many is a near copy


def made_up(categories: list[int], dims: int, seed: int = 0) -> Vectors:
    """A vector a prompt: its cluster's centre, noise, and something that all have in common."""
    random = np.random.default_rng(seed)
    centres = random.standard_normal((max(categories) + 1, CLUSTERS, dims), np.float32)
    vectors = random.standard_normal((len(categories), dims), np.float32)
    vectors += centres[categories, random.integers(0, CLUSTERS, len(categories))] + 0.3
    for copy in range(COPIES, len(vectors), COPIES):
        vectors[copy] = vectors[copy - 1] + 0.1 * vectors[copy]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def measure(prompts: int, dims: int, categories: int, per_category: int) -> dict[str, Any]:
    labels = [place % categories for place in range(prompts)]
    pool = [Prompt(f"{place:032x}", f"category {label}", ("x" * (place % 997),)) for place, label in enumerate(labels)]
    vectors = made_up(labels, dims)
    started = time.perf_counter()
    compared_at = [started]
    found = pick(pool, vectors, Wish(per_category, strata=4), lambda _: compared_at.append(time.perf_counter()))
    seconds = time.perf_counter() - started
    return {
        "prompts": prompts,
        "dims": dims,
        "categories": categories,
        "per_category": per_category,
        "seconds": round(seconds, 1),
        "near_seconds": round(compared_at[-1] - started, 1),
        "peak_mb": round(
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 10 if sys.platform != "darwin" else 1 << 20)
        ),
        "left_out": found.left_out,
        "swaps": sum(category.swaps for category in found.categories),
        "uniform_similarity": round(float(np.mean([category.uniform.mean() for category in found.categories])), 4),
        "similarity": round(float(np.mean([category.similarity for category in found.categories])), 4),
        "cpus": os.cpu_count(),
        "load_average": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="What it costs to pick a benchmark out of a pool of vectors")
    parser.add_argument("--prompts", type=int, default=100_000)
    parser.add_argument("--dims", type=int, default=384)
    parser.add_argument("--categories", type=int, default=11)
    parser.add_argument("--per-category", type=int, default=80)
    parser.add_argument("--json", action="store_true", help="one line")
    asked = parser.parse_args()
    told = measure(asked.prompts, asked.dims, asked.categories, asked.per_category)
    print(json.dumps(told, indent=None if asked.json else 2))


if __name__ == "__main__":
    main()
