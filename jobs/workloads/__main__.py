"""Owns `python -m jobs.workloads NAME`: what a workload holds, and how long it is for a model. Does not own any data."""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from statistics import median

from rich.console import Console
from rich.table import Table

from jobs.models import resolve
from jobs.spec import Workload
from jobs.workloads import WORKLOADS, load_prompts
from jobs.workloads.base import Prompt
from jobs.workloads.jsonl import columns_of
from jobs.workloads.tokenize import ChatTokenizer, conversations, prompt_tokens
from storage.command import OneLineParser, run_command


def main(argv: Sequence[str] | None = None) -> int:
    """Print one line a category; 2 for bad input, with its one line on stderr."""
    return run_command(lambda: _show(_parser().parse_args(argv)))


def _show(options: argparse.Namespace) -> int:
    fields = {name: getattr(options, name) for name in ("path", "revision", "split", "isl", "entropy", "limit", "seed")}
    workload = Workload(options.workload, categories=options.category, columns=columns_of(options.column), **fields)
    prompts = load_prompts(workload)
    Console().print(_table(options.workload, prompts, _lengths(prompts, options.model) if options.model else {}))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="python -m jobs.workloads", description="What a workload holds.")
    parser.add_argument("workload", help=f"one of: {', '.join(sorted(WORKLOADS))}")
    parser.add_argument(
        "--model", help="count tokens with the tokenizer and chat template of this model; named as in `model.path`"
    )
    parser.add_argument("--category", action="append", default=[], help="only this category; may be given several times")
    parser.add_argument("--column", action="append", default=[], metavar="OURS=THEIRS", help="as workload.columns")
    for name in ("path", "revision", "split", "isl", "entropy"):
        parser.add_argument(f"--{name}", default=0 if name == "isl" else "", help=f"as workload.{name}")
    parser.add_argument("--limit", type=int, default=0, help="as workload.limit")
    parser.add_argument("--seed", type=int, default=0, help="as workload.seed")
    return parser


def _lengths(prompts: Sequence[Prompt], model: str) -> dict[str, int]:
    """question_id → tokens of all its turns in the chat template."""
    tokenizer = ChatTokenizer(resolve(model))
    return {item.prompt.question_id: prompt_tokens(item) for item in conversations(prompts, tokenizer)}


def _table(title: str, prompts: Sequence[Prompt], lengths: dict[str, int]) -> Table:
    columns = ["category", "prompts", "multi-turn"] + ["tokens min", "median", "max"] * bool(lengths)
    table = Table(title=title)
    for column in columns:
        table.add_column(column, justify="left" if column == "category" else "right")
    by_category: dict[str, list[Prompt]] = defaultdict(list)
    for prompt in prompts:
        by_category[prompt.category].append(prompt)
    for category in sorted(by_category):
        table.add_row(category, *_row(by_category[category], lengths))
    table.add_section()
    table.add_row("all", *_row(prompts, lengths))
    return table


def _row(prompts: Sequence[Prompt], lengths: dict[str, int]) -> list[str]:
    cells = [len(prompts), sum(prompt.multiturn for prompt in prompts)]
    if lengths:
        tokens = [lengths[prompt.question_id] for prompt in prompts]
        cells += [min(tokens), round(median(tokens)), max(tokens)]
    return [str(cell) for cell in cells]


if __name__ == "__main__":
    sys.exit(main())
