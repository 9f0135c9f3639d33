"""Owns the doubts about nodes: where sessions failed lately, and until when such a node rests. Pure.

A node with a stuck GPU or a full disk fails a session within seconds and is free again: it would take one session after the
other of a queue, while those that are well are busy for hours. So it rests, twice as long after each further deployment that
fails there in a row (one that fails everywhere counts once), and is the last to be chosen afterwards, until a session ends
well there. It is passed over only while most others do not rest: what fails everywhere is no fault of a node. Does not own
what a failure is (`schedule`), or the choice (`ledger`).
"""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.shortage import Node

REST_S = 60.0
MOST_DOUBLINGS = 7  # two hours


class Doubts:
    """On the caller's clock."""

    def __init__(self) -> None:
        self._failed: dict[str, set[str]] = {}  # deployments in a row, by node
        self._until_s: dict[str, float] = {}

    def fail(self, nodes: Iterable[Node], deployment_id: str, now_s: float) -> str:
        """A session of that deployment failed on these; in words where another one had before, else ""."""
        told = []
        for node in nodes:
            failed = self._failed.setdefault(node.id, set())
            n_before = len(failed)
            failed.add(deployment_id)
            self._until_s[node.id] = now_s + REST_S * 2 ** min(len(failed) - 1, MOST_DOUBLINGS)
            if 0 < n_before < len(failed):
                told.append(f"{len(failed)} deployments in a row failed on {node.name}")
        return f"{'; '.join(told)}: for a while, other nodes are preferred." if told else ""

    def hold(self, nodes: Iterable[Node], now_s: float) -> None:
        """A session waits on these for its worker: they rest for a while, and have failed nothing."""
        for node in nodes:
            self._until_s[node.id] = max(now_s + REST_S, self._until_s.get(node.id, now_s))

    def trust(self, nodes: Iterable[Node]) -> None:
        """A session ended well on these."""
        for node in nodes:
            self._failed.pop(node.id, None)
            self._until_s.pop(node.id, None)

    def at(self, now_s: float) -> dict[str, bool]:
        """The doubted nodes, by id, and whether each rests now."""
        return {node: now_s < until_s for node, until_s in self._until_s.items()}
