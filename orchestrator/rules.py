"""Owns the rules that a cell must keep before anything starts. Pure.

Does not own types (config checks them against the schema), or what one engine or workload offers: they refuse it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobs.engines import engine_named
from jobs.engines.rules import check_nodes
from jobs.errors import BadInput
from jobs.load import arrivals
from jobs.spec import DEVICES, DRAFT_FIELDS, NEEDS_MODEL, SCHEDULES, Cell, Draft
from jobs.workloads import WORKLOADS, Read, load_prompts
from jobs.workloads.schema import schema_text


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


DEVICE_FIELDS = ("tp", "pp", "dp", "ep", "nodes")
MOST_DEVICES = 10_000

RUNTIME_ENVS = {
    "uv": "uv: a list of requirements, a file of them, or a mapping of packages (such a list), "
    "uv_check, uv_version, uv_pip_install_options",
    "pip": "pip: such a list, such a file, or a mapping of packages, pip_check, pip_version, pip_install_options",
    "conda": "conda: a name, or a mapping",
    "image_uri": "image_uri: a name",
}
"""Those of Ray that make an environment. Its `py_executable` must have Ray: an engine's interpreter is `engine.python`."""


def _is_of_rays_types(given: Mapping[str, Any]) -> bool:
    return all(_is_of_rays_type(name, value) for name, value in given.items())


def _is_of_rays_type(name: str, value: Any) -> bool:
    if name in ("uv", "pip") and not isinstance(value, str):
        known = {"packages", f"{name}_check", f"{name}_version", f"{name.replace('uv', 'uv_pip')}_install_options"}
        if isinstance(value, Mapping) and not set(value) <= known:
            return False
        packages = value.get("packages") if isinstance(value, Mapping) else value
        return isinstance(packages, Sequence) and not isinstance(packages, str) and all(isinstance(p, str) for p in packages)
    return (isinstance(value, str) and bool(value)) or (name == "conda" and isinstance(value, Mapping))


def _is_share_of_ray(cpus: float) -> bool:
    """Ray counts in ten-thousandths."""
    return 0.0001 <= cpus <= 1_000_000 and math.isclose(cpus, round(cpus, 4), rel_tol=0, abs_tol=1e-9)


RULES = (
    Rule("model.path", "given (a folder, a hub id or package:NAME/FILE.gguf)", bool),
    *(Rule(f"engine.{name}", "at least 1", lambda v: v >= 1) for name in DEVICE_FIELDS),
    *(Rule(f"engine.{name}", f"at most {MOST_DEVICES}", lambda v: v <= MOST_DEVICES) for name in DEVICE_FIELDS),
    Rule("engine.runtime_env", f"Ray's {', '.join(RUNTIME_ENVS)}", lambda v: set(v) <= set(RUNTIME_ENVS)),
    Rule("engine.runtime_env", "one environment, as Ray combines none", lambda v: len(v) <= 1),
    Rule("engine.runtime_env", "of " + "; ".join(RUNTIME_ENVS.values()), _is_of_rays_types),
    Rule("engine.batch", "at least 1", lambda v: v >= 1),
    Rule("engine.cpus", "at least 0", lambda v: v >= 0),
    Rule("engine.cpus", "0 or from 0.0001 to a million, with 4 decimals at most", lambda v: v == 0 or _is_share_of_ray(v)),
    Rule("engine.max_length", "at least 0", lambda v: v >= 0),
    Rule("engine.kv_fraction", "from 0 (= the engine's default) to 1", lambda v: 0 <= v <= 1),
    Rule("engine.kv_bytes", "at least 0", lambda v: v >= 0),
    Rule("engine.threads", "at least 0", lambda v: v >= 0),
    Rule("engine.start_timeout_s", "above 0", lambda v: v > 0),
    Rule("workload.limit", "at least 0 (0 = all prompts)", lambda v: v >= 0),
    Rule("workload.output_limit", "at least 1", lambda v: v >= 1),
    Rule("sampling.temperature", "at least 0 (0 = greedy)", lambda v: 0 <= v < math.inf),
    Rule("sampling.top_p", "above 0 and at most 1", lambda v: 0 < v <= 1),
    Rule("sampling.top_k", "at least 0 (0 = off)", lambda v: v >= 0),
    Rule("sampling.scored", "at least 0 (0 = none)", lambda v: v >= 0),
    Rule("load.concurrency", "at least 1", lambda v: v >= 1),
    Rule("load.warmup", "at least 0", lambda v: v >= 0),
    Rule("load.request_timeout_s", "above 0", lambda v: v > 0),
    Rule("load.cell_timeout_s", "above 0", lambda v: v > 0),
    Rule("load.slo_ttft_s", "at least 0 (0 = no limit)", lambda v: v >= 0),
    Rule("load.slo_tpot_s", "at least 0 (0 = no limit)", lambda v: v >= 0),
    Rule("draft.tp", "at least 0 (0 = as the target)", lambda v: v >= 0),
    Rule("draft.vocab_size", "at least 0 (0 = as its files are)", lambda v: v >= 0),
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
    "k_by_batch": Rule(
        "draft.k_by_batch",
        "a mapping of batch sizes, the first 1, to draft lengths of at least 0",
        lambda v: not v or (min(v) == 1 and min(v.values()) >= 0),
    ),
    "acceptance_length": Rule("draft.acceptance_length", "at least 1 (0 = not given)", lambda v: v == 0 or v >= 1),
    "acceptance_rates": Rule("draft.acceptance_rates", "probabilities", lambda v: all(0 <= rate <= 1 for rate in v)),
}
"""Rules that hold only for the methods to which the field means something."""


