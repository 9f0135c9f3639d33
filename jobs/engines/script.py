"""Owns the script of the simulated engine: what `engine.args` and `draft.args` may say. Does not own playing it.

Standard library only: the adapter checks it at plan time, the host's backend plays it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from jobs.errors import BadInput


@dataclass(frozen=True)
class Script:
    """How the simulated engine behaves. Times are of one step; "every n" and "after n" count requests from 1, 0 = never."""

    step_ms: float = 20.0  # one forward pass of the target
    draft_ms: float = 0.5  # each drafted token
    prefill_ms_per_token: float = 0.1
    batch_slope: float = 0.0  # a step takes this share longer for each further request in the batch
    noise: float = 0.0  # sigma of the lognormal factor of each step
    acceptance: list[float] = field(
        default_factory=lambda: [0.8, 0.7, 0.6]
    )  # conditional, by position; the last one repeats
    acceptance_by_category: dict[str, float] = field(default_factory=dict)  # category → factor on `acceptance`
    logprob_shift: float = 0.0  # its made-up log-probabilities are lower by this
    answer_tokens: float = 128.0  # mean length of an answer that ends by itself
    vocab: int = 32_000
    weights_bytes: int = 270_000_000
    draft_weights_bytes: int = 0
    kv_capacity_tokens: int = 65_536
    peak_memory_bytes: int = 1_000_000_000
    start_s: float = 0.0  # until it is ready
    fail_at_start: bool = False
    out_of_memory_message: str = ""  # it ends at its start with this as its last words
    crash_after_requests: int = 0  # the process ends in the middle of the next request
    crash_at_output_limit: int = 0  # the process ends in the middle of each request for this many tokens: a poison cell
    hang_after_requests: int = 0  # the whole process stops in the middle of the next request
    error_every: int = 0  # a request ends with an error in mid-stream
    garbage_every: int = 0  # a request's stream carries nonsense
    wrong_name: bool = False  # it serves under another name
    ignore_sigterm: bool = False


def _whole(value: Any) -> bool:
    return type(value) is int and value >= 0


def _number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value >= 0


def _probabilities(value: Any) -> bool:
    return isinstance(value, list) and value != [] and all(_number(p) and p <= 1 for p in value)


def _factors(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(name, str) and _number(factor) for name, factor in value.items())


RULES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "int": ("a whole number, at least 0", _whole),
    "float": ("a number, at least 0", _number),
    "bool": ("true or false", lambda value: isinstance(value, bool)),
    "str": ("text", lambda value: isinstance(value, str)),
    "list[float]": ("a list of probabilities, at least one", _probabilities),
    "dict[str, float]": ("a mapping of categories to factors, at least 0", _factors),
}
"""type of a field, as it is written above → what a value must be, in words and as a test."""

LEAST = {"answer_tokens": 1, "vocab": 2}


def make_script(engine_args: Mapping[str, Any], draft_args: Mapping[str, Any]) -> Script:
    """The script that these arguments write, those of the draft on top; `BadInput` for an unknown key or a wrong value."""
    rules = {item.name: RULES[str(item.type)] for item in fields(Script)}
    for place, args in (("engine.args", engine_args), ("draft.args", draft_args)):
        for key, value in args.items():
            if key not in rules:
                raise BadInput(f"`{place}` must be known to the simulated engine: got {key!r}. Known: {', '.join(rules)}.")
            rule, holds = rules[key]
            if not holds(value):
                raise BadInput(f"`{place}.{key}` must be {rule}: got {value!r}.")
            if key in LEAST and value < LEAST[key]:
                raise BadInput(f"`{place}.{key}` must be at least {LEAST[key]}: got {value!r}.")
    return Script(**{**engine_args, **draft_args})


def pretended_rates(draft: Mapping[str, Any]) -> list[float]:
    """Conditional acceptance by position of synthetic acceptance: as given, or one rate p with 1 + p + ... + p^k = AL."""
    low, high = 0.0, 1.0
    while high - low > 1e-9:
        rate = (low + high) / 2
        is_low = 1 + sum(rate**position for position in range(1, draft["k"] + 1)) < draft["acceptance_length"]
        low, high = (rate, high) if is_low else (low, rate)
    return draft["acceptance_rates"] or [high]
