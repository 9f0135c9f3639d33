"""Owns pretended machines and full grids recorded on them: the simulated engine's script, a roofline. Does not own judging.

Answers and acceptance are drawn by the simulated engine's own script (`jobs/engines/host/simulated.py`). A step takes as
long as the weights take to be read, or as its tokens take to be computed: so speculation stops to pay, later for shorter
drafts, as it does on GPUs.
"""

from __future__ import annotations

import heapq
import json
import math
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from jobs.engines.host.backend import Generate
from jobs.engines.host.simulated import make_answer, make_rounds
from jobs.engines.script import Script
from jobs.spec import Cell, Deployment, Draft, Engine, Load, Model, Sampling, Workload
from storage.rows import CellResult, CellRow, RequestRow
from storage.runs import RunStore

KS = (1, 2, 3, 4, 5, 6, 7, 8)
LOADS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
PROMPTS, OUTPUT_LIMIT = 24, 64
CATEGORIES = ("coding", "math", "writing")
MS = 1e6


@dataclass(frozen=True)
class Machine:
    """Times in ms. `knee`: tokens of one step from which on computing takes longer than reading the weights."""

    seed: int
    step_ms: float
    overhead_ms: float  # of drafting at all
    draft_ms: float  # of each drafted token
    knee: float
    acceptance: tuple[float, ...]
    noise: float = 0.05  # sigma of the lognormal factor of each step
    drift: float = 0.01  # ... of each cell as a whole: another day, another session

    @staticmethod
    def of(seed: int) -> Machine:
        draws = random.Random(f"machine {seed}")
        first = draws.uniform(0.55, 0.92)
        rates = tuple(first * draws.uniform(0.93, 1.0) ** at for at in range(max(KS)))
        return Machine(seed, 20.0, draws.uniform(0, 2), draws.uniform(0.2, 2.0), draws.uniform(24, 160), rates)

    def step(self, k: int, load: int) -> float:
        """Smoothly the larger of reading and computing."""
        computing = self.step_ms * load * (k + 1) / self.knee
        drafting = (self.overhead_ms + self.draft_ms * k) if k else 0.0
        return math.sqrt(math.hypot(self.step_ms**2, computing**2)) + drafting

    def length(self, k: int) -> float:
        """AL with k drafted tokens."""
        joint, total = 1.0, 1.0
        for rate in self.acceptance[:k]:
            joint *= rate
            total += joint
        return total

    def speedup(self, k: int, load: int) -> float:
        """Without noise: t_ar * AL / t_sd."""
        return self.length(k) * self.step(0, load) / self.step(k, load)

    def script(self) -> Script:
        return Script(acceptance=list(self.acceptance), answer_tokens=400)

    @property
    def slo_tpot_s(self) -> float:
        """One that the baseline keeps at about half of the loads."""
        return self.step(0, 16) * 1.1 / 1e3


def cells_of(machine: Machine) -> list[Cell]:
    """The baseline, and prompt lookup with each length; at each load."""
    drafts = [Draft(name="none"), *(Draft(name="ngram", method="ngram", k=k) for k in KS)]
    engine = Engine(name="simulated", device="cpu", batch=max(LOADS), seed=machine.seed)
    return [
        Cell(
            Deployment(Model("pretended", "pretended"), engine, draft),
            Workload(limit=PROMPTS, output_limit=OUTPUT_LIMIT),
            Sampling(),
            Load(concurrency=load, slo_tpot_s=machine.slo_tpot_s),
        )
        for draft in drafts
        for load in LOADS
    ]


def record(machine: Machine, folder: Path) -> list[Cell]:
    """Measure every cell of the grid, and write it as a run."""
    cells = cells_of(machine)
    with RunStore.create(folder, "grid: pretended\n") as store:
        for cell in cells:
            store.write(play(machine, cell, salt=""))
    return cells


def play(machine: Machine, cell: Cell, salt: str) -> CellResult:
    """One measurement of a cell; another `salt` is another day."""
    load = cell.load.concurrency
    noise = random.Random(f"{machine.seed}/{cell.id}/{salt}")
    day = noise.lognormvariate(0, machine.drift)
    slots = [0.0] * load
    requests = []
    for index in range(max(PROMPTS, 2 * load)):
        begin = heapq.heappop(slots)
        requests.append(_request(machine, cell, index, begin, day, noise))
        heapq.heappush(slots, begin + sum(requests[-1].chunk_gap_ns))
    deployment, told, at = cell.deployment.id, json.dumps(asdict(cell)), "2026-01-01T00:00:00+00:00"
    row = CellRow(
        cell.id, 1, f"s-{deployment}", "recorded", deployment, cell.pair_id, 0, "ok", told, at, round(max(slots))
    )  # fmt: skip
    return CellResult(row, requests)


def _request(machine: Machine, cell: Cell, index: int, begin: float, day: float, noise: random.Random) -> RequestRow:
    k, load = cell.deployment.draft.k, cell.load.concurrency
    asked = Generate([machine.seed, index], OUTPUT_LIMIT, category=CATEGORIES[index % len(CATEGORIES)])
    answer, _ = make_answer(machine.script(), asked, OUTPUT_LIMIT)
    rounds = list(make_rounds(machine.script(), asked, answer, k))
    gaps = [
        round(machine.step(k if at else 0, load) * MS * day * noise.lognormvariate(0, machine.noise))
        for at in range(len(rounds))
    ]
    return RequestRow(
        cell.id, 1, index, 0, f"q{index}", asked.category, "", 50, f"p{index}", round(begin), round(begin), gaps,
        [len(one.token_ids) for one in rounds], [one.drafted for one in rounds], [one.accepted for one in rounds],
        True, rounds[-1].is_cut, answer, "same", finish_reason="length",
    )  # fmt: skip


def goodput(machine: Machine, cell: Cell, days: int = 4) -> float:
    """Requests a second within the limit, mean over days of their own."""
    return fmean(_goodput(machine, play(machine, cell, f"day {day}")) for day in range(days))


def _goodput(machine: Machine, result: CellResult) -> float:
    good = sum(tpot <= machine.slo_tpot_s for tpot in _tpots_s(result.requests))
    return good / (result.cell.duration_ns / 1e9)


def _tpots_s(requests: Sequence[RequestRow]) -> Iterator[float]:
    for request in requests:
        later = sum(request.chunk_tokens) - request.chunk_tokens[0]
        yield sum(request.chunk_gap_ns[1:]) / 1e9 / later if later else 0.0
