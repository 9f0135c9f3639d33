"""Owns the driving of one cell: requests out, rows back, limits kept. Does not own the loop that is timed, or engines.

The timed loop is a process of its own (`jobs.load.client`). Here requests are serialised before the clock starts, later
turns are made from the answers that they need, and what the client kept is parsed when the cell is over.
"""

from __future__ import annotations

import math
import selectors
import time
from contextlib import ExitStack, suppress

from jobs.engines.base import Ask
from jobs.errors import CellFailed, CellTimedOut
from jobs.load.agenda import ANY
from jobs.load.arrivals import send_offsets_ns
from jobs.load.base import Measured, Progress, Traffic
from jobs.load.lateness import LateSends
from jobs.load.process import ClientProcess, cpus_of_clients
from jobs.load.turns import Answered, Asked, answered, hash_of
from jobs.load.wire import TIMED_OUT, Confession, Message, Plan, Reply
from jobs.workloads.schema import schema_text
from storage.rows import RequestRow

STREAMS_A_CLIENT = 2_048
"""More streams at once get another client process. One core carries them with room to spare (docs/measuring.md)."""
NUMBERS_A_BATCH = 500_000
"""A batch of rows is full before its number of rows when their lists hold so many numbers, of at most 36 bytes each."""
WAIT_S = 0.5
STOP_S = 10.0  # for the clients to tell what they have when the cell's time is up
TELL_S = 0.9  # ticks come once a second, from each client
SEEDS_A_REPEAT = 1_000_003  # so that no two conversations of any repeats share a seed


def drive(traffic: Traffic) -> Measured:
    """Drive one cell to its end: every conversation has ended, failed, or run into a limit.

    The failure of a request is a row, and what a cell has when its time is up is kept (`Measured.timed_out`). Raises
    `CellFailed` when the load client itself broke, and when the cell was abandoned.
    """
    plans = plans_of(traffic)
    with ExitStack() as stack:
        clients = [ClientProcess(plan) for plan in plans]
        for client in clients:
            stack.callback(client.close)
        return CellDrive(traffic, clients).run()


