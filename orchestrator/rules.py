"""Owns the rules that a cell must keep before anything starts. Pure.

Does not own types (config checks them against the schema), or what one engine or workload offers: they refuse it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from jobs.engines import engine_named
from jobs.errors import BadInput
from jobs.load import arrivals
from jobs.spec import DEVICES, DRAFT_FIELDS, SCHEDULES, Cell, Draft
from jobs.workloads import WORKLOADS, load_prompts


@dataclass(frozen=True)
class Problem:
    """A broken rule: its text, and the kind of `BadInput` that it is."""

    text: str
    kind: type[BadInput] = BadInput


@dataclass(frozen=True)
class Rule:
    """What the value of a key must be: `holds` says whether, `words` says what."""

    key: str
    words: str
    holds: Callable[[Any], bool]


RULES = (
    Rule("model.path", "given (a folder, a hub id or package:NAME/FILE.gguf)", bool),
    Rule("engine.tp", "at least 1", lambda v: v >= 1),
    Rule("engine.batch", "at least 1", lambda v: v >= 1),
    Rule("engine.cpus", "at least 0", lambda v: v >= 0),
    Rule("engine.max_length", "at least 0", lambda v: v >= 0),
    Rule("engine.threads", "at least 0", lambda v: v >= 0),
    Rule("engine.start_timeout_s", "above 0", lambda v: v > 0),
    Rule("workload.limit", "at least 0 (0 = all prompts)", lambda v: v >= 0),
    Rule("workload.isl", "at least 0 (0 = as the prompts are)", lambda v: v >= 0),
    Rule("workload.output_limit", "at least 1", lambda v: v >= 1),
    Rule("sampling.temperature", "at least 0 (0 = greedy)", lambda v: 0 <= v < math.inf),
    Rule("sampling.top_p", "above 0 and at most 1", lambda v: 0 < v <= 1),
    Rule("sampling.top_k", "at least 0 (0 = off)", lambda v: v >= 0),
    Rule("load.concurrency", "at least 1", lambda v: v >= 1),
    Rule("load.warmup", "at least 0", lambda v: v >= 0),
    Rule("load.request_timeout_s", "above 0", lambda v: v > 0),
    Rule("load.cell_timeout_s", "above 0", lambda v: v > 0),
    Rule("load.slo_ttft_s", "at least 0 (0 = no limit)", lambda v: v >= 0),
    Rule("load.slo_tpot_s", "at least 0 (0 = no limit)", lambda v: v >= 0),
    Rule("draft.tp", "at least 0 (0 = as the target)", lambda v: v >= 0),
    Rule("draft.confidence_threshold", "from 0 to below 1", lambda v: 0 <= v < 1),
)

CHOICES = {
    "engine.device": DEVICES,
    "load.kind": arrivals.KINDS,
    "draft.schedule": SCHEDULES,
    "draft.method": tuple(DRAFT_FIELDS),
    "workload.name": tuple(WORKLOADS),
}

DRAFT_RULES = {
    "k": Rule("draft.k", "at least 1", lambda v: v >= 1),
    "ngram_min": Rule("draft.ngram_min", "at least 1", lambda v: v >= 1),
    "exit_layer": Rule("draft.exit_layer", "at least 1", lambda v: v >= 1),
    "model": Rule("draft.model", "given (a folder, a hub id or package:NAME/FILE.gguf)", bool),
}
"""Rules that hold only for the methods to which the field means something."""


def problem_of(cell: Cell) -> Problem | None:
    """The first rule that a cell breaks, those of its engine and its workload last; None when it keeps them all."""
    for text in (*_wrong_choices(cell), *_broken_rules(cell), *_wrong_drafts(cell.deployment.draft)):
        return Problem(text)
    try:
        arrivals.check(cell.load)
        engine_named(cell.deployment.engine.name).check(cell.deployment)
        load_prompts(cell.workload)
    except BadInput as refusal:
        return Problem(str(refusal), type(refusal))
    return None


def _wrong_choices(cell: Cell) -> Iterator[str]:
    for key, known in CHOICES.items():
        if (value := _value(cell, key)) not in known:
            yield f"`{key}` must be known: got {value!r}. Known: {', '.join(known)}. Use one of them."


def _broken_rules(cell: Cell) -> Iterator[str]:
    for rule in RULES:
        if not rule.holds(value := _value(cell, rule.key)):
            yield _broken(rule, value)


def _wrong_drafts(draft: Draft) -> Iterator[str]:
    for name in DRAFT_FIELDS.get(draft.method, ()):
        rule = DRAFT_RULES.get(name)
        if rule and not rule.holds(value := getattr(draft, name)):
            yield f"{_broken(rule, value)} (`draft.method` is {draft.method}.)"
    if draft.ngram_min > draft.ngram_max:
        yield f"`draft.ngram_min` must not be above `draft.ngram_max`: got {draft.ngram_min} above {draft.ngram_max}."


def _broken(rule: Rule, value: Any) -> str:
    return f"`{rule.key}` must be {rule.words}: got {value!r}."


def _value(cell: Cell, key: str) -> Any:
    section, _, name = key.partition(".")
    return getattr(getattr(cell.deployment if section in ("model", "engine", "draft") else cell, section), name)
