"""Owns the registry of workloads and the way from a `Workload` to its prompts. Does not own any data, or tokens.

What comes out depends on the workload's own fields and on nothing else: every engine and every draft gets the same prompts
in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from jobs.errors import BadInput
from jobs.spec import Workload
from jobs.workloads.base import Prompt
from jobs.workloads.select import of_categories, stratified

WORKLOADS = {
    "mini": "jobs.workloads.mini:read_prompts",
    "random_tokens": "jobs.workloads.random_tokens:read_prompts",
    "synthetic": "jobs.workloads.synthetic:read_prompts",
}
"""name → module:function that reads all prompts of a workload, and refuses the fields that mean nothing for it."""


def load_prompts(workload: Workload) -> list[Prompt]:
    """The prompts of a workload in the order of sending; `BadInput` for a name, category or field that it does not have."""
    prompts = of_categories(_reader(workload.name)(workload), workload.categories, workload.name)
    return stratified(prompts, workload.limit, workload.seed)


def _reader(name: str) -> Callable[[Workload], list[Prompt]]:
    if name not in WORKLOADS:
        known = ", ".join(sorted(WORKLOADS))
        raise BadInput(f"`workload.name` must be a known workload: got {name!r}. Known: {known}. Use one of them.")
    module, _, attribute = WORKLOADS[name].partition(":")
    reader: Callable[[Workload], list[Prompt]] = getattr(import_module(module), attribute)
    return reader
