"""Owns what is exported: the rows of the report's table, each with a key. Does not own where they go, or their numbers."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from storage.errors import BadInput, SpecSweepError
from storage.places import Place
from storage.report.exports import export_of

SETTINGS = (
    *("engine", "model", "method", "k", "draft", "tp", "batch", "dtype", "workload", "split", "entropy", "isl"),
    *("temperature", "variant", "load", "load_kind", "concurrency", "rate"),
)
"""Columns that say what was measured; of the others, numbers are results, and words are said of them."""

NAMES = ("model", "draft", "variant", "load")
"""Those of them that say as much as tells a row from the others of its run: they change when the run grows."""

HIDDEN = ("run", "deployment_id", "baseline_deployment_id", "condition")


class ExportFailed(SpecSweepError):
    """The place that rows go to refused them."""


@dataclass(frozen=True)
class Measured:
    """One draft and load of a run. `key` is of the run's name, deployment and condition: the same at each export."""

    run: str
    key: str
    settings: Mapping[str, str | int | float]
    numbers: Mapping[str, float]  # those that are there
    words: Mapping[str, str]  # verdicts, and whether they are valid

    @property
    def names(self) -> dict[str, str | int | float]:
        return {name: self.settings[name] for name in NAMES if name in self.settings}

    @property
    def name(self) -> str:
        return f"{self.settings['draft']}, {self.settings['load']}"


def measured_rows(runs: Sequence[Place | str]) -> list[Measured]:
    """The rows of `python -m storage.report RUN... -o FILE.parquet`. Raises `BadRun` as `open_runs` does."""
    table = pq.read_table(pa.BufferReader(export_of(runs, "parquet"))).to_pylist()
    if not table:
        raise BadInput("An export needs measured cells: got runs without any. Run the sweep first.")
    return [_measured(row) for row in table]


def client_of(module: str, patience: Mapping[str, str]) -> ModuleType:
    """The client of a foreign service, which is installed only where it is wanted: its extra has its name.

    `patience`: variables of the client's own that end its tries at a server that is dead; those that are set stay.
    """
    for name, value in patience.items():
        os.environ.setdefault(name, value)
    try:
        return import_module(module)
    except ImportError as absent:
        raise BadInput(
            f"{module} must be installed to export to it: got {absent}. "
            f"It is the extra `{module}`: .venv/bin/python -m pip install '.[{module}]'"
        ) from absent


def _measured(row: Mapping[str, Any]) -> Measured:
    results = {name: value for name, value in row.items() if name not in (*SETTINGS, *HIDDEN) and value is not None}
    return Measured(
        run=row["run"],
        key=hashlib.sha256("|".join(map(str, (row[name] for name in HIDDEN))).encode()).hexdigest()[:16],
        settings={name: row[name] for name in SETTINGS if row[name] not in (None, "")},
        numbers={name: float(value) for name, value in results.items() if _is_number(value)},
        words={name: str(value).lower() for name, value in results.items() if isinstance(value, str | bool)},
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
