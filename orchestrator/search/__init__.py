"""Owns which cells of a grid are worth measuring for one question. Does not own the plan, or how anything is measured.

A search is another producer of cells for the same planner: a pure function of all cells of the grid and what is recorded.
"""

from orchestrator.search.ground import refuse_unsearchable
from orchestrator.search.path import Choice, choose

__all__ = ["Choice", "choose", "refuse_unsearchable"]
