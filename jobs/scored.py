"""Owns the pass after a sampled cell: some of its prompts once more, untimed, with the target's own log-probabilities.

Does not own judging them: `storage/views/` compares them with the baseline's. What fails in it never fails the cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from jobs.errors import SpecSweepError
from jobs.load.base import Traffic
from jobs.load.drive import drive
from jobs.spec import Cell, Load
from jobs.workloads.base import Conversation, Prompt
from storage.rows import RequestRow, ScoredRow

MOST_AT_ONCE = 8  # answers; more would only make it shorter


def is_scored(cell: Cell) -> bool:
    """Greedy outputs are compared token by token, and synthetic ones never."""
    return cell.sampling.temperature > 0 and cell.sampling.scored > 0 and cell.deployment.draft.method != "synthetic"


def ask_scored(traffic: Traffic) -> tuple[list[ScoredRow], str]:
    """The answers to the first turns of the first `sampling.scored` conversations of a cell's traffic, in order; and what
    was wrong with the pass, "" = nothing.
    """
    cell, rows = traffic.cell, list[ScoredRow]()

    def take(row: RequestRow, logprobs: Sequence[float]) -> None:
        told = list(logprobs) if len(logprobs) == len(row.output_ids) else []
        row_id = (cell.id, traffic.attempt, row.index, row.question_id, row.category, row.prompt_hash)
        rows.append(ScoredRow(*row_id, output_ids=row.output_ids, logprobs=told, error=row.error))

    asked = [FirstTurn(conversation) for conversation in traffic.conversations[: cell.sampling.scored]]
    try:
        error = drive(replace(traffic, cell=untimed(cell), conversations=asked, on_logprobs=take)).timed_out
    except SpecSweepError as raised:
        error = str(raised)
    return sorted(rows, key=lambda row: row.index), error or what_lacks(rows)


@dataclass(frozen=True)
class FirstTurn:
    """A conversation that ends after its first answer: the prompts of later turns would hold other answers in each cell."""

    whole: Conversation

    @property
    def prompt(self) -> Prompt:
        return self.whole.prompt

    @property
    def n_turns(self) -> int:
        return 1

    def ids(self, answers: Sequence[Sequence[int]]) -> list[int]:
        return self.whole.ids(answers)


def untimed(cell: Cell) -> Cell:
    """The cell as a closed loop, with seeds that no other cell has: two cells must draw independently of each other."""
    load = cell.load
    at_once = load.concurrency if load.kind == "closed" else cell.deployment.engine.batch
    return replace(
        cell,
        sampling=replace(cell.sampling, seed=int(cell.id[:7], 16)),
        load=Load(
            concurrency=min(at_once, MOST_AT_ONCE),
            request_timeout_s=load.request_timeout_s,
            cell_timeout_s=load.cell_timeout_s,
        ),
        repeat=0,
    )


def what_lacks(rows: Sequence[ScoredRow]) -> str:
    """Why the answers say less than they should; "" when all is there."""
    failed = [row.error for row in rows if row.error]
    silent = [row for row in rows if row.output_ids and not row.logprobs and not row.error]
    if failed:
        return f"{len(failed)} of {len(rows)} answers failed: {failed[0]}"
    return f"the engine told no log-probabilities for {len(silent)} of {len(rows)} answers" if silent else ""
