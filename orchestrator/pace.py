"""Owns what was foreseen of a run's duration beside what was reached. Does not own the forecast (`pack`)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from jobs.session import Event
from jobs.spec import SessionSpec
from orchestrator.ledger import Node
from orchestrator.pack import Packed, lower_bound_s
from orchestrator.progress import words_of
from storage.rows import SessionRow


class Pace:
    """Told of every plan and of every event of a run; the clock starts with it."""

    def __init__(self, packed: Packed, nodes: Sequence[Node]) -> None:
        self._began_s = time.monotonic()
        self._foreseen = packed
        self._nodes = list(nodes)
        self._specs: dict[str, SessionSpec] = {}
        self._took: dict[str, float] = {}
        self.add(packed)

    def add(self, packed: Packed) -> None:
        """A further plan: what failed is tried again."""
        self._specs |= {spec.session_id: spec for spec in packed.sessions}

    def see(self, event: Event) -> None:
        if isinstance(event, SessionRow) and event.ended_s is not None:
            self._took[event.session_id] = event.ended_s

    @property
    def lower_bound_s(self) -> float:
        """Of the sessions as long as they really were."""
        took = [
            replace(self._specs[name], expected_s=seconds) for name, seconds in self._took.items() if name in self._specs
        ]
        return lower_bound_s(took, self._nodes)

    def told(self) -> str:
        spent_s, bound_s = time.monotonic() - self._began_s, self.lower_bound_s
        ratio = f", {spent_s / bound_s:.2f} times the least that these sessions could take" if bound_s else ""
        return f"{words_of(spent_s)}; foreseen were {words_of(self._foreseen.makespan_s)}{ratio}"


def told_forecast(packed: Packed) -> str:
    """In words: how long it takes on this cluster, and the least that any order could."""
    return f"about {words_of(packed.makespan_s)}, and no order could take less than {words_of(packed.lower_bound_s)}"
