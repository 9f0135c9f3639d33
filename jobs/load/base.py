"""Owns what the driver of a cell is given and what it gives back. Does not own sockets, prompts or rows of sessions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from jobs.engines.base import Dialect, Endpoint
from jobs.spec import Cell
from jobs.workloads.base import Conversation
from storage.rows import RequestRow

ROWS_A_BATCH = 1_000


@dataclass(frozen=True)
class Progress:
    """How far a cell is. `tokens_per_s` is an estimate over the last second or so, for the live view only."""

    done: int
    total: int
    tokens_per_s: float


@dataclass(frozen=True)
class Traffic:
    """What to send for one cell."""

    cell: Cell
    attempt: int
    conversations: Sequence[Conversation]
    endpoint: Endpoint
    dialect: Dialect
    on_progress: Callable[[Progress], None] = field(default=lambda progress: None)
    on_requests: Callable[[Sequence[RequestRow]], None] | None = None  # takes full batches while the cell runs
    rows_a_batch: int = ROWS_A_BATCH
    on_start: Callable[[int], None] = field(
        default=lambda t_zero_ns: None
    )  # told when the clock starts (`Measured.t_zero_ns`)
    on_logprobs: Callable[[RequestRow, Sequence[float]], None] | None = None  # asked for where somebody takes them
    is_abandoned: Callable[[], bool] = field(default=lambda: False)  # asked often; True = nobody wants the cell any more
    client_cpus: tuple[int, ...] = ()  # where the load client runs; () = `jobs.load.process` chooses


@dataclass(frozen=True)
class Measured:
    """What was seen: one row a turn that was due, and the client's confession (fields as in `CellRow`).

    `requests` are in the order of (index, turn), without those that `Traffic.on_requests` took.
    """

    requests: Sequence[RequestRow]
    duration_ns: int
    clock: str
    clock_stepped: bool
    late_send_ns: Sequence[int]  # of a sample when there are many (`jobs.load.lateness`)
    merged_reads: int
    loop_lag_ns_max: int
    client_cpu_share: float  # CPU seconds of the busiest client process / duration
    t_zero_ns: int = 0  # the cell's start on this machine's monotonic clock: all times of rows count from it
    timed_out: str = ""  # why the cell was ended before its conversations; "" = it was not


# `jobs/load/drive.py` has the one entry point:
#     def drive(traffic: Traffic) -> Measured
# It blocks until every conversation has ended, failed, or run into a limit. It raises `CellFailed` when the load client
# itself broke, and when the cell was abandoned. The failure of a request is a row, and so is what a cell had when its time
# was up.
