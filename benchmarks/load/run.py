"""Owns the benchmark of the load client: scenarios, and what is said of them. Does not own the server or the rivals.

    python benchmarks/load/run.py --scenario paced512 [--hog] [--rivals aiohttp,httpx] [--floor] [--json]

Runs a server that records when it sent every chunk (`server.py`) on one core and the client of `jobs.load` on another, and
compares every stamp with the server's record. Both read the same monotonic clock.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

from benchmarks.load.floor import floor  # noqa: E402
from jobs.engines.base import Endpoint  # noqa: E402
from jobs.engines.dialect_openai import OpenAIDialect  # noqa: E402
from jobs.load.base import Measured, Traffic  # noqa: E402
from jobs.load.drive import drive  # noqa: E402
from jobs.measure import new_row, with_measured  # noqa: E402
from jobs.spec import Cell, CellOrder, Deployment, Draft, Engine, Load, Model, Sampling, SessionSpec, Workload  # noqa: E402
from jobs.workloads.base import Prompt  # noqa: E402
from storage.rows import CellResult  # noqa: E402
from storage.runs import RunStore  # noqa: E402
from storage.views import open_runs  # noqa: E402

Facts = dict[str, Any]


@dataclass(frozen=True)
class Scenario:
    streams: int
    requests: int
    tokens: int = 200
    first_ms: float = 50
    step_ms: float = 40
    is_varied: bool = False


SCENARIOS = {
    "paced512": Scenario(512, 2048),
    "paced512_varied": Scenario(512, 2048, is_varied=True),
    "blast512": Scenario(512, 6144, first_ms=0, step_ms=0),
    "paced2048": Scenario(2048, 6144),
    "tiny512": Scenario(512, 60_000, tokens=1, first_ms=0, step_ms=0),
    "light32": Scenario(32, 128),
}
RIVAL_SHARE = 4  # rivals get so many times fewer requests: they need that much longer
CLIENT_REASONS = ("client_saturated", "chunks_merged", "late_sends")  # those of `views.sql` that doubt the client


@dataclass
class Talk:
    """A prompt of 33 token ids, the first of which is its number."""

    number: int
    prompt: Prompt
    n_turns: int = 1

    def ids(self, answers: object) -> list[int]:
        return [self.number, *range(32)]


@contextmanager
def server_for(scenario: Scenario, cpu: int | None) -> Iterator[int]:
    """Start the server on its core; yields the port."""
    argv = [sys.executable, str(Path(__file__).with_name("server.py"))]
    argv += ["--first-ms", str(scenario.first_ms), "--step-ms", str(scenario.step_ms)]
    argv += ["--varied"] if scenario.is_varied else []
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        pin(process.pid, cpu)
        yield int(process.stdout.readline())
        process.stdin.close()


@contextmanager
def hog_on(cpu: int | None, *, wanted: bool) -> Iterator[None]:
    """Keep the client's core busy."""
    if not wanted:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    pin(process.pid, cpu)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def pin(pid: int, cpu: int | None) -> None:
    if cpu is not None:
        os.sched_setaffinity(pid, {cpu})


def cores() -> tuple[int | None, int | None]:
    """The server's core and the client's."""
    if not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2:
        return None, None
    mine = sorted(os.sched_getaffinity(0))
    return mine[0], mine[-1]


