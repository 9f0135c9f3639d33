"""Owns what a search learns from a run: numbers of the views, as facts. Does not own them, or what is made of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from math import sqrt
from statistics import fmean
from typing import Any

from orchestrator.search.known import Facts, Interval, Seen
from orchestrator.settings import Search
from storage.places import Place
from storage.views import open_runs

Z = 1.96  # 95 %, as the intervals of the views

SPEEDUPS = """
SELECT cell_id, ratio, coalesce(ci_low, ratio), coalesce(ci_high, ratio)
FROM draft_speedups JOIN shown_cells USING (run, deployment_id, condition)
WHERE draft_speedups.valid AND category = 'all' AND metric = ? AND ratio > 0
"""
LENGTHS = """
SELECT cell_id, list(projected_lengths.al ORDER BY k_projected), any_value(al_break_even)
FROM projected_lengths JOIN (FROM projections WHERE category = 'all') USING (run, cell_id) JOIN cells USING (run, cell_id)
WHERE cells.valid AND projected_lengths.al IS NOT NULL GROUP BY cell_id
"""
GOODPUTS = """
SELECT list(cell_id), list(slo_attainment), list(goodput_rps), sum(n_requests), avg((n_requests - n_failed) / duration_s)
FROM cells WHERE valid AND slo_attainment IS NOT NULL AND goodput_rps IS NOT NULL GROUP BY deployment_id, condition
"""


def facts_of(folder: Place, search: Search, settled: Collection[str]) -> Facts:
    """What the valid cells of a run tell; `settled`: ids of cells from which nothing more is to come."""
    if not settled:
        return Facts()
    with open_runs([folder]) as runs:
        speedups = runs.execute(SPEEDUPS, [search.metric.value]).fetchall()
        lengths = runs.execute(LENGTHS).fetchall()
        goodputs = runs.execute(GOODPUTS).fetchall()
        least = runs.execute("SELECT min_slo_attainment FROM thresholds").fetchall()[0][0]
    seen = {cell_id: Seen(speedup=Interval(*told)) for cell_id, *told in speedups}
    for cell_id, al, cost in lengths:
        seen[cell_id] = replace(seen.get(cell_id, Seen()), lengths=al, step_cost=cost)
    return Facts(_with_goodputs(seen, goodputs), frozenset(settled), least)


def _with_goodputs(seen: Mapping[str, Seen], rows: Iterable[Sequence[Any]]) -> dict[str, Seen]:
    """As mean and span of the repeats, or as wide as the share of so many requests is uncertain."""
    told = dict(seen)
    for cell_ids, attainments, rates, n_requests, throughput in rows:
        attainment = _share(fmean(attainments), n_requests)
        rate, share = fmean(rates), attainment.value or 1.0
        low, high = min(*rates, rate * attainment.low / share), max(*rates, rate * attainment.high / share)
        for cell_id in cell_ids:
            old = told.get(cell_id, Seen())
            told[cell_id] = replace(old, attainment=attainment, goodput=Interval(rate, low, high), throughput=throughput)
    return told


def _share(share: float, n: float) -> Interval:
    """A share of n with Wilson's interval."""
    middle = (share + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z / (1 + Z * Z / n) * sqrt(share * (1 - share) / n + Z * Z / (4 * n * n))
    return Interval(share, max(0.0, middle - half), min(1.0, middle + half))
