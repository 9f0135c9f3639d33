"""Owns the event loop that sends and listens, in a process of its own. Does not own what is sent, or what the bytes mean.

Run as `python -m jobs.load.client FD`, where FD is a Unix socket to the worker (messages: `jobs.load.wire`). It ends when
every conversation has ended, or when the worker goes away. It imports only the standard library and the HTTP parser.

Stamp first, parse later: per read the loop takes a stamp, keeps the bytes, and lets the C parser say whether the response is
over (0.1 µs). All else waits until the turn has ended, or until the cell has.
"""

from __future__ import annotations

import gc
import select
import socket
import sys
import time
from collections import deque
from contextlib import suppress

import httptools

from jobs.load.agenda import Agenda, Turn
from jobs.load.clock import STAMP_BYTES, STEP_NS, raw_stamp, wall_minus_monotonic_ns, wall_ns
from jobs.load.lines import READ_BYTES, READABLE, WRITABLE, Line, Lines, poll_of
from jobs.load.outbox import SAMPLES, Outbox, reply_of
from jobs.load.punctual import be_punctual
from jobs.load.tunnel import Tunnels
from jobs.load.wire import TIMED_OUT, Confession, Message, Plan, Unpacker

MOST_ANSWER_BYTES = 64 << 20  # a longer answer is cut off: what comes is no stream of tokens
MOST_OPENED_AHEAD = 4_096
CHECK_NS = 20_000_000  # how often limits are looked at
TICK_NS = 1_000_000_000
LINGER_NS = 250_000
FEW = 32  # a batch of so many events pays for its wake-up
SLICE = 16  # turns that are sent before anything else gets its turn
MILLISECOND_NS = 1_000_000
NO_OFFSET = -1


