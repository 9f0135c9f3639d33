"""Owns the backend that plays a script instead of a model. Does not own what a script may say (`jobs/engines/script.py`).

An answer is drawn from its prompt alone (and the request's seed when it samples), so that drafting never changes it: the
simulated engine is lossless. What is accepted is drawn from prompt, seed and step. Steps end at absolute deadlines, so that
the timer's grain (a millisecond) does not add up.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from platform import python_version
from typing import Any, cast

from jobs.engines.host.backend import Generate, Step
from jobs.engines.script import Script, make_script, pretended_rates

EOS = 0
VERSION = "1"


@dataclass(frozen=True)
class Round:
    """One step before it has a duration."""

    token_ids: Sequence[int]
    drafted: int = 0
    accepted: int = 0
    is_cut: bool = False


class SimulatedBackend:
    """Plays `script` for at most `batch` requests at once."""

    def __init__(self, script: Script, config: Mapping[str, Any]) -> None:
        self.script = script
        self.config = config
        self.batch: int = config["engine"]["batch"]
        self.max_length: int = config["engine"]["max_length"]
        self.method: str = config["draft"]["method"]
        self.k: int = config["draft"]["k"] if self.method != "none" else 0
        self.running = 0
        self.requests = 0
        self.noise = random.Random(f"{config['engine']['seed']}/{self.method}/{self.k}")

    def facts(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "effective_config": {"method": self.method, "k": self.k, "batch": self.batch, "script": vars(self.script)},
            "versions": {"python": python_version()},
            "weights_bytes": self.script.weights_bytes,
            "draft_weights_bytes": self.script.draft_weights_bytes if self.method == "draft_model" else 0,
            "kv_capacity_tokens": self.script.kv_capacity_tokens,
            "peak_memory_bytes": self.script.peak_memory_bytes,
            "simulated": True,
        }

    async def generate(self, request: Generate) -> AsyncIterator[Step]:
        limit = self._limit(request)
        self.requests += 1
        number = self.requests
        self.running += 1
        try:
            async for index, step in self._play(request, limit):
                yield step
                if index == 0:
                    self._fail_on_demand(number, request.output_limit)
                    if _is_due(number, self.script.garbage_every):
                        yield Step(token_ids=cast("Sequence[int]", ["garbage"]))
        finally:
            self.running -= 1

    def _limit(self, request: Generate) -> int:
        room = self.max_length - len(request.prompt_ids) if self.max_length else request.output_limit
        if room < 1:
            raise ValueError(f"the prompt must leave room in {self.max_length} tokens: it has {len(request.prompt_ids)}.")
        return min(request.output_limit, room)

    async def _play(self, request: Generate, limit: int) -> AsyncIterator[tuple[int, Step]]:
        answer, finish_reason = make_answer(self.script, request, limit)
        left = len(answer)
        due = time.monotonic() + self.script.prefill_ms_per_token * len(request.prompt_ids) / 1e3
        for index, played in enumerate(make_rounds(self.script, request, answer, self.k)):
            due = max(
                due + self._step_s(played.drafted), time.monotonic()
            )  # late: go on from now, don't catch up in a burst
            await asyncio.sleep(due - time.monotonic())
            left -= len(played.token_ids)
            yield (
                index,
                Step(
                    played.token_ids,
                    drafted=played.drafted,
                    accepted=played.accepted,
                    is_prefill=index == 0,
                    is_cut=played.is_cut,
                    finish_reason="" if left else finish_reason,
                    logprobs=make_logprobs(self.script, request, index, len(played.token_ids)),
                ),
            )

    def _step_s(self, drafted: int) -> float:
        script = self.script
        crowd = 1 + script.batch_slope * (self.running - 1)
        noise = self.noise.lognormvariate(0, script.noise) if script.noise else 1.0
        return (script.step_ms + script.draft_ms * drafted) * crowd * noise / 1e3

    def _fail_on_demand(self, number: int, output_limit: int) -> None:
        script = self.script
        if script.crash_after_requests and number > script.crash_after_requests:
            os._exit(70)
        if script.crash_at_output_limit == output_limit:  # a request has a limit of 1 at least
            os._exit(70)
        while script.hang_after_requests and number > script.hang_after_requests:
            time.sleep(3600)  # the event loop too: nothing is answered any more
        if _is_due(number, script.error_every):
            raise RuntimeError(f"simulated error in request {number}")


def make_answer(script: Script, request: Generate, limit: int) -> tuple[list[int], str]:
    """The token ids of an answer and why it ends. Its own length is exponential around the mean, its last token EOS."""
    draws = random.Random(_seed(request, with_seed=request.temperature > 0))
    length = max(1, round(draws.expovariate(1 / script.answer_tokens)))
    ends = length <= limit and not request.ignore_eos
    answer = [draws.randrange(EOS + 1, script.vocab) for _ in range(length if ends else limit)]
    if ends:
        answer[-1] = EOS
    return answer, "stop" if ends else "length"


def make_rounds(script: Script, request: Generate, answer: Sequence[int], k: int) -> Iterator[Round]:
    """The answer cut into steps: the prefill's single token, then what each step accepts and one token more."""
    draws = random.Random(_seed(request, with_seed=True) + b"acceptance")
    chances = acceptance(script, request.category, k)
    yield Round(answer[:1])
    at = 1
    while at < len(answer):
        accepted = _accepted([draws.random() for _ in chances], chances)
        token_ids = answer[at : at + accepted + 1]
        yield Round(token_ids, drafted=k, accepted=len(token_ids) - 1, is_cut=len(token_ids) <= accepted)
        at += len(token_ids)


def make_logprobs(script: Script, request: Generate, step: int, count: int) -> list[float]:
    """Made up: exponential around -1 - `logprob_shift`. None where nobody asked."""
    draws = random.Random(_seed(request, with_seed=True) + f"logprobs{step}".encode())
    return [-draws.expovariate(1) - script.logprob_shift for _ in range(count * request.wants_logprobs)]


def acceptance(script: Script, category: str, k: int) -> list[float]:
    """Conditional acceptance at positions 0..k-1 for this category."""
    factor = script.acceptance_by_category.get(category, 1.0)
    last = len(script.acceptance) - 1
    return [min(1.0, script.acceptance[min(i, last)] * factor) for i in range(k)]


def load(config: Mapping[str, Any]) -> SimulatedBackend:
    """The backend of this deployment, after its scripted start."""
    script = make_script(config["engine"]["args"], config["draft"]["args"])
    if config["draft"]["method"] == "synthetic":
        script = replace(script, acceptance=pretended_rates(config["draft"]), acceptance_by_category={})
    if script.ignore_sigterm:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # the server sets its own handler later
    time.sleep(script.start_s)
    if script.out_of_memory_message:
        raise SystemExit(script.out_of_memory_message)
    if script.fail_at_start:
        raise SystemExit("simulated failure at start")
    return SimulatedBackend(script, config)


def _accepted(draws: Sequence[float], chances: Sequence[float]) -> int:
    for position, (draw, chance) in enumerate(zip(draws, chances, strict=True)):
        if draw >= chance:
            return position
    return len(chances)


def _seed(request: Generate, *, with_seed: bool) -> bytes:
    prompt = ",".join(map(str, request.prompt_ids))
    return hashlib.sha256(f"{prompt}/{request.seed if with_seed else ''}".encode()).digest()


def _is_due(number: int, every: int) -> bool:
    return every > 0 and number % every == 0
