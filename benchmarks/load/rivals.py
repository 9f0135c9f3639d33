"""Owns two plain clients, as one would write them with aiohttp and with httpx. Does not own what is measured of them.

    python -m benchmarks.load.rivals aiohttp PORT REQUESTS STREAMS TOKENS

Each has STREAMS workers in one event loop; a worker stamps every line when its library hands it over, and parses it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

Opener = Callable[[bytes], AsyncIterator[bytes]]


def body_of(number: int, tokens: int) -> bytes:
    fields = {"model": "bench", "prompt": [number, *range(32)], "max_tokens": tokens, "stream": True}
    return json.dumps(fields).encode()


async def ask(lines: Opener, number: int, tokens: int) -> dict[str, Any]:
    """One request: when it was sent, and when every chunk with tokens came."""
    body = body_of(number, tokens)
    came_at = []
    sent_at = time.monotonic_ns()
    async for line in lines(body):
        now = time.monotonic_ns()
        if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]") and json.loads(line[6:])["choices"]:
            came_at.append(now)
    return {"number": number, "sent_at": sent_at, "came_at": came_at}


async def drive(lines: Opener, count: int, streams: int, tokens: int) -> dict[str, Any]:
    """All requests, at most `streams` at once."""
    numbers = iter(range(count))
    answers: list[dict[str, Any]] = []

    async def work() -> None:
        for number in numbers:
            answers.append(await ask(lines, number, tokens))

    cpu, start = time.process_time(), time.monotonic()
    await asyncio.gather(*(work() for _ in range(streams)))
    return {"cpu_s": time.process_time() - cpu, "wall_s": time.monotonic() - start, "answers": answers}


async def with_aiohttp(port: int, count: int, streams: int, tokens: int) -> dict[str, Any]:
    import aiohttp

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def lines(body: bytes) -> AsyncIterator[bytes]:
            async with session.post(f"http://127.0.0.1:{port}/v1/completions", data=body) as response:
                async for line in response.content:
                    yield line

        return await drive(lines, count, streams, tokens)


async def with_httpx(port: int, count: int, streams: int, tokens: int) -> dict[str, Any]:
    import httpx

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(limits=limits, timeout=None) as client:

        async def lines(body: bytes) -> AsyncIterator[bytes]:
            async with client.stream("POST", f"http://127.0.0.1:{port}/v1/completions", content=body) as response:
                async for line in response.aiter_lines():
                    yield line.encode()

        return await drive(lines, count, streams, tokens)


RIVALS = {"aiohttp": with_aiohttp, "httpx": with_httpx}


if __name__ == "__main__":
    json.dump(asyncio.run(RIVALS[sys.argv[1]](*map(int, sys.argv[2:]))), sys.stdout)
