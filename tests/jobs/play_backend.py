"""A script for the engine's environment: `[{"config": ..., "requests": [...]}]` as JSON on stdin → their steps on stdout.

A request may say `close_after` (steps, then the client goes away) and `reset` (before it). What it raises is its answer.
"""

import asyncio
import json
import sys
from dataclasses import asdict
from typing import Any

from jobs.engines.host.backend import Generate
from jobs.engines.host.transformers_backend import TransformersBackend, load


def main() -> None:
    json.dump([play(asked["config"], asked["requests"]) for asked in json.load(sys.stdin)], sys.stdout)


def play(config: dict[str, Any], requests: list[dict[str, Any]]) -> dict[str, Any]:
    try:
        backend = load(config)
    except ValueError as refused:
        return {"refused": str(refused)}
    answers = [asyncio.run(answer(backend, request)) for request in requests]
    return {"answers": answers, "facts": backend.facts(), "layers": backend.model.config.get_text_config().num_hidden_layers}


async def answer(backend: TransformersBackend, request: dict[str, Any]) -> dict[str, Any]:
    told = {"reset": backend.reset()} if request.pop("reset", False) else {}
    close_after = request.pop("close_after", 0)
    steps: list[dict[str, Any]] = []
    stream = backend.generate(Generate(**request))
    try:
        async for step in stream:
            steps.append(asdict(step))
            if len(steps) == close_after:
                await stream.aclose()
                break
    except ValueError as wrong:
        return {**told, "steps": steps, "error": str(wrong)}
    return {**told, "steps": steps, "rounds": backend.drafting.rounds}


if __name__ == "__main__":
    main()
