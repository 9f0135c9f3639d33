"""Owns the way of a plan through Ray, and is the only package that knows Ray. Does not own plans, or storage."""

from __future__ import annotations

from orchestrator.schedule.connect import connected
from orchestrator.schedule.nodes import nodes_of
from orchestrator.schedule.sessions import Scheduler, Watch

__all__ = ["Scheduler", "Watch", "connected", "nodes_of"]
