"""Owns rows as gauges in the text format that Prometheus reads, for the textfile collector. Does not own the rows.

Gauges only: what OpenMetrics and the older format, which node exporter's collector reads, write alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from storage.export.rows import SETTINGS, Measured

LABELS = ("run", *(name for name in SETTINGS if name not in ("load_kind", "rate")), "simulated", "key")


@dataclass(frozen=True)
class Exposed:
    """A column of the report's table and what it is called there: base units, as Prometheus asks for."""

    column: str
    name: str
    help: str
    factor: float = 1.0
    of: str = ""  # the comparison that it belongs to: an invalid one is no sample


GAUGES = (
    Exposed("al", "acceptance_length", "Mean tokens a verify step, 1 without speculation."),
    Exposed("draft_efficiency", "draft_efficiency_ratio", "Accepted of all drafted tokens."),
    Exposed("user_tps_p50", "user_tokens_per_second", "What one user gets, after the first token: median over requests."),
    Exposed("output_tps", "output_tokens_per_second", "Output tokens of all requests over the duration."),
    Exposed("ttft_ms_p50", "ttft_seconds", "Time to the first token: median over requests.", 1e-3),
    Exposed("tpot_ms_p50", "tpot_seconds", "Time per later token: median over requests.", 1e-3),
    Exposed("e2e_ms_p50", "e2e_seconds", "Time to the last token: median over requests.", 1e-3),
    Exposed("user_tps_ratio", "user_tps_speedup_ratio", "User TPS over that of its baseline.", of="user_tps"),
    Exposed("user_tps_ci_low", "user_tps_speedup_low_ratio", "Lower end of its 95 % interval.", of="user_tps"),
    Exposed("user_tps_ci_high", "user_tps_speedup_high_ratio", "Upper end of its 95 % interval.", of="user_tps"),
    Exposed("output_tps_ratio", "output_tps_speedup_ratio", "Output TPS over that of its baseline.", of="output_tps"),
    Exposed("lossless", "lossless_ratio", "Greedy answers that equal the baseline's."),
    Exposed("n_cells", "cells", "Cells of this draft and load: its repeats."),
    Exposed("n_valid", "valid_cells", "Those that nothing speaks against."),
)


def openmetrics_text(rows: Sequence[Measured]) -> bytes:
    """All rows as one exposition; a number that a row lacks has no sample."""
    registry = CollectorRegistry()
    registry.register(_Rows(rows))
    text: bytes = generate_latest(registry)  # type: ignore[no-untyped-call]
    return text


class _Rows(Collector):
    def __init__(self, rows: Sequence[Measured]) -> None:
        self.rows = rows

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for gauge in GAUGES:
            family = GaugeMetricFamily(f"specsweep_{gauge.name}", gauge.help, labels=LABELS)
            for row in self.rows:
                if gauge.column in row.numbers and (not gauge.of or row.words.get(f"{gauge.of}_valid") == "true"):
                    family.add_metric(_labels(row), row.numbers[gauge.column] * gauge.factor)
            if family.samples:
                yield family


def _labels(row: Measured) -> list[str]:
    told = {**row.settings, "run": row.run, "simulated": row.words["simulated"], "key": row.key}
    return [str(told.get(name, "")) for name in LABELS]
