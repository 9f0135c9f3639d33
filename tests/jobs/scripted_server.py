"""Owns a small HTTP server whose every byte a test writes itself. Does not own what is tested.

A script is `async def script(request, reader, writer)`: called once a request, with the request's number (from 0, over all
connections) and bytes; it writes the response, and may close the connection.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@dataclass
class Request:
    number: int
    connection: int
    head: bytes
    body: bytes


Script = Callable[[Request, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Server:
    port: int = 0
    requests: list[Request] = field(default_factory=list)
    connections: int = 0


def chunk(payload: bytes) -> bytes:
    """`payload` in HTTP's chunked encoding."""
    return b"%x\r\n%s\r\n" % (len(payload), payload)


def event(data: bytes) -> bytes:
    """One server-sent event as one HTTP chunk."""
    return chunk(b"data: " + data + b"\n\n")


END = b"0\r\n\r\n"


@contextmanager
def serving(script: Script, context: ssl.SSLContext | None = None) -> Iterator[Server]:
    """Serve until the block ends, over TLS with a context; requests are kept in `Server.requests`."""
    server, ready, stop = Server(), threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()
    writers: list[asyncio.StreamWriter] = []
    talks: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)  # here, as a task that is cancelled before its first step closes nothing
        talks.add(loop.create_task(converse(reader, writer)))

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = server.connections
        server.connections += 1
        try:
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
                )
                request = Request(len(server.requests), connection, head, await reader.readexactly(length))
                server.requests.append(request)
                await script(request, reader, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def main() -> None:
        listener = await asyncio.start_server(connected, "127.0.0.1", 0, limit=1 << 24, ssl=context)
        server.port = listener.sockets[0].getsockname()[1]
        ready.set()
        await stop.wait()
        listener.close()
        begun = asyncio.all_tasks() - {asyncio.current_task()}
        for task in begun:
            task.cancel()
        await asyncio.gather(*begun, return_exceptions=True)
        for writer in writers:
            writer.transport.abort()
        await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)

    thread = threading.Thread(target=lambda: loop.run_until_complete(main()))
    thread.start()
    ready.wait(5)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(5)
        loop.close()
