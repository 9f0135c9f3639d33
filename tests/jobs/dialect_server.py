"""Owns a server that stands in for SGLang, trtllm-serve or llama-server: it takes their command line, and speaks as they do.

Does not own a model: tokens, and how many drafts are accepted, are made up, the same for the same prompt. What is real is
the traffic: steps of several tokens, a batch with a queue, clients that go away, counters, names and keys.
Run as `python dialect_server.py DIALECT` and the engine's own arguments.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parent))

from dialect_voices import VOICES  # the folder of this file is the script's own

EOS = 2
STOPS = {11: 6, 13: 0}  # first token of a prompt → where its answer has EOS
TICK_S = 0.002


@dataclass
class Work:
    """One request: what was asked, and what came so far."""

    prompt: list[int]
    limit: int
    ignore_eos: bool
    ids: list[int] = field(default_factory=list)
    steps: list[tuple[int, int]] = field(default_factory=list)  # drafted, accepted; the first is the prefill
    finish: str = ""
    news: asyncio.Queue[list[int]] = field(default_factory=asyncio.Queue)

    def token(self, position: int) -> int:
        if STOPS.get(self.prompt[0]) == position:
            return EOS
        return 20 + (sum(self.prompt) * 31 + position * 17) % 50

    def step(self, k: int) -> None:
        """The prefill, or k drafted tokens of which some are accepted; a stop may cut them short."""
        drafted = k if self.steps else 0
        accepted = (sum(self.prompt) + len(self.steps) * 7) % (drafted + 1)
        self.steps.append((drafted, accepted))
        new = [self.token(len(self.ids) + i) for i in range(accepted + 1)][: self.limit - len(self.ids)]
        if EOS in new and not self.ignore_eos:
            new = new[: new.index(EOS) + 1]
            self.finish = "stop"
        self.ids += new
        if len(self.ids) >= self.limit:
            self.finish = self.finish or "length"
        self.news.put_nowait(new)


@dataclass
class Batch:
    """Requests in the order in which they came: the first `size` of them make a step together."""

    size: int
    k: int
    work: list[Work] = field(default_factory=list)
    done: list[Work] = field(default_factory=list)

    async def run(self) -> None:
        while True:
            for item in self.work[: self.size]:
                item.step(self.k)
                if item.finish:
                    self.done.append(item)
            self.work = [item for item in self.work if not item.finish]
            await asyncio.sleep(TICK_S)

    async def answers(self, item: Work, reader: asyncio.StreamReader) -> AsyncIterator[list[int]]:
        """The ids of each step, until the end or until the client goes away."""
        self.work.append(item)
        try:
            while not reader.at_eof():
                yield await item.news.get()
                if item.finish and item.news.empty():
                    return
        finally:
            if item in self.work:
                self.work.remove(item)

    def counted(self) -> dict[str, float]:
        steps = [step for item in self.done for step in item.steps]
        positions = {f"accepted_at_{i}": float(sum(accepted > i for _, accepted in steps)) for i in range(self.k)}
        return {
            "drafts": float(sum(drafted > 0 for drafted, _ in steps)),
            "draft_tokens": float(sum(drafted for drafted, _ in steps)),
            "accepted_tokens": float(sum(accepted for _, accepted in steps)),
            "output_tokens": float(sum(len(item.ids) for item in self.done)),
            "prompt_tokens": float(sum(len(item.prompt) for item in self.done)),
            **positions,
        }


class Server:
    """HTTP around a batch, in the voice of an engine (`dialect_voices`)."""

    def __init__(self, dialect: str, argv: list[str]) -> None:
        self.voice = VOICES[dialect](argv)
        self.batch = Batch(self.voice.batch, self.voice.k)

    async def serve(self) -> None:
        async with await asyncio.start_server(self.converse, "127.0.0.1", self.voice.port):
            sys.stdout.write(f"serving on {self.voice.port}\n")
            await self.batch.run()

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                headers = {
                    name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)
                }
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                method, target, _ = head[0].split(" ")
                await self.answer(method, target, headers, json.loads(body or b"{}"), reader, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def answer(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: dict[str, Any],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        path = urlsplit(target).path
        if self.voice.key and path not in self.voice.public and headers.get("authorization") != f"Bearer {self.voice.key}":
            writer.write(plain(401, b'{"error": "Unauthorized"}'))
        elif (method, path) == ("POST", self.voice.generate):
            item = Work(**self.voice.asked(body))
            if body.get("stream"):
                await self.stream(item, body, reader, writer)
            else:
                async for _ in self.batch.answers(item, reader):
                    pass
                writer.write(plain(200, json.dumps(self.voice.whole(item)).encode()))
        else:
            status, page = self.voice.page(method, path, self.batch.counted(), busy=bool(self.batch.work))
            writer.write(plain(status, page if isinstance(page, bytes) else json.dumps(page).encode()))

    async def stream(
        self, item: Work, body: Mapping[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        seen = 0
        async for new in self.batch.answers(item, reader):
            seen += len(new)
            for event in self.voice.events(item, new, seen, body, is_last=bool(item.finish) and seen == len(item.ids)):
                writer.write(
                    chunk(b"data: " + (event if isinstance(event, bytes) else json.dumps(event).encode()) + b"\n\n")
                )
            await writer.drain()
        writer.write(chunk(b""))


def chunk(payload: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(payload), payload)


def plain(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d -\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body)


if __name__ == "__main__":
    asyncio.run(Server(sys.argv[1], sys.argv[2:]).serve())
