"""Owns what a search learns from a run: numbers of the views, as facts. Does not own them, or what is made of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from orchestrator.search.known import Facts, Interval, Seen
from orchestrator.settings import Search
from storage.places import Place
from storage.views import open_runs, readable_files

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
# Goodput as the span of its repeats, or as wide as the share of requests within limits is uncertain.
GOODPUTS = """
SELECT cell_id, goodput.slo_attainment, slo_attainment_low, slo_attainment_high, goodput.goodput_rps,
       least(goodput_rps_min, goodput.goodput_rps * slo_attainment_low / share),
       greatest(goodput_rps_max, goodput.goodput_rps * slo_attainment_high / share), answered_rps
FROM (SELECT *, coalesce(nullif(slo_attainment, 0), 1) AS share FROM goodput) goodput JOIN cells
  ON (cells.run, cells.deployment_id, cells.condition) = (goodput.run, goodput.deployment_id, goodput.condition)
 AND cells.slo_ttft_s IS NOT DISTINCT FROM goodput.slo_ttft_s AND cells.slo_tpot_s IS NOT DISTINCT FROM goodput.slo_tpot_s
WHERE cells.valid AND goodput.goodput_rps IS NOT NULL
"""


def facts_of(folder: Place, search: Search, settled: Collection[str]) -> Facts:
    """What the valid cells of a run tell; `settled`: ids of cells from which nothing more is to come."""
    if not settled:
        return Facts()
    with readable_files(), open_runs([folder]) as runs:
        speedups = runs.execute(SPEEDUPS, [search.metric.value]).fetchall()
        lengths = runs.execute(LENGTHS).fetchall()
        goodputs = runs.execute(GOODPUTS).fetchall()
        least = runs.execute("SELECT min_slo_attainment FROM thresholds").fetchall()[0][0]
    seen = {cell_id: Seen(speedup=Interval(*told)) for cell_id, *told in speedups}
    for cell_id, al, cost in lengths:
        seen[cell_id] = replace(seen.get(cell_id, Seen()), lengths=al, step_cost=cost)
    for cell_id, share, share_low, share_high, rate, low, high, answered in goodputs:
        old = seen.get(cell_id, Seen())
        attainment, goodput = Interval(share, share_low, share_high), Interval(rate, low, high)
        seen[cell_id] = replace(old, attainment=attainment, goodput=goodput, throughput=answered)
    return Facts(seen, frozenset(settled), least)
