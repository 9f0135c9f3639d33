"""Owns reading Prometheus' text format. Pure. Does not own which samples mean what."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?[ \t]+(\S+)", re.MULTILINE)
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
ESCAPED = re.compile(r"\\(.)")


@dataclass(frozen=True)
class Sample:
    """One line of a page of metrics."""

    name: str
    labels: Mapping[str, str]
    value: float


def samples_in(text: str) -> list[Sample]:
    """The samples of a page; comments are left out."""
    return list(_samples(text))


def total(samples: Sequence[Sample], name: str) -> float | None:
    """The sum over all labels; None when there is no such metric."""
    values = [sample.value for sample in samples if sample.name == name]
    return sum(values) if values else None


def labels_of(samples: Sequence[Sample], name: str) -> Mapping[str, str]:
    """The labels of the first sample of that name, as engines tell their configuration in; empty when there is none."""
    return next((sample.labels for sample in samples if sample.name == name), {})


def _samples(text: str) -> Iterator[Sample]:
    for name, labels, value in SAMPLE.findall(text):
        yield Sample(name, {key: ESCAPED.sub(_unescaped, told) for key, told in LABEL.findall(labels)}, float(value))


def _unescaped(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]
