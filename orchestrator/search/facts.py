"""Owns what a search learns from a run: numbers of the views, as facts. Does not own them, or what is made of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from jobs.spec import Cell
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
WITH paired AS (SELECT run, cell_id, deployment_id, condition FROM judged_pairs WHERE valid),
lengths AS (
    SELECT deployment_id, condition, k_projected, avg(al) AS al
    FROM projected_lengths JOIN paired USING (run, cell_id) WHERE al IS NOT NULL GROUP BY ALL
), costs AS (
    SELECT deployment_id, condition, avg(al_break_even) AS al_break_even
    FROM projections JOIN paired USING (run, cell_id) WHERE category = 'all' GROUP BY ALL
)
SELECT cell_id, list(al ORDER BY k_projected), any_value(al_break_even)
FROM lengths JOIN costs USING (deployment_id, condition) JOIN shown_cells USING (deployment_id, condition) GROUP BY cell_id
"""
# Goodput under the limits that are asked for, whatever was recorded: as the span of its repeats, or as wide as the share of
# requests within limits is uncertain.
GOODPUTS = """
WITH judged AS (
    SELECT limited.deployment_id, limited.condition, avg(limited.slo_attainment) AS share,
           share_interval(avg(limited.slo_attainment), sum(limited.n_requests)) AS sure, avg(limited.goodput_rps) AS rate,
           min(limited.goodput_rps) AS least, max(limited.goodput_rps) AS most,
           avg((cells.n_requests - cells.n_failed) / cells.duration_s) AS answered
    FROM goodput_under({ttft_s}, {tpot_s}) limited JOIN cells USING (run, cell_id)
    WHERE limited.goodput_rps IS NOT NULL GROUP BY ALL
)
SELECT cell_id, share, sure.low, sure.high, judged.rate,
       least(least, judged.rate * sure.low / coalesce(nullif(share, 0), 1)),
       greatest(most, judged.rate * sure.high / coalesce(nullif(share, 0), 1)), answered
FROM judged JOIN shown_cells USING (deployment_id, condition)
"""

Limits = tuple[float, float]  # s; the most TTFT and TPOT, 0 = any


def limits_of(cell: Cell) -> Limits:
    return cell.load.slo_ttft_s, cell.load.slo_tpot_s


def facts_of(folder: Place, search: Search, settled: Collection[str], cells: Iterable[Cell] = ()) -> Facts:
    """What the valid cells of a run tell. `settled`: ids of cells from which nothing more comes; `cells`: those that the
    search is about, with the limits on latency that hold for it.
    """
    if not settled:
        return Facts()
    with readable_files(), open_runs([folder]) as runs:
        speedups = runs.execute(SPEEDUPS, [search.metric.value]).fetchall()
        lengths = runs.execute(LENGTHS).fetchall()
        limits = {cell.id: limits_of(cell) for cell in cells}
        goodputs = [
            row
            for asked in {*limits.values()} - {(0.0, 0.0)}
            for row in runs.execute(_under(*asked)).fetchall()
            if limits.get(row[0]) == asked
        ]
        least = runs.execute("SELECT min_slo_attainment FROM thresholds").fetchall()[0][0]
    seen = {cell_id: Seen(speedup=Interval(*told)) for cell_id, *told in speedups}
    for cell_id, al, cost in lengths:
        seen[cell_id] = replace(seen.get(cell_id, Seen()), lengths=al, step_cost=cost)
    for cell_id, share, share_low, share_high, rate, low, high, answered in goodputs:
        old = seen.get(cell_id, Seen())
        attainment, goodput = Interval(share, share_low, share_high), Interval(rate, low, high)
        seen[cell_id] = replace(old, attainment=attainment, goodput=goodput, throughput=answered)
    return Facts(seen, frozenset(settled), least)


def _under(ttft_s: float, tpot_s: float) -> str:
    return GOODPUTS.format(ttft_s=float(ttft_s) or "NULL", tpot_s=float(tpot_s) or "NULL")