def records_of(port: int) -> dict[int, Facts]:
    """The server's record of every request since it was last asked."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/records") as answer:
        return {record["number"]: record for record in json.load(answer)}


def spread(values_ns: Any, unit_ns: float = 1e6) -> Facts:
    """Mean and percentiles, in milliseconds by default."""
    if not len(values_ns):
        return {}
    values = np.asarray(values_ns, float) / unit_ns
    told = {"mean": values.mean(), "p1": np.percentile(values, 1), "p50": np.percentile(values, 50)}
    told |= {"p99": np.percentile(values, 99), "max": values.max()}
    return {name: round(float(value), 4) for name, value in told.items()}


def compared(answers: list[Facts], records: dict[int, Facts]) -> Facts:
    """Stamps against the server's record. An answer: number, sent_at, came_at (one a chunk)."""
    arrival, alone, first, gaps, told_ttft, true_ttft, tpot_pct = [], [], [], [], [], [], []
    for answer in answers:
        record = records[answer["number"]]
        came, sent = np.array(answer["came_at"]), np.array(record["sent_at"])
        assert len(came) == len(sent), f"request {answer['number']}: {len(came)} chunks came of {len(sent)}"
        arrival.append(came - sent)
        alone.append(
            (came - sent)[np.diff(came, append=came[-1] + 1) != 0]
        )  # the others say of themselves that they are late
        first.append(came[0] - sent[0])
        told_ttft.append(came[0] - answer["sent_at"])
        true_ttft.append(sent[0] - answer["sent_at"])
        gaps.append(np.diff(came) - np.diff(sent))
        if len(sent) > 1:
            tpot_pct.append(100 * abs((came[-1] - came[0]) / (sent[-1] - sent[0]) - 1))
    return {
        "arrival_error_ms": spread(np.concatenate(arrival)),
        "arrival_error_unmerged_ms": spread(np.concatenate(alone)),
        "merged_share": round(1 - sum(map(len, alone)) / sum(map(len, arrival)), 5),
        "first_arrival_error_ms": spread(first),
        "ttft_ms": {"reported": spread(told_ttft), "true": spread(true_ttft)},
        "gap_error_ms": spread(np.concatenate(gaps)),
        "tpot_error_pct": spread(tpot_pct, 1.0),
    }


def ours(scenario: Scenario, port: int) -> Facts:
    """A cell of this scenario, driven by `jobs.load`."""
    load = Load(concurrency=scenario.streams, request_timeout_s=120, cell_timeout_s=600)
    deployment = Deployment(Model(path="bench"), Engine(device="cpu"), Draft())
    cell = Cell(deployment, Workload(output_limit=scenario.tokens), Sampling(), load)
    talks = [Talk(number, Prompt(str(number), "bench", ("",))) for number in range(scenario.requests)]
    cpu = time.process_time()
    measured = drive(Traffic(cell, 1, talks, Endpoint("127.0.0.1", port, "bench"), OpenAIDialect()))
    worker_cpu_s = time.process_time() - cpu
    doubts = doubts_of(measured, cell)
    told = {**compared(answers_of(measured), records_of(port)), **costs_of(measured, worker_cpu_s)}
    return {**told, "saturated": bool(doubts), "doubts": doubts}


def answers_of(measured: Measured) -> list[Facts]:
    failed = [row.error for row in measured.requests if row.error]
    assert not failed, f"{len(failed)} requests failed: {failed[0]}"
    answers = []
    for row in measured.requests:
        sent_at = measured.t_zero_ns + row.t_sent_ns
        came_at = list(accumulate(row.chunk_gap_ns, initial=sent_at))[1:]
        answers.append({"number": row.index, "sent_at": sent_at, "came_at": came_at})
    return answers


def costs_of(measured: Measured, worker_cpu_s: float) -> Facts:
    """What the client cost, and what it says of itself."""
    chunks = sum(len(row.chunk_gap_ns) for row in measured.requests)
    duration_s = measured.duration_ns / 1e9
    cpu_s = measured.client_cpu_share * duration_s
    return {
        "cpu_us_per_chunk": round(cpu_s / chunks * 1e6, 2),
        "cpu_us_per_chunk_with_worker": round((cpu_s + worker_cpu_s) / chunks * 1e6, 2),
        "cpu_us_per_request": round(cpu_s / len(measured.requests) * 1e6, 1),
        "chunks_per_s": round(chunks / duration_s),
        "requests_per_s": round(len(measured.requests) / duration_s, 1),
        "chunks": chunks,
        "clock": measured.clock,
        "clock_stepped": measured.clock_stepped,
        "late_sends_ms": spread(measured.late_send_ns),
        "merged_reads": measured.merged_reads,
        "loop_lag_ms_max": round(measured.loop_lag_ns_max / 1e6, 3),
        "client_cpu_share": round(measured.client_cpu_share, 3),
    }


