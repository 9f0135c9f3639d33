"""Owns how long something is expected to take: from what is recorded, else from a rule of thumb. Pure.

Does not own metrics: these are guesses for order and for the eye, never for an answer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from jobs.spec import Cell, Workload
from jobs.workloads.base import Prompt
from storage.rows import OK, Attempt, History

GUESSED_START_S = 20.0
WORKER_S = 4.0  # beside the engine's own start, which is recorded: Ray's worker, its imports, the tokenizer
GUESSED_TOKENS_PER_S = 50.0  # of one stream alone
GUESSED_PREFILL_TOKENS_PER_S = 5_000.0  # of all streams together
GUESSED_CPU_SPEED = 0.3  # of an engine on a CPU, as the embedded model is
GUESSED_CROWD = 64  # streams at which each is half as fast as alone
CHARACTERS_PER_TOKEN = 4.0


@dataclass(frozen=True)
class Size:
    """What a workload asks of an engine."""

    n_conversations: int
    n_turns: int
    prompt_tokens: float  # of all turns together

    @staticmethod
    def of(workload: Workload, prompts: Sequence[Prompt]) -> Size:
        """`workload.isl` where it is asked for, else characters over four."""
        turns = [turn for prompt in prompts for turn in prompt.turns]
        tokens = workload.isl * len(turns) if workload.isl else sum(map(len, turns)) / CHARACTERS_PER_TOKEN
        return Size(len(prompts), len(turns), tokens)


@dataclass(frozen=True)
class Expectation:
    """Durations of recorded kin, and how large a workload is."""

    size_of: Callable[[Workload], Size]
    of_cells: Mapping[str, float] = field(default_factory=dict)  # id → median duration of the cell's recorded repeats
    paces: Mapping[str, float] = field(default_factory=dict)  # deployment → median of recorded over guessed durations
    of_deployments: Mapping[str, float] = field(default_factory=dict)  # of cells that this sweep no longer has
    any_pace: float = 1.0
    starts: Mapping[str, float] = field(default_factory=dict)
    any_start_s: float = GUESSED_START_S
    n_recorded: int = 0

    def start_s(self, deployment_id: str) -> float:
        """From the start of a session to its first cell."""
        return self.starts.get(deployment_id, self.any_start_s)

    def cell_s(self, cell: Cell) -> float:
        """Of the same cell in other repeats; else guessed, at the pace of the deployment's recorded cells, or of all."""
        kin = self.of_cells.get(cell.id)
        if kin:
            return kin
        deployment = cell.deployment.id
        if deployment in self.paces or deployment not in self.of_deployments:
            return guess_s(cell, self.size_of(cell.workload)) * self.paces.get(deployment, self.any_pace)
        return self.of_deployments[deployment]

    @property
    def source(self) -> str:
        """Where the numbers come from, in words."""
        on_cpu = GUESSED_CPU_SPEED * GUESSED_TOKENS_PER_S
        guess = f"a guess of {GUESSED_TOKENS_PER_S:g} tokens/s a stream, {on_cpu:g} on a CPU"
        return f"{self.n_recorded} recorded cells, and {guess} where there is none" if self.n_recorded else guess


def guess_s(cell: Cell, size: Size) -> float:
    """A rule of thumb: prefill of all prompts, then rounds of decoding, in which a stream slows down as others join; sampled
    answers are asked for once more.

    Open loop: at least as long as the arrivals take.
    """
    load, engine = cell.load, cell.deployment.engine
    batch, speed = engine.batch, GUESSED_CPU_SPEED if engine.device == "cpu" and engine.name != "simulated" else 1.0
    asked = load.concurrency if load.kind == "closed" else batch
    streams = max(1, min(asked, batch, size.n_conversations))
    tokens_per_s = GUESSED_TOKENS_PER_S * streams / (1 + (streams - 1) / GUESSED_CROWD)
    warmup = max(load.warmup, load.concurrency) if load.warmup else 0
    scored = min(cell.sampling.scored, size.n_conversations) if cell.sampling.temperature else 0
    decoded = (size.n_turns + warmup + scored) * cell.workload.output_limit
    busy_s = (decoded / tokens_per_s + size.prompt_tokens / GUESSED_PREFILL_TOKENS_PER_S) / speed
    rate = load.rates[-1] if load.rates else load.rate
    return max(busy_s, size.n_conversations / rate) if rate else busy_s


def expect(cells: Sequence[Cell], history: History, size_of: Callable[[Workload], Size]) -> Expectation:
    """What the record says of these cells and their deployments."""
    done = [attempt for attempt in history.attempts if attempt.status == OK]
    starts = [(start.deployment_id, start.ready_s + WORKER_S) for start in history.starts if start.ready_s is not None]
    paces = _paces(cells, done, size_of) if done else []
    return Expectation(
        size_of=size_of,
        of_cells=_of_repeats(cells, done) if done else {},
        paces=_medians(paces),
        of_deployments=_medians([(a.deployment_id, a.duration_s) for a in done]),
        any_pace=median(pace for _, pace in paces) if paces else 1.0,
        starts=_medians(starts),
        any_start_s=median(seconds for _, seconds in starts) if starts else GUESSED_START_S,
        n_recorded=len(done),
    )


def _paces(cells: Sequence[Cell], done: Sequence[Attempt], size_of: Callable[[Workload], Size]) -> list[tuple[str, float]]:
    known = {cell.id: cell for cell in cells}
    guesses = [(a, guess_s(cell, size_of(cell.workload))) for a in done if (cell := known.get(a.cell_id))]
    return [(attempt.deployment_id, attempt.duration_s / guess) for attempt, guess in guesses if guess]


def _of_repeats(cells: Sequence[Cell], done: Sequence[Attempt]) -> dict[str, float]:
    first = {cell.id: replace(cell, repeat=0).id for cell in cells}
    known = _medians([(first[attempt.cell_id], attempt.duration_s) for attempt in done if attempt.cell_id in first])
    return {cell_id: known[kin] for cell_id, kin in first.items() if kin in known}


def _medians(pairs: Sequence[tuple[str, float]]) -> dict[str, float]:
    groups: dict[str, list[float]] = defaultdict(list)
    for key, value in pairs:
        groups[key].append(value)
    return {key: median(values) for key, values in groups.items()}