class Client:
    """The loop, and what is done when a turn ends."""

    def __init__(self, pipe: socket.socket, plan: Plan, unpacker: Unpacker) -> None:
        self.pipe, self.plan, self.unpacker = pipe, plan, unpacker
        self.poller = select.epoll() if hasattr(select, "epoll") else select.poll()
        self.agenda = Agenda(plan.streams)
        is_direct = not (plan.tls or plan.proxy)
        self.lines = Lines(self.poller, plan.host, plan.port) if is_direct else Tunnels(self.poller, plan)
        self.outbox = Outbox(pipe)
        self.deadlines: deque[tuple[int, Turn, Line]] = deque()  # in the order of sending, which is that of the deadlines
        self.ended: deque[tuple[Turn, str, int]] = deque()  # turns to pack: error, offset of the clocks
        self.n_reads = self.lag_ns_max = self.t_zero = self.check_at = self.tick_at = self.cpu_ns = 0
        self.offset = wall_minus_monotonic_ns()
        self.clock_stepped = False
        self.poller.register(pipe.fileno(), READABLE)

    def run(self) -> None:
        """Serve until every conversation has ended. The hot loop."""
        poll, listening, now_ns = poll_of(self.poller), self.lines.listening, time.monotonic_ns
        now = 0
        while not (self.t_zero and self.agenda.is_over):
            before = now
            ready = poll(self.patience())
            woken_at = now_ns()
            for fd, mask in ready:
                line = listening.get(fd)
                if line is None:
                    self.attend(fd, mask)
                    continue
                try:
                    data, ancillary, _, _ = line.recvmsg(READ_BYTES, STAMP_BYTES)
                    line.reads.append((now_ns(), ancillary, data))
                    line.feed(data)
                except BlockingIOError:
                    continue
                except (OSError, httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
                    self.fail(line, reason(error))
                    continue
                if line.is_ended or not data:
                    self.finish(line)
            now = now_ns()
            self.look_after(now, woken_at)
            # Waking up costs more than reading. When wake-ups come thick and bring little, wait a moment and read more at
            # once: the stamps are the kernel's, so that nothing but the next send is later for it.
            if self.lines.has_stamps and len(ready) < FEW and woken_at - before < 2 * LINGER_NS:
                time.sleep(self.agenda.until_due(now, LINGER_NS) * 1e-9)

    def patience(self) -> float:
        """How many seconds to poll. Pollers count in milliseconds and round up, so that the last one is slept here."""
        if self.ended or (self.agenda.ready and not self.outbox.is_full):
            return 0.0
        if not (self.t_zero and self.agenda.timed):
            return CHECK_NS * 1e-9
        wait_ns = self.agenda.until_due(time.monotonic_ns(), CHECK_NS)
        if wait_ns > 2 * MILLISECOND_NS:
            return (wait_ns // MILLISECOND_NS - 1) * 1e-3
        if self.lines.has_stamps:
            time.sleep(wait_ns * 1e-9)
        return 0.0

    def look_after(self, now: int, woken_at: int) -> None:
        """After a batch of events: send what is due, pack what ended, see to limits and to the worker.

        Sending and packing go by slices, so that a wave of turns that end together does not keep new answers waiting.
        """
        if self.t_zero:
            self.lag_ns_max = max(self.lag_ns_max, now - woken_at)
            self.agenda.call(now)
            for _ in range(0 if self.outbox.is_full else min(SLICE, len(self.agenda.ready))):
                self.send(self.agenda.ready.popleft())
        if self.ended and (self.outbox.is_full or not self.agenda.ready):
            self.pack(*self.ended.popleft())
        if now >= self.check_at:
            self.check_at = now + CHECK_NS
            self.check_limits(now)
        if self.outbox.queue:
            self.poller.modify(self.pipe.fileno(), READABLE | WRITABLE if self.outbox.flush() else READABLE)

    def send(self, turn: Turn) -> None:
        """Put a turn on a line; it has its time from here."""
        try:
            line = self.lines.place(turn)
        except OSError as error:
            self.end(turn, reason(error))
        else:
            self.deadlines.append((time.monotonic_ns() + self.plan.request_timeout_ns, turn, line))

    def attend(self, fd: int, mask: int) -> None:
        """What is no answer: the worker speaks, or something happened on a line that idles, connects or sends."""
        if fd == self.pipe.fileno():
            self.listen_to_worker()
        elif line := self.lines.others.get(fd):
            try:
                self.lines.attend(line, mask)
            except (OSError, httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
                self.fail(line, reason(error))
            else:
                if line.is_ended and line.turn is not None:
                    self.finish(line)  # it was answered before all was sent, in a read that no event tells of again

    def finish(self, line: Line) -> None:
        """The response is whole, or the server closed the connection."""
        if line.is_ended or line.answered_by_closing:
            self.part(line, "")
        else:
            self.fail(line, "the server closed the connection before its answer ended")

    def fail(self, line: Line, error: str) -> None:
        """A turn failed. That the server closed a kept connection in between is no fault of the request: try once more."""
        turn = line.turn
        assert turn is not None
        if line.is_used and turn.n_tries == 1 and not any(data for _, _, data in line.reads):
            self.lines.part(line, keep=False)
            self.agenda.ready.append(turn)
        else:
            self.part(line, error)

    def part(self, line: Line, error: str) -> None:
        """A turn ended: free its line."""
        turn = line.turn
        assert turn is not None
        self.lines.part(line, keep=not error)
        self.end(turn, error)

    def end(self, turn: Turn, error: str) -> None:
        """Close the books of a turn; its slot is free since its last byte arrived, by the best clock that there is."""
        offset = self.offset_since_last()
        at = turn.reads[-1][0] if turn.reads and not error else time.monotonic_ns()
        if offset != NO_OFFSET and turn.reads and not error:
            at = wall_ns(raw_stamp(turn.reads[-1][1])) - offset if turn.reads[-1][1] else at
        self.n_reads += len(turn.reads)
        self.agenda.end(turn, at, failed=bool(error))
        if turn.has_more and not error:
            self.outbox.say(packed_up(turn, error, offset))  # the worker makes the next turn of it
        else:
            self.ended.append((turn, error, offset))

    def offset_since_last(self) -> int:
        """Wall clock − monotonic clock; `NO_OFFSET` since it jumped (what is in flight has stamps of before and after), or
        without kernel stamps."""
        self.clock_stepped = self.clock_stepped or abs(wall_minus_monotonic_ns() - self.offset) > STEP_NS
        return self.offset if self.lines.has_stamps and not self.clock_stepped else NO_OFFSET

    def pack(self, turn: Turn, error: str, offset: int) -> None:
        """Make a turn small, for the worker to have later."""
        self.outbox.keep(packed_up(turn, error, offset))

    def check_limits(self, now: int) -> None:
        """End what ran out of time or grew without end, and tell how far the cell is."""
        while self.deadlines and (self.deadlines[0][0] <= now or not self.deadlines[0][1].is_open):
            _, turn, line = self.deadlines.popleft()
            if line.turn is turn:
                got = sum(len(data) for _, _, data in turn.reads)
                self.part(line, f"{TIMED_OUT} {self.plan.request_timeout_ns / 1e9:g} s with {got} bytes received")
        if self.t_zero and now >= self.tick_at:
            self.tick_at = now + TICK_NS
            for line in list(self.lines.listening.values()):
                if sum(len(data) for _, _, data in line.reads) > MOST_ANSWER_BYTES:
                    self.part(line, f"the answer is longer than {MOST_ANSWER_BYTES} bytes")
            reads = self.n_reads + sum(len(line.reads) for line in self.lines.listening.values())
            self.outbox.say(("tick", self.agenda.done, reads))
            self.outbox.release(SAMPLES)

    def listen_to_worker(self) -> None:
        """Do what the worker says; end with it."""
        with suppress(BlockingIOError):
            data = self.pipe.recv(1 << 20)
            if not data:
                sys.exit(0)
            for message in self.unpacker.feed(data):
                self.obey(message)

    def obey(self, message: Message) -> None:
        """One message of the worker."""
        name, *rest = message
        if name == "send":
            turn = Turn(*rest)
            (self.agenda.go_on if turn.turn else self.agenda.add)(turn)
        elif name == "release":
            self.agenda.release(*rest)
        elif name == "open":
            self.lines.open_ahead(min(self.plan.streams or FEW, self.agenda.expected, MOST_OPENED_AHEAD))
            self.outbox.say(("ready",))
        elif name == "start":
            gc.freeze()
            self.cpu_ns = time.process_time_ns()
            (self.t_zero,) = rest
            self.agenda.start(self.t_zero)
        elif name == "stop":
            self.give_up()

    def give_up(self) -> None:
        """The cell's time is up: what is under way ends as it is, what waits is never sent."""
        self.agenda.is_given_up = True
        for line in [*self.lines.listening.values(), *self.lines.others.values()]:
            if line.turn is not None:
                self.part(line, "the cell's time was up")

    def confess(self) -> None:
        """Tell all that was kept back, and what this process thinks of itself."""
        cpu_ns = time.process_time_ns() - self.cpu_ns
        while self.ended:
            self.pack(*self.ended.popleft())
        self.outbox.release(len(self.outbox.kept))
        self.outbox.say(("end", *Confession(self.lines.has_stamps, self.clock_stepped, self.lag_ns_max, cpu_ns)))
        self.outbox.drain()


def packed_up(turn: Turn, error: str, clock_offset: int) -> Message:
    """The reply of a turn. It lets go of its bytes, since `deadlines` may hold it for as long as a request may take."""
    message = ("reply", *reply_of(turn, error, clock_offset))
    turn.reads.clear()  # the line has the same list
    turn.request = b""
    return message


def reason(error: Exception) -> str:
    """Why a turn failed, in a few words."""
    if isinstance(error, OSError):
        return error.strerror.lower() if error.strerror else str(error)
    return f"the answer is not HTTP: {error}"


def main(fd: int) -> None:
    """Serve the worker at the other end of `fd`."""
    pipe = socket.socket(fileno=fd)
    unpacker = Unpacker()
    messages: list[Message] = []
    while not messages:
        data = pipe.recv(1 << 16)
        if not data:
            return
        messages += unpacker.feed(data)
    _, *fields = messages[0]
    plan = Plan(*fields)
    be_punctual(plan.cpus)
    pipe.setblocking(False)
    client = Client(pipe, plan, unpacker)
    for message in messages[1:]:
        client.obey(message)
    client.run()
    client.confess()


if __name__ == "__main__":
    main(int(sys.argv[1]))
