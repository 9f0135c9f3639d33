"""A cell that is driven in a thread: its rows come in batches, and what nobody has taken yet is bounded."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from dataclasses import replace
from typing import Any

import pytest

from jobs.errors import CellFailed
from jobs.load import driving, lateness
from jobs.load.base import Traffic
from jobs.load.driving import Driving
from jobs.load.lateness import LateSends
from jobs.load.turns import Answered, answered
from storage.rows import RequestRow
from tests.jobs.scripted_server import END, HEAD, Request, event, serving
from tests.jobs.test_drive import step, talks, traffic_to


async def answer_at_once(request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + event(step([1, 2, 3], finish="stop")) + event(b"[DONE]") + END)


async def keep_silent(request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


class Alive:
    """Counts rows that somebody still holds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refs: dict[int, weakref.ref[RequestRow]] = {}
        self.most = 0
        monkeypatch.setattr("jobs.load.drive.answered", self.answered)

    def answered(self, *of: Any) -> Answered:
        turn = answered(*of)
        ref = weakref.ref(turn.row, lambda gone: self.refs.pop(id(gone)))
        self.refs[id(ref)] = ref
        self.most = max(self.most, len(self.refs))
        return turn


def test_every_row_comes_once_in_batches_and_the_last_ones_with_the_whole() -> None:
    with serving(answer_at_once) as server:
        traffic = replace(traffic_to(server.port, talks(23, turns=2), concurrency=3), rows_a_batch=10)
        with Driving(traffic) as cell:
            batches = [list(batch) for batch in cell if batch]
        measured = cell.measured()
    assert [len(batch) for batch in batches] == [10] * 4
    assert len(measured.requests) == 6
    rows = [row for batch in [*batches, measured.requests] for row in batch]
    assert sorted((row.index, row.turn) for row in rows) == [(i, turn) for i in range(23) for turn in (0, 1)]
    assert cell.t_zero_ns == measured.t_zero_ns > 0


def test_a_cell_of_less_than_a_batch_has_none() -> None:
    with serving(answer_at_once) as server, Driving(traffic_to(server.port, talks(5))) as cell:
        assert [batch for batch in cell if batch] == []
        assert len(cell.measured().requests) == 5


def test_a_batch_is_full_too_when_its_rows_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.load.drive.NUMBERS_A_BATCH", 14)  # of 7 a row: a gap, a chunk, a step of two, three ids
    with serving(answer_at_once) as server, Driving(traffic_to(server.port, talks(5))) as cell:
        assert [len(batch) for batch in cell if batch] == [2, 2]
        assert len(cell.measured().requests) == 1


def test_rows_in_memory_are_bounded_however_slowly_they_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    alive = Alive(monkeypatch)
    n_taken = 0
    with serving(answer_at_once) as server:
        traffic = replace(traffic_to(server.port, talks(600), concurrency=8), rows_a_batch=10)
        with Driving(traffic) as cell:
            for batch in cell:
                n_taken += len(batch)
                time.sleep(0.01)
        measured = cell.measured()
    assert n_taken + len(measured.requests) == 600
    # full batches in the queue, the one that waits for a place, the one that is being filled, the one that was taken
    assert alive.most <= 10 * (driving.MOST_WAITING + 3)


def test_leaving_ends_the_cell_wherever_it_is() -> None:
    began = time.monotonic()
    with serving(keep_silent) as server, Driving(traffic_to(server.port, talks(5), request_timeout_s=60)) as cell:
        assert next(iter(cell)) == ()
    with pytest.raises(CellFailed, match="the cell was abandoned before its end"):
        cell.measured()
    assert time.monotonic() - began < 30
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("driving")]


def test_leaving_while_it_waits_for_a_taker_ends_it_too() -> None:
    with serving(answer_at_once) as server:
        with Driving(replace(traffic_to(server.port, talks(40)), rows_a_batch=1)) as cell:
            assert len(next(batch for batch in cell if batch)) == 1
            time.sleep(0.2)
        with pytest.raises(CellFailed, match="abandoned"):
            cell.measured()


def test_what_fails_in_the_thread_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(traffic: Traffic) -> None:
        raise CellFailed("the load client must live as long as its cell")

    monkeypatch.setattr(driving, "drive", refuse)
    with Driving(traffic_to(1, talks(1))) as cell:
        assert list(cell) == []
    with pytest.raises(CellFailed, match="must live as long as its cell"):
        cell.measured()


def test_late_sends_are_exact_until_they_are_many_and_then_a_sample_with_the_latest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lateness, "MOST_KEPT", 1_000)
    late = LateSends()
    for value in range(1_000):
        late.add(value)
    assert late.sampled() == list(range(1_000))
    late.add(10**9)
    for value in range(1_000, 50_000):
        late.add(value)
    kept = late.sampled()
    assert (len(kept), max(kept)) == (1_000, 10**9)
    assert 23_000 < sorted(kept)[500] < 27_000, "the median of all is 25,000"
