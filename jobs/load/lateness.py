"""Owns the record of how late requests were sent, in bounded memory. Does not own what late means."""

from __future__ import annotations

import random
from array import array

MOST_KEPT = 100_000
"""0.8 MB. The p99 of a uniform sample of so many lies between the 98.9th and the 99.1st percentile of all (three sigma)."""


class LateSends:
    """Every value in order; when they are too many, a uniform sample of them (reservoir, algorithm R), with the greatest."""

    def __init__(self) -> None:
        self.kept = array("q")
        self.n = 0
        self.greatest = 0
        self.random = random.Random(0)

    def add(self, late_ns: int) -> None:
        self.n += 1
        self.greatest = max(self.greatest, late_ns)
        if self.n <= MOST_KEPT:
            self.kept.append(late_ns)
        elif (place := self.random.randrange(self.n)) < MOST_KEPT:
            self.kept[place] = late_ns

    def sampled(self) -> list[int]:
        """What is kept, with the greatest of all."""
        kept = self.kept.tolist()
        return kept if self.n <= MOST_KEPT or self.greatest in kept else [*kept[:-1], self.greatest]
