"""Owns the HTTP side of our own host: what is read from the wire, who may generate, and one event a step.

Does not own what generates (`backend.py` is its port) or the process (`__main__`). Standard library and Starlette only: it
runs in the engine's environment.

Whoever asks must have the key, which is the name under which it serves: of the health alone everybody is told.

    POST /generate  {"model", "prompt_ids", "output_limit", ...fields of `Generate`}  → server-sent events, then `[DONE]`
    GET  /health    200 once the backend is loaded
    GET  /facts     what the backend tells of itself, and the name under which it serves
    GET  /counters  cumulative since start
    POST /reset     asks the backend to empty what outlives a request (an optional `reset()`); null = nothing does
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import aclosing
from hmac import compare_digest

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from jobs.engines.host.backend import Backend, Generate, Step
from jobs.engines.host.wire import BadRequest, error_event, parse_request, step_event

HEALTH = "/health"
DONE = b"data: [DONE]\n\n"

log = logging.getLogger(__name__)


class Host:
    """One backend behind HTTP: at most `backend.batch` requests generate at once, others wait in order of arrival."""

    def __init__(self, backend: Backend, name: str) -> None:
        self.backend = backend
        self.name = name
        self.slots = asyncio.Semaphore(backend.batch)
        self.facts_of_backend = backend.facts()
        k = int(self.facts_of_backend.get("effective_config", {}).get("k", 0))
        names = ("requests", "steps", "drafts", "draft_tokens", "accepted_tokens", "output_tokens")
        self.counts: Counter[str] = Counter(dict.fromkeys((*names, *(f"accepted_at_{i}" for i in range(k))), 0))

    async def generate(self, request: Request) -> Response:
        try:
            return StepStream(self, parse_request(await request.body(), self.name))
        except BadRequest as wrong:
            return JSONResponse({"error": str(wrong)}, status_code=wrong.status)

    async def health(self, _: Request) -> Response:
        return JSONResponse({})  # what is told without a key must not tell the key

    async def facts(self, _: Request) -> Response:
        return JSONResponse({**self.facts_of_backend, **self.backend.facts(), "model": self.name})

    async def counters(self, _: Request) -> Response:
        return JSONResponse(dict(self.counts))

    async def reset(self, _: Request) -> Response:
        backend_reset = getattr(self.backend, "reset", None)
        return JSONResponse({"reset": backend_reset() if backend_reset else None})

    def count(self, step: Step) -> None:
        self.counts["steps"] += 1
        self.counts["drafts"] += step.drafted > 0
        self.counts["draft_tokens"] += step.drafted
        self.counts["accepted_tokens"] += step.accepted
        self.counts["output_tokens"] += len(step.token_ids)
        self.counts.update(f"accepted_at_{i}" for i in range(step.accepted))


class StepStream(Response):
    """Streams the steps of one request. A client that goes away ends the generation at once, waiting or running."""

    media_type = "text/event-stream"

    def __init__(self, host: Host, asked: Generate) -> None:
        super().__init__()
        del self.headers["content-length"]  # unknown: the body is chunked
        self.host = host
        self.asked = asked

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        work = asyncio.ensure_future(self._generate(send))
        gone = asyncio.ensure_future(_wait_for_disconnect(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            work.cancel()
            await asyncio.wait({work, gone})

    async def _generate(self, send: Send) -> None:
        try:
            async with self.host.slots:
                await self._send_steps(send)
            await send({"type": "http.response.body", "body": DONE})
        except Exception as failure:
            log.exception("a request failed")
            await send({"type": "http.response.body", "body": error_event(failure)})

    async def _send_steps(self, send: Send) -> None:
        self.host.counts["requests"] += 1
        async with aclosing(self.host.backend.generate(self.asked)) as steps:  # type: ignore[type-var]  # backends are generators
            async for step in steps:
                self.host.count(step)
                await send({"type": "http.response.body", "body": step_event(step), "more_body": True})


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Keyed:
    """Keeps everybody else out: other users of the node reach the port, too."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self.app = app
        self.expected = f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = dict(scope["headers"]).get(b"authorization", b"")
        if scope["path"] == HEALTH or compare_digest(given, self.expected):
            await self.app(scope, receive, send)
        else:
            await JSONResponse({"error": "the session's key must be given"}, status_code=401)(scope, receive, send)


def make_app(backend: Backend, name: str) -> ASGIApp:
    """The application that serves this backend under this name, which is its key too."""
    host = Host(backend, name)
    routes = [
        Route("/generate", host.generate, methods=["POST"]),
        Route(HEALTH, host.health),
        Route("/facts", host.facts),
        Route("/counters", host.counters),
        Route("/reset", host.reset, methods=["POST"]),
    ]
    return Keyed(Starlette(routes=routes), name)
