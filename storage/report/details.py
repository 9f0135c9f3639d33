"""Owns what drawings and answers need of the views, read with the rest of a report. Does not own numbers or looks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import duckdb

from storage.report.reading import Row, rows_of

PLACED = "run, deployment_id, condition"
"""What names one row of `drafts`."""

MAX_CHUNKS, MAX_EXAMPLES = 600, 8
"""Chunks of an answer and answers by draft that a page holds."""

_POSITIONS = f"""
SELECT {PLACED}, position, avg(ar_conditional) AS conditional, avg(ar_joint) AS joint, sum(n_reached)::BIGINT AS n
FROM acceptance JOIN (SELECT run, cell_id, deployment_id, condition FROM cells WHERE valid) USING (run, cell_id)
GROUP BY ALL ORDER BY ALL
"""

_FRONTIER = f"""
SELECT {PLACED}, user_tps, user_tps_min, user_tps_max, tps_per_device, tps_per_device_min, tps_per_device_max, device,
       on_frontier, n_repeats
FROM frontier ORDER BY {PLACED}
"""

_CROSSOVERS = """
SELECT run, axis, engine, model, tp, workload, isl, concurrency, variant, draft, answer, x, x_low, x_high,
       x_min, x_max, significant
FROM crossovers
WHERE metric = 'user_tps' AND category = 'all' ORDER BY ALL
"""

_COSTS = f"""
SELECT {PLACED}, n, gpu_s_per_mtok, cpu_s_per_mtok, money_per_mtok, joules_per_mtok FROM draft_costs
WHERE n > 0 AND coalesce(gpu_s_per_mtok, cpu_s_per_mtok, money_per_mtok, joules_per_mtok) IS NOT NULL ORDER BY {PLACED}
"""

_GOODPUT = f"""
SELECT {PLACED}, method, draft, load, slo_ttft_s, slo_tpot_s, min_slo_attainment, goodput_rps, goodput_rps_min,
       goodput_rps_max, slo_attainment, holds, is_best, n_repeats
FROM goodput, thresholds ORDER BY run, slo_ttft_s, slo_tpot_s, method <> 'none', goodput_rps DESC, draft
"""

_TIMELINES = f"""
WITH setting AS (  -- the one with the most drafts, at its lowest load
    SELECT run, baseline_deployment_id, condition FROM drafts WHERE n_valid > 0
    GROUP BY ALL ORDER BY count(*) DESC, min(concurrency), run, baseline_deployment_id, condition LIMIT 1
), answered AS (
    SELECT requests.category, question_id, turn, drafts.draft, drafts.method <> 'none' AS is_drafted, requests.e2e_ms,
           requests.chunk_gap_ns, requests.chunk_tokens, setting.run, cells.deployment_id, setting.condition
    FROM setting JOIN drafts USING (run, baseline_deployment_id, condition)
    JOIN cells USING ({PLACED}) JOIN requests USING (run, cell_id)
    WHERE cells.valid AND is_answered AND n_chunks BETWEEN 2 AND {MAX_CHUNKS}
    QUALIFY row_number() OVER (
        PARTITION BY requests.category, question_id, turn, cells.deployment_id ORDER BY cells.repeat) = 1
), shared AS (
    SELECT category, question_id, turn, count(*) AS n, max(e2e_ms) AS e2e_ms,
           median(max(e2e_ms)) OVER (PARTITION BY category) AS usual_ms
    FROM answered GROUP BY category, question_id, turn
), usual AS (  -- of each category the question that takes neither short nor long
    SELECT category, question_id, turn FROM shared WHERE n = (SELECT max(n) FROM shared)
    QUALIFY row_number() OVER (PARTITION BY category ORDER BY abs(e2e_ms - usual_ms), question_id, turn) = 1
    ORDER BY category LIMIT {MAX_EXAMPLES}
)
SELECT answered.category, question_id, turn, {PLACED}, chunk_gap_ns, chunk_tokens
FROM answered SEMI JOIN usual USING (category, question_id, turn) ORDER BY answered.category, is_drafted, draft
"""


@dataclass(frozen=True)
class Details:
    """What a drawing needs and a table does not; rows as the queries above name them."""

    positions: Sequence[Row]
    frontier: Sequence[Row]
    crossovers: Sequence[Row]
    costs: Sequence[Row]
    timelines: Sequence[Row]
    goodput: Sequence[Row]
    verdicts: Sequence[Row]
    checklist: Sequence[Row]


def details_of(runs: duckdb.DuckDBPyConnection) -> Details:
    """Read them of an open connection, where the views are settled."""
    return Details(
        positions=rows_of(runs, _POSITIONS),
        frontier=rows_of(runs, _FRONTIER),
        crossovers=rows_of(runs, _CROSSOVERS),
        costs=rows_of(runs, _COSTS),
        timelines=rows_of(runs, _TIMELINES),
        goodput=rows_of(runs, _GOODPUT),
        verdicts=rows_of(runs, "FROM verdicts ORDER BY run, model, engine, workload, split, temperature, metric DESC"),
        checklist=rows_of(runs, "FROM checklist ORDER BY run, model, engine, dtype, tp, workload, split, temperature, nr"),
    )
