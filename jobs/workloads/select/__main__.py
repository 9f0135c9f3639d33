"""Owns `python -m jobs.workloads.select`: its options and what it shows. Does not own how a benchmark is picked."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from jobs.errors import BadInput
from jobs.models import PACKAGE
from jobs.provenance import local_path
from jobs.spec import Workload
from jobs.workloads import WORKLOADS
from jobs.workloads.jsonl import columns_of
from jobs.workloads.select.benchmark import Wish, pick
from jobs.workloads.select.embed import MODEL, Embedded, embedded, given
from jobs.workloads.select.pool import Pool, read_pool, text_of
from jobs.workloads.select.report import PROMPTS, REPORT, summary_of, write_benchmark
from storage.command import OneLineParser, refuse_unwritable, run_command


def main(argv: Sequence[str] | None = None) -> int:
    """0 when the benchmark is written; 2 for bad input, with its one line on stderr."""
    return run_command(lambda: _select(_parser().parse_args(argv)))


def _select(options: argparse.Namespace) -> int:
    wish = _wish(options)
    workload = Workload(
        name=options.workload,
        path=options.path,
        split=options.split,
        revision=options.revision,
        categories=options.category,
        columns=columns_of(options.column),
    )
    pool = read_pool(workload)
    made = _vectors(pool, options)
    with _shown("comparing", len(pool.prompts)) as tell:
        found = pick(pool.prompts, made.vectors, wish, tell)
    folder = local_path(options.output)
    write_benchmark(folder, pool.prompts, made, wish, found, _source(workload, pool))
    for line in (
        summary_of(found),
        f"Report: {folder / REPORT}",
        f"Run it: workload=jsonl workload.path={folder / PROMPTS}",
    ):
        sys.stdout.write(f"{line}\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="python -m jobs.workloads.select",
        description="Pick the prompts of each category that resemble each other least, as SPEED-Bench was made.",
    )
    parser.add_argument("path", nargs="?", default="", help="as workload.path: a file, a folder or a hub id of prompts")
    parser.add_argument("--per-category", type=int, required=True, help="how many prompts of each category")
    parser.add_argument("--output", type=Path, required=True, help="the folder to write")
    parser.add_argument("--workload", default="jsonl", help=f"what reads the pool ({', '.join(sorted(WORKLOADS))})")
    parser.add_argument("--column", action="append", default=[], metavar="OURS=THEIRS", help="as workload.columns")
    parser.add_argument("--category", action="append", default=[], help="only this category; may be given several times")
    parser.add_argument("--split", default="", help="as workload.split")
    parser.add_argument("--revision", default="", help="as workload.revision")
    parser.add_argument(
        "--model", default=MODEL, help=f"what embeds: a folder, a hub id, or {PACKAGE}NAME/FOLDER (default: {MODEL})"
    )
    parser.add_argument("--vectors", type=Path, help="a .npy of your own instead: a row a prompt, in the order of the files")
    parser.add_argument(
        "--near", type=float, default=0.95, help="leave out what is so similar to another (0.95; 1.1: nothing)"
    )
    parser.add_argument(
        "--strata", type=int, default=1, help="as many of each n-th of the lengths as there are in the pool (1)"
    )
    parser.add_argument("--seed", type=int, default=0, help="where the picking begins (0)")
    return parser


def _wish(options: argparse.Namespace) -> Wish:
    for name in ("per_category", "strata"):
        if (value := getattr(options, name)) < 1:
            raise BadInput(f"--{name.replace('_', '-')} must be at least 1: got {value}. Use 1 or more.")
    if options.seed < 0:
        raise BadInput(f"--seed must be at least 0: got {options.seed}. Use 0 or more.")
    if not options.near > 0:
        raise BadInput(f"--near must be a similarity over 0 (1 = the same direction): got {options.near}. Use 0.95.")
    refuse_unwritable(local_path(options.output))
    return Wish(options.per_category, options.strata, options.near, options.seed)


def _vectors(pool: Pool, options: argparse.Namespace) -> Embedded:
    if options.vectors:
        made = given(local_path(options.vectors), pool.in_files)
        return replace(made, vectors=made.vectors[pool.places])
    with _shown("embedding", len(pool.prompts)) as tell:
        return embedded([text_of(prompt) for prompt in pool.prompts], options.model, tell)


def _source(workload: Workload, pool: Pool) -> dict[str, Any]:
    """What was picked from; the hash is of ids, categories and texts."""
    told = [[prompt.question_id, prompt.category, *prompt.turns] for prompt in pool.prompts]
    return {
        "workload": workload.name,
        "path": workload.path,
        "split": workload.split,
        "revision": workload.revision,
        "columns": workload.columns,
        "only_categories": workload.categories,
        "prompts": len(pool.prompts),
        "sha256": hashlib.sha256(json.dumps(told).encode()).hexdigest(),
    }


@contextmanager
def _shown(what: str, total: int) -> Iterator[Callable[[int], None]]:
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=total)
        yield lambda done: progress.update(task, completed=done)


if __name__ == "__main__":
    sys.exit(main())