def plans_of(traffic: Traffic) -> list[Plan]:
    """One plan a client: a closed loop's slots are dealt out evenly."""
    load = traffic.cell.load
    is_closed = load.kind == "closed"
    streams = min(load.concurrency, len(traffic.conversations)) if is_closed else 0
    count = max(1, -(-(streams or min(len(traffic.conversations), STREAMS_A_CLIENT)) // STREAMS_A_CLIENT))
    cpus = [traffic.client_cpus] * count if traffic.client_cpus else cpus_of_clients(count)
    shares = [streams // count + (i < streams % count) for i in range(count)]
    timeout_ns = round(load.request_timeout_s * 1e9)
    to = traffic.endpoint
    return [Plan(to.host, to.port, shares[i], timeout_ns, cpus[i], to.tls, to.proxy, to.ca_file) for i in range(count)]


class CellDrive:
    """One cell under way: what its clients have told so far. Conversation `i` belongs to client `i` modulo their number."""

    def __init__(self, traffic: Traffic, clients: list[ClientProcess]) -> None:
        self.traffic, self.clients = traffic, clients
        self.cell_id = traffic.cell.id
        self.json_schema = schema_text(traffic.cell.workload)
        self.answers: dict[int, list[list[int]]] = {}  # of conversations under way
        self.asked: dict[tuple[int, int], Asked] = {}  # by conversation and turn
        self.rows: list[RequestRow] = []
        self.n_numbers = 0  # in the lists of those rows
        self.late_sends = LateSends()
        self.first_sent_ns: int | None = None
        self.last_ended_ns = self.merged_reads = self.lag_ns_max = self.n_reads = self.n_tokens = 0
        self.ticks: dict[ClientProcess, tuple[int, int]] = {}
        self.told = (time.monotonic(), 0)  # when the live view was last told, and the reads until then
        self.ready = 0
        self.t_zero = 0
        self.confessions: list[Confession] = []
        self.timed_out = ""  # the reason, once the cell is given up
        self.unanswered = (
            0  # requests in a row that timed out without a token: of one that brings tokens, the engine is at work
        )
        load = traffic.cell.load  # an open loop sends whatever comes back: its end is near anyway
        self.patience = max(2, min(load.concurrency, len(traffic.conversations))) if load.kind == "closed" else math.inf

    def run(self) -> Measured:
        """Send, wait, and gather."""
        deadline = time.monotonic() + self.traffic.cell.load.cell_timeout_s
        self.hand_out_first_turns()
        with selectors.DefaultSelector() as selector:
            for client in self.clients:
                selector.register(client, selectors.EVENT_READ, client)
            while len(self.confessions) < len(self.clients):
                for key, _ in selector.select(min(WAIT_S, max(0.0, deadline - time.monotonic()))):
                    self.listen_to(key.data, selector)
                if self.traffic.is_abandoned():
                    raise CellFailed("the cell was abandoned before its end")
                if time.monotonic() > deadline:
                    deadline = self.give_up(self.why_out_of_time())
                elif self.unanswered >= self.patience and self.asked and not self.timed_out:
                    deadline = self.give_up(self.why_unanswered())
        return self.measured()

    def give_up(self, why: str) -> float:
        """Have the clients tell what they have; until when to wait for that."""
        if self.timed_out:
            raise CellTimedOut(f"{self.timed_out} The load client did not tell what it had.")
        self.timed_out = why
        for client in self.clients:
            with suppress(CellFailed):  # it may have ended by itself; of one that died, the next hearing tells
                client.say(("stop",))
        return time.monotonic() + STOP_S

    def hand_out_first_turns(self) -> None:
        """Serialise the first turn of every conversation, and let the clients open their connections."""
        cell, count = self.traffic.cell, len(self.traffic.conversations)
        recorded_s = [conversation.prompt.arrival_s for conversation in self.traffic.conversations]
        offsets = send_offsets_ns(cell.load, count, cell.load.seed + cell.repeat, recorded_s)
        for index in range(count):
            self.answers[index] = []
            self.client_of(index).say(self.turn_message(index, offsets[index] if offsets else ANY))
        for client in self.clients:
            client.say(("open",))

    def client_of(self, index: int) -> ClientProcess:
        """The client that has this conversation."""
        return self.clients[index % len(self.clients)]

    def turn_message(self, index: int, t_due: int) -> Message:
        """The next turn of a conversation, ready for the socket."""
        cell, conversation, so_far = self.traffic.cell, self.traffic.conversations[index], self.answers[index]
        turn = len(so_far)
        ids = conversation.ids(so_far)
        self.asked[index, turn] = Asked(self.cell_id, len(ids), hash_of(ids))
        ask = Ask(
            prompt_ids=ids,
            output_limit=conversation.prompt.limit(cell.workload.output_limit),
            sampling=cell.sampling,
            ignore_eos=cell.workload.ignore_eos,
            seed=cell.sampling.seed + SEEDS_A_REPEAT * cell.repeat + index,
            category=conversation.prompt.category,
            json_schema=self.json_schema,
            wants_logprobs=self.traffic.on_logprobs is not None,
        )
        request = self.traffic.dialect.request(ask, self.traffic.endpoint)
        return ("send", index, turn, turn + 1 < conversation.n_turns, t_due, request)

    def listen_to(self, client: ClientProcess, selector: selectors.BaseSelector) -> None:
        """Take what a client says."""
        for name, *fields in client.hear():
            if name == "reply":
                self.take_reply(Reply(*fields))
            elif name == "tick":
                self.take_tick(client, *fields)
            elif name == "ready":
                self.take_ready()
            elif name == "end":
                self.confessions.append(Confession(*fields))
                selector.unregister(client)

    def take_ready(self) -> None:
        """Start the clock when every client has its connections."""
        self.ready += 1
        if self.ready == len(self.clients):
            self.t_zero = time.monotonic_ns()
            self.traffic.on_start(self.t_zero)
            for client in self.clients:
                client.say(("start", self.t_zero))

    def take_reply(self, reply: Reply) -> None:
        """A turn ended: its row, and what its conversation does next."""
        turn = answered(self.traffic, reply, self.asked.pop((reply.conversation, reply.turn)), self.t_zero)
        is_silent = reply.error.startswith(TIMED_OUT) and not turn.row.chunk_tokens
        self.unanswered = self.unanswered + 1 if is_silent else 0
        if reply.error:
            self.answers.pop(reply.conversation)  # the client has closed this conversation by itself
        elif self.timed_out or reply.turn + 1 == self.traffic.conversations[reply.conversation].n_turns:
            self.answers.pop(reply.conversation)
        elif turn.row.error:
            self.answers.pop(reply.conversation)
            self.client_of(reply.conversation).say(("release", reply.conversation))
        else:
            self.answers[reply.conversation].append(list(turn.row.output_ids))
            self.client_of(reply.conversation).say(self.turn_message(reply.conversation, ANY))
        self.add_up(turn, reply)  # last: it may wait for whoever takes the rows

    def add_up(self, turn: Answered, reply: Reply) -> None:
        """Keep the row, and what the whole cell wants to know."""
        if reply.t_sent:
            self.late_sends.add(reply.t_sent - reply.t_due)
            sent = turn.row.t_sent_ns
            self.first_sent_ns = sent if self.first_sent_ns is None else min(sent, self.first_sent_ns)
        self.last_ended_ns = max(self.last_ended_ns, turn.ended_ns)
        self.merged_reads += turn.merged_reads
        self.lag_ns_max = max(self.lag_ns_max, turn.lag_ns)
        self.n_reads += len(reply.sizes) // 8
        self.n_tokens += sum(turn.row.chunk_tokens)
        if self.traffic.on_logprobs:
            self.traffic.on_logprobs(turn.row, turn.logprobs)
        self.rows.append(turn.row)
        self.n_numbers += numbers_in(turn.row)
        if self.traffic.on_requests and self.is_batch_full:
            self.traffic.on_requests(self.take_rows())

    @property
    def is_batch_full(self) -> bool:
        return len(self.rows) >= self.traffic.rows_a_batch or self.n_numbers >= NUMBERS_A_BATCH

    def take_rows(self) -> list[RequestRow]:
        """The rows that nobody has yet, in order."""
        rows, self.rows, self.n_numbers = self.rows, [], 0
        return sorted(rows, key=lambda row: (row.index, row.turn))

    def take_tick(self, client: ClientProcess, done: int, reads: int) -> None:
        """Tell the live view, about once a second."""
        self.ticks[client] = (done, reads)
        now, (before, reads_before) = time.monotonic(), self.told
        if now - before < TELL_S:
            return
        total = sum(reads for _, reads in self.ticks.values())
        tokens_a_read = self.n_tokens / self.n_reads if self.n_reads else 1.0
        rate = (total - reads_before) / (now - before) * tokens_a_read
        self.told = (now, total)
        done = sum(done for done, _ in self.ticks.values())
        self.traffic.on_progress(Progress(done, len(self.traffic.conversations), rate))

    def why_unanswered(self) -> str:
        load = self.traffic.cell.load
        return (
            f"a request must be answered within `load.request_timeout_s`: got {self.unanswered} in a row that had "
            f"no token after {load.request_timeout_s:g} s. Raise it, or lower `workload.output_limit` or `load.concurrency`."
        )

    def why_out_of_time(self) -> str:
        done, total = sum(done for done, _ in self.ticks.values()), len(self.traffic.conversations)
        return (
            f"a cell must end within `load.cell_timeout_s`: got {done} of {total} conversations after "
            f"{self.traffic.cell.load.cell_timeout_s:g} s. Raise it, or lower `workload.limit` or `workload.output_limit`."
        )

    def measured(self) -> Measured:
        """The cell as a whole."""
        duration_ns = max(0, self.last_ended_ns - (self.first_sent_ns or 0))
        has_stamps = all(confession.has_kernel_stamps for confession in self.confessions)
        busiest_ns = max(confession.cpu_ns for confession in self.confessions)
        batch_ns = max(confession.loop_lag_ns_max for confession in self.confessions)
        return Measured(
            requests=self.take_rows(),
            duration_ns=duration_ns,
            clock="kernel" if has_stamps else "monotonic",
            clock_stepped=any(confession.clock_stepped for confession in self.confessions),
            late_send_ns=self.late_sends.sampled(),
            merged_reads=self.merged_reads,
            loop_lag_ns_max=max(self.lag_ns_max, batch_ns),
            client_cpu_share=busiest_ns / duration_ns if duration_ns else 0.0,
            t_zero_ns=self.t_zero,
            timed_out=self.timed_out,
        )


def numbers_in(row: RequestRow) -> int:
    """How many numbers the lists of a row hold: what it takes of memory."""
    return len(row.chunk_gap_ns) + len(row.chunk_tokens) + 2 * len(row.step_drafted) + len(row.output_ids)
