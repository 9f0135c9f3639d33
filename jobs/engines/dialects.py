"""Owns how engine families are spoken to: a request as bytes, the events of a stream as an `Answer`. Pure.

Does not own sockets or clocks: `jobs/load` sends the bytes, stamps the events, and asks for the answer after the cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import orjson

from jobs.engines.base import Answer, Ask, Endpoint


class HostDialect:
    """The wire of our own host, see `jobs/engines/host/app.py`."""

    def request(self, ask: Ask, endpoint: Endpoint) -> bytes:
        body = {
            "model": endpoint.model,
            "prompt_ids": list(ask.prompt_ids),
            "output_limit": ask.output_limit,
            "temperature": ask.sampling.temperature,
            "top_p": ask.sampling.top_p,
            "top_k": ask.sampling.top_k,
            "seed": ask.seed,
            "ignore_eos": ask.ignore_eos,
            "category": ask.category,
            "wants_logprobs": ask.wants_logprobs,
        }
        return post(endpoint, "/generate", orjson.dumps(body))

    def answer(self, events: Sequence[bytes]) -> Answer:
        steps: list[HostStep] = []
        error = ""
        try:
            _read_steps(events, steps)
        except _Broken as wrong:
            error = str(wrong)
        # a step that neither drafted nor delivered only carried the finish reason
        rounds = [step for step in steps if step.ids or step.drafted]
        return Answer(
            chunk_events=[index for index, step in enumerate(steps) if step.ids],
            chunk_tokens=[len(step.ids) for step in steps if step.ids],
            output_ids=[token for step in steps for token in step.ids],
            step_drafted=[step.drafted for step in rounds],
            step_accepted=[step.accepted for step in rounds],
            first_step_is_prefill=bool(rounds) and rounds[0].prefill,
            last_step_is_cut=bool(rounds) and rounds[-1].cut,
            logprobs=tuple(logprob for step in steps for logprob in step.logprobs),
            finish_reason=steps[-1].finish_reason if steps and not error else "",
            error=error,
        )


@dataclass(frozen=True)
class HostStep:
    """One event of our host, its fields as on the wire."""

    ids: list[int]
    drafted: int
    accepted: int
    prefill: bool
    cut: bool
    finish_reason: str
    logprobs: Sequence[float] = ()  # only where they were asked for


STEP_FIELDS = {item.name for item in fields(HostStep)} - {"logprobs"}


class _Broken(ValueError):
    """What is wrong with a stream, in one line."""


def _read_steps(events: Sequence[bytes], steps: list[HostStep]) -> None:
    """Append the steps one by one, so that those before a broken event are kept."""
    for index, event in enumerate(events):
        if event.strip() == b"[DONE]":
            if index + 1 != len(events):
                raise _Broken(f"nothing may follow [DONE]: {len(events) - index - 1} events did.")
            break
        if steps and steps[-1].finish_reason:
            raise _Broken(f"nothing but [DONE] may follow the last step: event {index} did.")
        steps.append(_read_step(event, index))
    else:
        raise _Broken(f"the stream must end with [DONE]: it ended after {len(events)} events.")
    if not steps or not steps[-1].finish_reason:
        raise _Broken("the last step must tell why it was the last: no finish reason before [DONE].")


def _read_step(event: bytes, index: int) -> HostStep:
    try:
        told = orjson.loads(event)
    except ValueError:
        raise _Broken(f"event {index} must be JSON: got {_short(event)}.") from None
    if isinstance(told, dict) and "error" in told:
        raise _Broken(f"the engine gave up: {' '.join(str(told['error']).split())}")
    if not isinstance(told, dict) or set(told) - {"logprobs"} != STEP_FIELDS or not _is_step(told):
        raise _Broken(f"event {index} must be a step: got {_short(event)}.")
    return HostStep(**told)


def _is_step(told: dict[str, Any]) -> bool:
    ids, drafted, accepted = told["ids"], told["drafted"], told["accepted"]
    return (
        isinstance(ids, list)
        and all(type(token) is int and token >= 0 for token in ids)
        and type(drafted) is type(accepted) is int
        and 0 <= accepted <= min(drafted, len(ids))
        and type(told["prefill"]) is type(told["cut"]) is bool
        and told["finish_reason"] in ("", "stop", "length")
        and len(told.get("logprobs", ids)) == len(ids)
    )


def _short(event: bytes) -> str:
    return repr(event if len(event) <= 80 else event[:77] + b"...")


def post(endpoint: Endpoint, path: str, body: bytes) -> bytes:
    """A whole HTTP/1.1 request with a JSON body, asking for a stream and leaving the connection open."""
    headers = {
        "Host": endpoint.authority,
        "Accept": "text/event-stream",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        **endpoint.headers,
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + body