def problem_of(cell: Cell, read: Read = load_prompts) -> Problem | None:
    """The first rule that a cell breaks, those of its engine and its workload last; None when it keeps them all."""
    for text in (*_wrong_choices(cell), *_broken_rules(cell), *_wrong_drafts(cell.deployment.draft)):
        return Problem(text)
    try:
        arrivals.check(cell.load)
        engine = engine_named(cell.deployment.engine.name)
        check_nodes(engine, cell.deployment)
        engine.check(cell.deployment)
        engine.check_cell(cell)
        schema_text(cell.workload)
        arrivals.check_recorded(cell.load, [prompt.arrival_s for prompt in read(cell.workload)])
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
    if draft.method in NEEDS_MODEL and not draft.model:
        yield f"`draft.model` must be given (a folder, a hub id or package:NAME/FILE.gguf) for {draft.method}: got ''."
    if draft.ngram_min > draft.ngram_max:
        yield f"`draft.ngram_min` must not be above `draft.ngram_max`: got {draft.ngram_min} above {draft.ngram_max}."
    if draft.schedule == "batch_size" and max(draft.k_by_batch.values(), default=0) != draft.k:
        yield f"`draft.k` must be the longest of `draft.k_by_batch`: got {draft.k} and {dict(draft.k_by_batch)}."
    if draft.method == "synthetic":
        yield from _wrong_synthetic(draft)


def _wrong_synthetic(draft: Draft) -> Iterator[str]:
    drafters = [method for method in DRAFT_FIELDS if method not in ("none", "synthetic")]
    if draft.drafter not in drafters:
        yield f"`draft.drafter` must be the method that drafts: got {draft.drafter!r}. Known: {', '.join(drafters)}."
    if bool(draft.acceptance_length) == bool(draft.acceptance_rates):
        yield (
            "one of `draft.acceptance_length` and `draft.acceptance_rates` must be given: "
            f"got {draft.acceptance_length:g} and {list(draft.acceptance_rates)}."
        )
    if draft.acceptance_length > draft.k + 1:
        yield f"`draft.acceptance_length` must be at most k + 1 = {draft.k + 1}: got {draft.acceptance_length:g}."


def _broken(rule: Rule, value: Any) -> str:
    return f"`{rule.key}` must be {rule.words}: got {value!r}."


def _value(cell: Cell, key: str) -> Any:
    section, _, name = key.partition(".")
    return getattr(getattr(cell.deployment if section in ("model", "engine", "draft") else cell, section), name)
