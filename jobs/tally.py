"""Owns what the verdict on a cell needs of its requests, fed batch by batch. Does not own the verdict, and keeps no row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from storage.rows import RequestRow

MOST_KINDS = 1_000  # of errors; some hold a number that is different each time


class Tally:
    """Counts over all requests so far."""

    def __init__(self) -> None:
        self.n_requests = self.n_failed = self.n_batches = 0
        self.errors: Counter[str] = Counter()

    def add(self, requests: Sequence[RequestRow]) -> None:
        self.n_requests += len(requests)
        for request in requests:
            if request.error:
                self.n_failed += 1
                if request.error in self.errors or len(self.errors) < MOST_KINDS:
                    self.errors[request.error] += 1

    def take_part(self, requests: Sequence[RequestRow]) -> int:
        """Add a batch; its number, from 0."""
        self.add(requests)
        self.n_batches += 1
        return self.n_batches - 1

    @property
    def commonest_error(self) -> str:
        """Of those that failed; "" when none did."""
        return self.errors.most_common(1)[0][0] if self.errors else ""
