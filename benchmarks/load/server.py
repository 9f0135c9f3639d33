"""Owns a streaming server that knows the truth: when it handed every chunk to the kernel. Does not own any client.

One process, one thread, epoll and `send` by hand, so that the recorded time is that of the system call and not of a queue.
Speaks as much of OpenAI completions as a load client needs. Runs until its standard input ends.

    python benchmarks/load/server.py --port 0 --step-ms 40 --first-ms 50

The prompt's first token id is the number of the request, under which its record is kept. GET /records returns all records as
JSON and forgets them.
"""

from __future__ import annotations

import argparse
import heapq
import json
import select
import socket
import sys
import time
from collections import deque
from dataclasses import dataclass, field

HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
SLACK_NS = 20_000
VARIED = (0.25, 1.75)  # lengths as shares of the limit


@dataclass
class Pace:
    first_ns: int
    step_ns: int  # 0 = as fast as the socket takes
    pattern: tuple[int, ...]
    is_varied: bool


@dataclass
class Stream:
    """One request under way."""

    sock: socket.socket
    number: int
    left: int
    base_ns: int
    step: int = 0
    sent_at: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)


def chunk(payload: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(payload), payload)


def event(fields: object) -> bytes:
    return chunk(b"data: " + json.dumps(fields, separators=(",", ":")).encode() + b"\n\n")


def token_event(count: int, salt: int, finish: str | None) -> bytes:
    ids = [1000 + 37 * salt + i for i in range(count)]
    text = "".join(f" word{token}" for token in ids)
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish, "token_ids": ids}
    head = {"id": "cmpl-bench-0000000000000000", "object": "text_completion", "created": 1700000000, "model": "bench"}
    return event({**head, "choices": [choice]})


def usage_event(tokens: int) -> bytes:
    return event({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": tokens, "total_tokens": tokens + 1}})


FRAMES = {(count, salt): token_event(count, salt, None) for count in range(1, 9) for salt in range(16)}
LAST_FRAMES = {count: token_event(count, 3, "length") for count in range(1, 9)}
DONE = chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class Server:
    def __init__(self, port: int, pace: Pace) -> None:
        self.pace = pace
        self.listener = socket.create_server(("127.0.0.1", port), backlog=8192)
        self.listener.setblocking(False)
        self.port = self.listener.getsockname()[1]
        self.epoll = select.epoll()
        self.epoll.register(self.listener.fileno(), select.EPOLLIN)
        self.epoll.register(sys.stdin.fileno(), select.EPOLLIN)
        self.socks: dict[int, socket.socket] = {}
        self.inbox: dict[int, bytes] = {}
        self.timed: list[tuple[int, int, Stream]] = []
        self.eager: deque[Stream] = deque()
        self.records: list[dict[str, object]] = []
        self.n_timed = 0

    def run(self) -> None:
        while True:
            for fd, _ in self.epoll.poll(self.patience_s()):
                if fd == self.listener.fileno():
                    self.accept()
                elif fd == sys.stdin.fileno():
                    return
                else:
                    self.read(fd)
            now = time.monotonic_ns()
            while self.timed and self.timed[0][0] <= now + SLACK_NS:
                self.send_step(heapq.heappop(self.timed)[2])
            for _ in range(len(self.eager)):
                self.send_step(self.eager.popleft())

    def patience_s(self) -> float:
        """epoll counts in milliseconds and rounds up: the last one is polled through."""
        if self.eager:
            return 0
        if not self.timed:
            return 1.0
        left = (self.timed[0][0] - time.monotonic_ns()) // 1_000_000
        return max(0, left - 1) / 1e3 if left > 1 else 0

    def accept(self) -> None:
        while True:
            try:
                sock, _ = self.listener.accept()
            except BlockingIOError:
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.socks[sock.fileno()], self.inbox[sock.fileno()] = sock, b""
            self.epoll.register(sock.fileno(), select.EPOLLIN)

    def read(self, fd: int) -> None:
        try:
            data = self.socks[fd].recv(1 << 20)
        except OSError:
            data = b""
        if not data:
            self.epoll.unregister(fd)
            self.socks.pop(fd).close()
            return
        self.inbox[fd] += data
        head, found, body = self.inbox[fd].partition(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
        if found and len(body) >= length:
            self.inbox[fd] = body[length:]
            self.handle(self.socks[fd], head, body[:length])

    def handle(self, sock: socket.socket, head: bytes, body: bytes) -> None:
        if head.startswith(b"GET /records"):
            told = json.dumps(self.records).encode()
            self.records = []
            sock.setblocking(True)
            sock.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(told), told))
            sock.setblocking(False)
            return
        fields = json.loads(body)
        number, limit = fields["prompt"][0], fields["max_tokens"]
        if self.pace.is_varied:
            limit = max(1, round(limit * (VARIED[0] + (VARIED[1] - VARIED[0]) * (number * 2654435761 % 1000) / 1000)))
        stream = Stream(sock, number, limit, time.monotonic_ns() + self.pace.first_ns)
        if self.pace.first_ns or self.pace.step_ns:
            self.plan(stream)
        else:
            self.eager.append(stream)

    def plan(self, stream: Stream) -> None:
        self.n_timed += 1
        heapq.heappush(self.timed, (stream.base_ns + stream.step * self.pace.step_ns, self.n_timed, stream))

    def send_step(self, stream: Stream) -> None:
        count = min(stream.left, 1 if stream.step == 0 else self.pace.pattern[stream.step % len(self.pace.pattern)])
        is_last = count == stream.left
        frame = LAST_FRAMES[count] if is_last else FRAMES[count, stream.step % 16]
        if stream.step == 0:
            frame = HEAD + frame
        if is_last:
            frame += usage_event(sum(stream.tokens) + count) + DONE
        now = time.monotonic_ns()
        try:
            sent = stream.sock.send(frame)
        except BlockingIOError:
            self.eager.append(stream)  # the client does not keep up: the socket is full
            return
        except OSError:
            return  # the client went away
        if sent < len(frame):
            stream.sock.setblocking(True)
            stream.sock.sendall(frame[sent:])
            stream.sock.setblocking(False)
        stream.sent_at.append(now)
        stream.tokens.append(count)
        stream.left -= count
        stream.step += 1
        if is_last:
            self.records.append({"number": stream.number, "sent_at": stream.sent_at, "tokens": stream.tokens})
        elif self.pace.step_ns:
            self.plan(stream)
        else:
            self.eager.append(stream)


def main() -> None:
    parser = argparse.ArgumentParser(description="A streaming server that records when it sent every chunk")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--first-ms", type=float, default=50)
    parser.add_argument("--step-ms", type=float, default=40, help="time between chunks; 0 = as fast as the socket takes")
    parser.add_argument("--pattern", default="1,2,3,4", help="tokens a chunk, in turn; the first chunk has one")
    parser.add_argument("--varied", action="store_true", help="lengths between a quarter and seven quarters of the limit")
    asked = parser.parse_args()
    pattern = tuple(int(count) for count in asked.pattern.split(","))
    server = Server(asked.port, Pace(int(asked.first_ms * 1e6), int(asked.step_ms * 1e6), pattern, asked.varied))
    print(server.port, flush=True)
    server.run()


if __name__ == "__main__":
    main()
