"""What the tests of the orchestrator make cells of. No test, and nothing of the product."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from jobs.spec import Cell, Deployment, Draft, Engine, Load, Model, Sampling, Workload
from orchestrator.grid import Point
from orchestrator.settings import PARTS


def point(choices: Mapping[str, str] | None = None, **parts: Mapping[str, Any]) -> Point:
    """A point on the simulated engine; `parts` replace fields, as a folder of conf/ would."""
    plain: dict[str, dict[str, Any]] = {name: asdict(schema()) for name, schema in PARTS.items()}
    plain["model"] |= {"name": "small", "path": "small"}
    plain["engine"] |= {"name": "simulated", "device": "cpu"}
    for name, values in parts.items():
        plain[name] |= values
    return Point({name: "default" for name in PARTS} | dict(choices or {}), plain)


NONE = point({"draft": "none"})
NGRAM = point({"draft": "ngram"}, draft={"method": "ngram", "k": 3})


def cell(k: int = 0, repeat: int = 0, concurrency: int = 1, **engine: Any) -> Cell:
    """A cell on the simulated engine: the baseline, or prompt lookup with `k`."""
    draft = Draft(name="ngram", method="ngram", k=k) if k else Draft(name="none")
    deployment = Deployment(Model("small", "small"), Engine(**{"name": "simulated", "device": "cpu", **engine}), draft)
    return Cell(deployment, Workload(limit=10, output_limit=100), Sampling(), Load(concurrency=concurrency), repeat)
