"""Owns what is known of a session that has a worker. Does not own what becomes of it (`sessions`)."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from jobs.spec import SessionSpec
from orchestrator.ledger import Node, Seats
from orchestrator.schedule.workers import Worker
from storage.rows import SessionRow


@dataclass
class Running:
    """A session on a worker, and what it has told so far."""

    spec: SessionSpec
    seats: Seats
    worker: Worker
    row: SessionRow | None = None
    n_results: int = 0
    n_batches: int = 0  # of the cell that is running
    asked: Any = None  # the progress that is on its way
    placed_s: float = field(default_factory=time.monotonic)
    is_up: bool = False  # its worker has answered
    was_told: bool = False  # that this takes long
    stopping: int = 0  # what it was told: 1 = after this cell, 2 = at once

    @property
    def is_new(self) -> bool:
        """Nothing was heard of it yet."""
        return not self.is_up and self.row is None

    @property
    def ended_well(self) -> bool:
        return not self.stopping and self.row is not None and not self.row.error_kind

    @property
    def has_failed(self) -> bool:
        """By itself, without being told to stop."""
        return not self.stopping and self.row is not None and bool(self.row.error_kind)

    @property
    def nodes(self) -> list[Node]:
        return [seat.node for seat in self.seats]

    def not_up(self) -> str:
        """In words, why Ray may not have started its worker."""
        seat = self.seats[0]
        each = " each" if len(self.seats) > 1 else ""
        where = " and ".join(node.name for node in self.nodes)
        return (
            f"Session {self.spec.session_id} waits for Ray to start its worker on {where}: its environment is being built, "
            f"or another job of this cluster has the {seat.gpus} GPUs and {seat.cpus:g} CPUs{each} that it needs there."
        )
