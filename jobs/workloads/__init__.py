"""Owns the registry of workloads and the way from a `Workload` to its prompts. Does not own any data, or tokens.

What comes out depends on the workload's own fields and on nothing else: every engine and every draft gets the same prompts
in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module

from jobs.errors import BadInput
from jobs.spec import ENTROPIES, Workload
from jobs.workloads.base import Prompt
from jobs.workloads.stratify import of_categories, stratified

WORKLOADS = {
    "creative": "jobs.workloads.shipped:read_creative",
    "jsonl": "jobs.workloads.jsonl:read_prompts",
    "mini": "jobs.workloads.mini:read_prompts",
    "mt_bench": "jobs.workloads.questions:read_mt_bench",
    "random_tokens": "jobs.workloads.random_tokens:read_prompts",
    "structured": "jobs.workloads.shipped:read_structured",
    "sharegpt": "jobs.workloads.sharegpt:read_prompts",
    "spec_bench": "jobs.workloads.questions:read_spec_bench",
    "speed_bench_agentic": "jobs.workloads.speed_bench:read_agentic",
    "speed_bench_qualitative": "jobs.workloads.speed_bench:read_qualitative",
    "speed_bench_throughput": "jobs.workloads.speed_bench:read_throughput",
    "synthetic": "jobs.workloads.synthetic:read_prompts",
    "trace": "jobs.workloads.trace:read_prompts",
}
"""name → module:function that reads all prompts of a workload, and refuses the fields that mean nothing for it."""

Read = Callable[[Workload], Sequence[Prompt]]


def load_prompts(workload: Workload) -> list[Prompt]:
    """The prompts of a workload in the order of sending; `BadInput` for a name, category or field that it does not have."""
    _refuse_unreadable(workload)
    prompts = of_categories(reader_of(workload.name)(workload), workload.categories, workload.name)
    if all(prompt.arrival_s is not None for prompt in prompts):
        return _as_they_came(prompts, workload.limit)
    return stratified(prompts, workload.limit, workload.seed)


def reading_once() -> Read:
    """`load_prompts` that reads each workload once, however many cells it is in."""
    known: dict[str, Sequence[Prompt]] = {}

    def read(workload: Workload) -> Sequence[Prompt]:
        key = repr(workload)
        if key not in known:
            known[key] = load_prompts(workload)
        return known[key]

    return read


def _refuse_unreadable(workload: Workload) -> None:
    """`BadInput` for values that mean nothing for any workload."""
    if type(workload.isl) is not int or workload.isl < 0:
        raise BadInput(
            f"`workload.isl` must be tokens, as 1000 or 1k (0 = as the prompts are): got {workload.isl!r}. Write a number."
        )
    if workload.entropy not in ENTROPIES:
        known = ", ".join(filter(None, ENTROPIES))
        raise BadInput(
            f"`workload.entropy` must be one of {known}, or be left out for all of them: got {workload.entropy!r}. Use one."
        )


def _as_they_came(prompts: Sequence[Prompt], limit: int) -> list[Prompt]:
    """The first `limit` of a trace (0 = all): a sample would thin its bursts out."""
    if limit < 0:
        raise BadInput(f"`workload.limit` must be a number of prompts, or 0 for all: got {limit}. Use 0 or more.")
    by_time = sorted(prompts, key=lambda prompt: (prompt.arrival_s, prompt.question_id))
    return by_time[:limit] if limit else by_time


def reader_of(name: str) -> Callable[[Workload], list[Prompt]]:
    """What reads all prompts of this workload, in their files' order; `BadInput` for a name that is not known."""
    if name not in WORKLOADS:
        known = ", ".join(sorted(WORKLOADS))
        raise BadInput(f"`workload.name` must be a known workload: got {name!r}. Known: {known}. Use one of them.")
    module, _, attribute = WORKLOADS[name].partition(":")
    reader: Callable[[Workload], list[Prompt]] = getattr(import_module(module), attribute)
    return reader