def doubts_of(measured: Measured, cell: Cell) -> list[str]:
    """The reasons for which `views.sql` would not believe the client: it is asked, so that the two cannot differ."""
    order = CellOrder(cell, 1)
    row = with_measured(new_row(SessionSpec("bench", "bench", cell.deployment, (order,), 0.0), order, 0), measured)
    with tempfile.TemporaryDirectory() as folder:
        with RunStore.create(folder, "") as store:
            store.write(CellResult(row, measured.requests))
        with open_runs([folder]) as runs:
            ((reasons,),) = runs.execute("SELECT reasons FROM cells").fetchall()
    return [reason for reason in reasons if reason in CLIENT_REASONS]


def rival(name: str, scenario: Scenario, port: int) -> Facts:
    """The same of a rival, with fewer requests."""
    count = max(scenario.streams, scenario.requests // RIVAL_SHARE)
    argv = [
        sys.executable,
        "-m",
        "benchmarks.load.rivals",
        name,
        *map(str, (port, count, scenario.streams, scenario.tokens)),
    ]
    told = json.loads(subprocess.run(argv, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout)
    chunks = sum(len(answer["came_at"]) for answer in told["answers"])
    return {
        **compared(told["answers"], records_of(port)),
        "cpu_us_per_chunk": round(told["cpu_s"] / chunks * 1e6, 2),
        "chunks_per_s": round(chunks / told["wall_s"]),
        "client_cpu_share": round(told["cpu_s"] / told["wall_s"], 3),
    }


def discarded(scenario: Scenario, port: int) -> Facts:
    """What it costs to read the same and to throw it away; empty where that cannot be built."""
    spent = floor(port, scenario.streams, scenario.requests, scenario.tokens)
    if spent is None:
        return {}
    cpu_s, wall_s = spent
    chunks = sum(len(record["sent_at"]) for record in records_of(port).values())
    return {"cpu_us_per_chunk": round(cpu_s / chunks * 1e6, 2), "chunks_per_s": round(chunks / wall_s), "chunks": chunks}


def measure(name: str, rivals: list[str], *, hog: bool, with_floor: bool) -> Facts:
    """One scenario: ours, then the floor and the rivals, against one server."""
    scenario = SCENARIOS[name]
    server_cpu, client_cpu = cores()
    with server_for(scenario, server_cpu) as port:
        pin(0, client_cpu)
        with hog_on(client_cpu, wanted=hog):
            told = {"scenario": name, "hog": hog, **ours(scenario, port)}
            told |= {"floor": discarded(scenario, port)} if with_floor else {}
            told["rivals"] = {rival_name: rival(rival_name, scenario, port) for rival_name in rivals}
    told["load_average"] = os.getloadavg()[0]
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description="How true the load client's numbers are, and what they cost")
    parser.add_argument("--scenario", choices=SCENARIOS, default="paced512")
    parser.add_argument("--hog", action="store_true", help="keep the client's core busy at the same time")
    parser.add_argument("--rivals", default="aiohttp,httpx", help="plain clients to run in the same run; empty = none")
    parser.add_argument(
        "--floor", action="store_true", help="also a C program that reads and discards (Linux, a C compiler)"
    )
    parser.add_argument("--repeats", type=int, default=1, help="print the run with the median arrival error")
    parser.add_argument("--json", action="store_true", help="one line")
    asked = parser.parse_args()
    rivals = [name for name in asked.rivals.split(",") if name]
    runs = [measure(asked.scenario, rivals, hog=asked.hog, with_floor=asked.floor) for _ in range(asked.repeats)]
    middle = statistics.median_low([run["arrival_error_ms"]["p99"] for run in runs])
    told = next(run for run in runs if run["arrival_error_ms"]["p99"] == middle)
    print(json.dumps(told, indent=None if asked.json else 2))


if __name__ == "__main__":
    main()
