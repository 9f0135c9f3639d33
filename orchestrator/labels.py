"""Owns what cells and deployments are called beside others: those with one name are told apart by the fields that differ.

Pure. Does not own a cell's own label (`jobs.spec`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, TypeVar

from jobs.spec import Cell, Deployment

T = TypeVar("T", bound=Cell | Deployment)

MOST_CHARACTERS = 40  # of a value


def cell_labels(cells: Iterable[Cell]) -> dict[str, str]:
    """Cell id → its label, and what tells it from those with the same one: `… mini c=1 r0 sampling.temperature=0.8`."""
    return told_apart({cell.id: cell for cell in cells}, lambda cell: cell.label)


def deployment_labels(deployments: Iterable[Deployment]) -> dict[str, str]:
    """Deployment id → model, engine and draft, and what tells it from those with the same ones."""
    return told_apart({deployment.id: deployment for deployment in deployments}, _told)


def _told(deployment: Deployment) -> str:
    draft, engine = deployment.draft, deployment.engine
    k = f" k={draft.k}" if draft.k else ""
    tp = f" tp={engine.tp}" if engine.tp > 1 else ""
    return f"{deployment.model.name or deployment.model.path} {engine.name}{tp} {draft.name or draft.method}{k}"


def told_apart(known: Mapping[str, T], label: Callable[[T], str]) -> dict[str, str]:
    """Id → its label; where several have the same, with the fields in which those differ."""
    alike: dict[str, list[str]] = defaultdict(list)
    for id_, item in known.items():
        alike[label(item)].append(id_)
    labels = {}
    for name, ids in alike.items():
        told: dict[str, dict[str, Any]] = {id_: dict(_fields(asdict(known[id_]))) for id_ in ids} if len(ids) > 1 else {}
        keys = dict.fromkeys(key for values in told.values() for key in values)
        differing = [key for key in keys if len({repr(values.get(key)) for values in told.values()}) > 1]
        for id_ in ids:
            shown = [f"{key}={_short(str(told[id_].get(key)))}" for key in differing]
            labels[id_] = " ".join([name, *shown])
    return labels


def _short(value: str) -> str:
    """Its end, where it is long: paths differ there."""
    return value if len(value) <= MOST_CHARACTERS else f"…{value[1 - MOST_CHARACTERS :]}"


def _fields(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """`engine.batch`, 4: as overrides name them."""
    for name, value in values.items():
        key = f"{prefix}{name}".removeprefix("deployment.")
        if isinstance(value, Mapping):
            yield from _fields(value, f"{key}.")
        else:
            yield key, value
