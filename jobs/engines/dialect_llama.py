"""Owns how llama.cpp's `/completion` is spoken: token ids in and out. Pure. Does not own the engine.

It sends one event a token, those of a verify step in one burst. The cumulative draft counters in each event's timings jump
at the first token of a verify step, so that steps are told exactly; a step is one chunk, at the event of its last token. It
has no log-probabilities of tokens that were drafted: an answer has them for all of its tokens, or none. No field of a
request names the model: the session's nonce is the key that the server asks for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from jobs.engines.base import Answer, Ask, Endpoint
from jobs.engines.dialect_events import DONE, NO_REASON, NOTHING_AFTER, count_of, counts_of, error_in, object_of, section
from jobs.engines.dialects import post

FINISH = {"limit": "length", "eos": "stop", "word": "stop"}


class LlamaDialect:
    """`POST /completion`, streamed."""

    def request(self, ask: Ask, endpoint: Endpoint) -> bytes:
        body = {
            "prompt": list(ask.prompt_ids),
            "n_predict": ask.output_limit,
            "temperature": ask.sampling.temperature,
            "top_p": ask.sampling.top_p,
            "top_k": ask.sampling.top_k,
            "seed": ask.seed,
            "ignore_eos": ask.ignore_eos,
            "stream": True,
            "return_tokens": True,
            "timings_per_token": True,
            **({"json_schema": orjson.Fragment(ask.json_schema)} if ask.json_schema else {}),
            **({"n_probs": 1} if ask.wants_logprobs else {}),
        }
        return post(endpoint, "/completion", orjson.dumps(body))

    def answer(self, events: Sequence[bytes]) -> Answer:
        told = Told()
        error = error_in(told, events)
        return Answer(
            chunk_events=[step.event for step in told.steps],
            chunk_tokens=[len(step.ids) for step in told.steps],
            output_ids=[token for step in told.steps for token in step.ids],
            step_drafted=[step.drafted for step in told.steps],
            step_accepted=[step.accepted for step in told.steps],
            first_step_is_prefill=bool(told.steps) and told.steps[0].drafted == 0,
            last_step_is_cut=bool(told.steps) and told.steps[-1].missing > 0,
            logprobs=told.logprobs if len(told.logprobs) == sum(len(step.ids) for step in told.steps) else (),
            finish_reason=told.finish_reason,
            error=error,
        )


@dataclass
class Step:
    """One draft-and-verify round, as far as its tokens have come."""

    drafted: int
    accepted: int
    event: int = 0  # that of its last token
    ids: list[int] = field(default_factory=list)

    @property
    def missing(self) -> int:
        """Tokens that it still owes: the accepted ones and the target's own."""
        return self.accepted + 1 - len(self.ids)


@dataclass
class Told:
    """What the events said so far."""

    steps: list[Step] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0
    logprobs: list[float] = field(default_factory=list)
    finish_reason: str = ""

    def take(self, index: int, event: bytes) -> None:
        """One event. `ValueError` with what is wrong with it."""
        if self.finish_reason:
            if event.strip() == DONE:
                return
            raise ValueError(NOTHING_AFTER)
        fields = object_of(index, event)
        for token in counts_of("tokens", fields.get("tokens", [])):
            self.step_of(fields).ids.append(token)
            self.steps[-1].event = index
        self.logprobs += [float(told["logprob"]) for told in fields.get("completion_probabilities") or ()]
        if fields.get("stop"):
            self.finish_reason = FINISH.get(str(fields.get("stop_type")), "")
            self.check()

    def step_of(self, fields: dict[str, Any]) -> Step:
        """The step that the next token belongs to: a new one when the counters moved, or when the one before is complete."""
        timings = section(fields, "timings")
        drafted = count_of(timings, "draft_n", 0) - self.drafted
        accepted = count_of(timings, "draft_n_accepted", 0) - self.accepted
        if drafted > 0 or not self.steps or self.steps[-1].missing == 0:
            self.steps.append(Step(max(0, drafted), max(0, accepted)))
            self.drafted, self.accepted = self.drafted + max(0, drafted), self.accepted + max(0, accepted)
        return self.steps[-1]

    def check(self) -> None:
        """`ValueError` when the stream did not end as it should."""
        if not self.finish_reason:
            raise ValueError(NO_REASON)
