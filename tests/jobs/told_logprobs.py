"""A script for the engine's environment: `{name: config}` as JSON on stdin → what is told of answers, on stdout.

Beside each told log-probability stands one that was worked out another way: token by token, each from a pass of its own.
"""

import asyncio
import json
import sys
from dataclasses import replace
from typing import Any

import torch

from jobs.engines.host.backend import Generate
from jobs.engines.host.transformers_backend import TransformersBackend, load


def main() -> None:
    json.dump({name: answers_of(config) for name, config in json.load(sys.stdin).items()}, sys.stdout)


def answers_of(config: dict[str, Any]) -> list[dict[str, Any]]:
    backend = load(config)
    request = Generate([5, 6, 7, 8, 5, 6, 7, 8, 5, 6], 24, seed=3, ignore_eos=True)
    return [asyncio.run(answer(backend, replace(request, temperature=temperature))) for temperature in (0.0, 0.8)]


async def answer(backend: TransformersBackend, request: Generate) -> dict[str, Any]:
    plain = [step async for step in backend.generate(request)]
    steps = [step async for step in backend.generate(replace(request, wants_logprobs=True))]
    ids = [token for step in steps for token in step.token_ids]
    return {
        "ids": ids,
        "plain_ids": [token for step in plain for token in step.token_ids],
        "untold": [list(step.logprobs) for step in plain if step.logprobs],
        "logprobs": [logprob for step in steps for logprob in step.logprobs],
        "expected": one_by_one(backend.model, list(request.prompt_ids), ids),
        "longest_step": max(len(step.token_ids) for step in steps),
    }


def one_by_one(model: Any, prompt: list[int], ids: list[int]) -> list[float]:
    told = []
    for n, token in enumerate(ids):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + ids[:n]])).logits[0, -1].double()
        told.append(float(logits[token] - logits.exp().sum().log()))
    return told


if __name__ == "__main__":
    main()
