"""Owns the bytes of our host's wire: a request's JSON → `Generate`, a step → one server-sent event. Does not own HTTP.

Standard library only. The reading side of the events is `HostDialect` in `jobs/engines/dialects.py`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any

from jobs.engines.host.backend import Generate, Step


class BadRequest(Exception):
    """The client's mistake, in one line."""

    def __init__(self, message: str, *, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


def _whole(value: Any) -> bool:
    return type(value) is int


def _number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


RULES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "prompt_ids": (
        "a list of token ids, at least one",
        lambda v: isinstance(v, list) and v != [] and all(_whole(i) and i >= 0 for i in v),
    ),
    "output_limit": ("a whole number, at least 1", lambda v: _whole(v) and v >= 1),
    "temperature": ("a number, at least 0", lambda v: _number(v) and v >= 0),
    "top_p": ("a number above 0 and at most 1", lambda v: _number(v) and 0 < v <= 1),
    "top_k": ("a whole number, at least 0", lambda v: _whole(v) and v >= 0),
    "seed": ("a whole number", _whole),
    "ignore_eos": ("true or false", lambda v: isinstance(v, bool)),
    "category": ("text", lambda v: isinstance(v, str)),
    "wants_logprobs": ("true or false", lambda v: isinstance(v, bool)),
}
"""field of `Generate` → what it must be, in words and as a test."""


def parse_request(body: bytes, name: str) -> Generate:
    """The request in this body; `BadRequest` for another model (404) or for what breaks a rule (400)."""
    try:
        asked = json.loads(body)
    except ValueError as failure:
        raise BadRequest(f"the body must be JSON: {failure}") from None
    if not isinstance(asked, dict):
        raise BadRequest(f"the body must be a JSON object: got {type(asked).__name__}.")
    model = asked.pop("model", None)
    if model != name:
        raise BadRequest(f"`model` must be the name served here: got {model!r}. Served: {name}.", status=404)
    _check_fields(asked)
    return Generate(**asked)


def _check_fields(asked: dict[str, Any]) -> None:
    unknown = sorted(set(asked) - set(RULES))
    if unknown:
        raise BadRequest(f"fields must be known: got {', '.join(unknown)}. Known: {', '.join(RULES)}.")
    for item in fields(Generate):
        if item.name not in asked and item.default is MISSING:
            raise BadRequest(f"`{item.name}` must be given: {RULES[item.name][0]}.")
    for field, value in asked.items():
        rule, holds = RULES[field]
        if not holds(value):
            raise BadRequest(f"`{field}` must be {rule}: got {_short(value)}.")


def step_event(step: Step) -> bytes:
    """One step as one server-sent event."""
    told = {
        "ids": list(step.token_ids),
        "drafted": step.drafted,
        "accepted": step.accepted,
        "prefill": step.is_prefill,
        "cut": step.is_cut,
        "finish_reason": step.finish_reason,
        **({"logprobs": list(step.logprobs)} if step.logprobs else {}),
    }
    return b"data: " + json.dumps(told, separators=(",", ":")).encode() + b"\n\n"


def error_event(failure: Exception) -> bytes:
    """A failure in mid-stream as one server-sent event of one line."""
    message = " ".join(f"{type(failure).__name__}: {failure}".split())
    return b"data: " + json.dumps({"error": message}).encode() + b"\n\n"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
