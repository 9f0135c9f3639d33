"""Owns the check of the claim: is AL steadier over selected benchmarks than over uniform ones? Does not own measuring.

    python benchmarks/select/redraws.py RUN [--pool mini] [--per-category 4] [--share 0.6] [--redraws 200] [--json]

RUN measured every prompt of the pool once, with one draft. Each re-draw takes a random share of the pool, as if somebody
else had collected it, and draws a benchmark from it: uniformly, and by selection. Its AL is the mean over its prompts.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
from numpy.typing import NDArray  # noqa: E402

from jobs.spec import Workload  # noqa: E402
from jobs.workloads.select.choose import Indices, Vectors, choose, mean_similarity  # noqa: E402
from jobs.workloads.select.embed import MODEL, embedded  # noqa: E402
from jobs.workloads.select.pool import read_pool, text_of  # noqa: E402
from storage.views import open_runs  # noqa: E402

AL = """SELECT question_id, 1 + sum(n_accepted) / sum(n_steps) AS al FROM requests
JOIN cells USING (run, cell_id, attempt) WHERE cells.method <> 'none' GROUP BY question_id HAVING sum(n_steps) > 0"""
"""AL of every prompt, over its turns."""
Numbers = NDArray[np.float64]


def drawn(vectors: Vectors, count: int, share: float, redraws: int, seed: int) -> tuple[list[Indices], list[Indices]]:
    """Places of the uniform draws and of the selected ones, each pair out of the same part of the pool."""
    random = np.random.default_rng(seed)
    uniform, selected = [], []
    for _ in range(redraws):
        part = random.permutation(len(vectors))[: max(count, round(share * len(vectors)))]
        uniform.append(random.permutation(part)[:count])
        choice = choose(vectors[part], np.zeros(len(part), np.intp), [count], first=int(random.integers(len(part))))
        selected.append(part[choice.members])
    return uniform, selected


def spread(draws: Numbers, truth: float) -> dict[str, float]:
    """Of the AL of re-draws, in % of the pool's AL: its range, its standard deviation, and how far its mean is off."""
    told = {"range": np.ptp(draws), "sd": draws.std(ddof=1), "bias": draws.mean() - truth}
    told["rmse"] = np.sqrt(np.mean((draws - truth) ** 2))
    return {f"{name}_pct": round(float(100 * value / truth), 2) for name, value in told.items()}


def measure(asked: argparse.Namespace) -> dict[str, Any]:
    al_of = dict(open_runs([asked.run]).sql(AL).fetchall())
    pool = read_pool(Workload(name=asked.pool, path=asked.path))
    prompts = [prompt for prompt in pool.prompts if prompt.question_id in al_of]
    vectors = embedded([text_of(prompt) for prompt in prompts], asked.model).vectors
    al = np.array([al_of[prompt.question_id] for prompt in prompts])
    told: dict[str, Any] = {"prompts": len(prompts), **{key: value for key, value in vars(asked).items() if key != "json"}}
    means: dict[str, list[Numbers]] = {"uniform": [], "selected": []}
    truths = []
    for category in sorted({prompt.category for prompt in prompts}):
        places = np.array([place for place, prompt in enumerate(prompts) if prompt.category == category])
        ours, values = vectors[places], al[places]
        draws = dict(zip(means, drawn(ours, asked.per_category, asked.share, asked.redraws, asked.seed), strict=True))
        told[category] = {"pool": len(places), "al": round(float(values.mean()), 3)}
        truths.append(values.mean())
        for name, sets in draws.items():
            means[name].append(np.array([values[found].mean() for found in sets]))
            similarity = np.mean([mean_similarity(ours[found]) for found in sets])
            told[category][name] = {**spread(means[name][-1], values.mean()), "similarity": round(float(similarity), 4)}
    for name, found in means.items():
        told[f"macro_{name}"] = spread(np.mean(found, axis=0), float(np.mean(truths)))
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description="Is AL steadier over selected benchmarks than over uniform ones?")
    parser.add_argument("run")
    parser.add_argument("--pool", default="mini", help="the workload that RUN measured")
    parser.add_argument("--path", default="", help="its files, where it has any")
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--per-category", type=int, default=4)
    parser.add_argument("--share", type=float, default=0.6, help="of the pool that each re-draw sees (1: all)")
    parser.add_argument("--redraws", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one line")
    asked = parser.parse_args()
    print(json.dumps(measure(asked), indent=None if asked.json else 2))


if __name__ == "__main__":
    main()
