"""Owns the files of a benchmark: prompts, manifest, report, near duplicates, map. Does not own what is picked."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from jobs.provenance import git_state
from jobs.workloads.base import Prompt
from jobs.workloads.files import MANIFEST
from jobs.workloads.select.benchmark import DRAWS, Benchmark, Category, Wish
from jobs.workloads.select.embed import Embedded
from jobs.workloads.select.picture import map_of
from jobs.workloads.select.pool import rows_for
from storage.files import make_folder, write_whole

PROMPTS, REPORT, NEAR, MAP = "prompts.jsonl", "report.md", "near_duplicates.csv", "map.svg"


def write_benchmark(
    folder: Path, prompts: Sequence[Prompt], made: Embedded, wish: Wish, found: Benchmark, source: dict[str, Any]
) -> None:
    """All files; the manifest, which has the hashes of the others, comes last."""
    contents = {
        PROMPTS: "".join(
            json.dumps(row, ensure_ascii=False) + "\n" for row in rows_for([prompts[place] for place in found.chosen])
        ),
        NEAR: near_duplicates_csv(prompts, found),
        MAP: _map(made, wish, found),
        REPORT: report_of(made, wish, found),
    }
    make_folder(folder)
    for name, content in contents.items():
        write_whole(folder / name, content.encode())
    hashes = {name: hashlib.sha256(content.encode()).hexdigest() for name, content in contents.items()}
    write_whole(
        folder / MANIFEST, json.dumps(manifest_of(made, wish, found, source) | {"output": hashes}, indent=2).encode()
    )


def manifest_of(made: Embedded, wish: Wish, found: Benchmark, source: dict[str, Any]) -> dict[str, Any]:
    """All that it takes to make it again, and to see that it is the same."""
    return {
        "made_by": "jobs.workloads.select",
        "commit": git_state()[0],
        "pool": source,
        **asdict(wish),
        "embedding": {
            "model": made.model,
            "model_sha256": made.model_sha256,
            "vectors_sha256": hashlib.sha256(np.ascontiguousarray(made.vectors).data).hexdigest(),
            "limit": made.limit,
            "cut": made.cut,
        },
        "categories": {
            category.name: {
                "in_pool": category.in_pool,
                "kept": category.kept,
                "chosen": len(category.chosen),
                "swaps": category.swaps,
                **_similarities(category),
            }
            for category in found.categories
        },
    }


def _similarities(category: Category) -> dict[str, float]:
    return {
        "pool_similarity": category.pool_similarity,
        "uniform_similarity": float(category.uniform.mean()),
        "uniform_p5": float(np.percentile(category.uniform, 5)),
        "uniform_p95": float(np.percentile(category.uniform, 95)),
        "greedy_similarity": category.greedy_similarity,
        "similarity": category.similarity,
    }


def near_duplicates_csv(prompts: Sequence[Prompt], found: Benchmark) -> str:
    """What was left out as a near duplicate, of what, and how similar they are."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["question_id", "kept", "similarity"])
    for place, twin in enumerate(found.twin):
        if twin != place:
            writer.writerow([prompts[place].question_id, prompts[twin].question_id, f"{found.twin_similarity[place]:.4f}"])
    return out.getvalue()


def report_of(made: Embedded, wish: Wish, found: Benchmark) -> str:
    """Markdown: mean similarity of two prompts of a category before and after, beside uniform draws."""
    lines = [
        f"# {len(found.chosen)} prompts of {len(found.twin)}",
        "",
        f"{wish.per_category} of each category, {wish.strata} strata of length, seed {wish.seed}. Vectors: `{made.model}`, "
        f"{made.vectors.shape[1]} numbers each. {_told_cut(made, len(found.twin))}{found.left_out} prompts were left out as "
        f"near duplicates (similarity of at least {wish.near} to one that was kept).",
        "",
        f"Mean similarity of two prompts of a category; uniform: {DRAWS} draws without near duplicates, mean and where "
        "nine of ten of them lie.",
        "",
        "| category | pool | kept | picked | in the pool | uniform draws | greedy | picked | swaps |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [_line(category) for category in found.categories]
    mean = means_of(found)
    told = " | ".join(f"{mean[name]:.3f}" for name in ("pool_similarity", "uniform_similarity", "greedy_similarity"))
    lines.append(f"| **mean of categories** | | | | {told} | {mean['similarity']:.3f} | |")
    return "\n".join([*lines, "", f"![map]({MAP})", ""])


def means_of(found: Benchmark) -> dict[str, float]:
    """The mean over the categories of each similarity."""
    facts = [_similarities(category) for category in found.categories]
    return {name: float(np.mean([fact[name] for fact in facts])) for name in facts[0]}


def summary_of(found: Benchmark) -> str:
    """One line for the terminal."""
    mean = means_of(found)
    return (
        f"{len(found.chosen)} prompts of {len(found.twin)}, {found.left_out} left out as near duplicates. Mean similarity "
        f"within a category: {mean['similarity']:.3f}; uniform draws {mean['uniform_similarity']:.3f}, the pool "
        f"{mean['pool_similarity']:.3f}."
    )


def _told_cut(made: Embedded, count: int) -> str:
    if not made.limit:
        return ""
    return f"It reads the first {made.limit} tokens of a prompt: {made.cut} of {count} are longer. "


def _line(category: Category) -> str:
    fact = _similarities(category)
    uniform = f"{fact['uniform_similarity']:.3f} ({fact['uniform_p5']:.3f} to {fact['uniform_p95']:.3f})"
    counts = f"{category.in_pool} | {category.kept} | {len(category.chosen)}"
    return (
        f"| {category.name} | {counts} | {fact['pool_similarity']:.3f} | {uniform} | {fact['greedy_similarity']:.3f} | "
        f"{fact['similarity']:.3f} | {category.swaps} |"
    )


def _map(made: Embedded, wish: Wish, found: Benchmark) -> str:
    picked = {category.name: category.chosen for category in found.categories}
    return map_of(made.vectors, picked, f"{len(found.chosen)} prompts picked of {len(found.twin)}.", wish.seed)
