"""Owns what the HTML report draws: rows of the views, small enough to lie in a page. Does not own numbers or looks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb

from storage.places import Place
from storage.report.findings import SETTING, Findings, Row
from storage.views import open_runs, readable_files, settle

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
SELECT run, axis, engine, model, tp, workload, isl, concurrency, draft, answer, x, x_low, x_high, x_min, x_max, significant
FROM crossovers
WHERE metric = 'user_tps' AND category = 'all' ORDER BY ALL
"""

_COSTS = f"""
SELECT {PLACED}, n, gpu_s_per_mtok, cpu_s_per_mtok, money_per_mtok, joules_per_mtok FROM draft_costs
WHERE n > 0 AND coalesce(gpu_s_per_mtok, cpu_s_per_mtok, money_per_mtok, joules_per_mtok) IS NOT NULL ORDER BY {PLACED}
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
    runs: Sequence[Row]
    throughputs: Sequence[Row]
    verdicts: Sequence[Row]
    checklist: Sequence[Row]
    warnings: Sequence[Row]


def read_details(patterns: Sequence[Place | str]) -> Details:
    """Read what the drawings need of these runs. Raises `BadRun` as `open_runs` does."""
    with readable_files(), open_runs(patterns) as runs:
        settle(runs, "cells", "comparisons", "draft_speedups", "drafts")
        return Details(
            positions=_rows(runs, _POSITIONS),
            frontier=_rows(runs, _FRONTIER),
            crossovers=_rows(runs, _CROSSOVERS),
            costs=_rows(runs, _COSTS),
            timelines=_rows(runs, _TIMELINES),
            runs=_rows(runs, "FROM runs ORDER BY run"),
            throughputs=_rows(runs, f"SELECT {PLACED}, output_tps FROM drafts"),
            verdicts=_rows(runs, "FROM verdicts ORDER BY run, model, engine, workload, split, temperature, metric DESC"),
            checklist=_rows(runs, "FROM checklist ORDER BY run, model, engine, workload, temperature, nr"),
            warnings=_rows(runs, "FROM warnings"),
        )


def page_data(findings: Findings, details: Details) -> dict[str, Any]:
    """What the page's script draws, each table as `{columns, rows}`; a setting, draft, load or category is its index."""
    names = _Names(findings.drafts)
    placed = {_place(row): names.of(row) for row in findings.drafts}
    output_tps = {_place(row): row["output_tps"] for row in details.throughputs}

    def beside(rows: Iterable[Row], *columns: str) -> dict[str, Any]:
        """The rows of `drafts` that these belong to, and these columns."""
        known = ((placed.get(_place(row)), row) for row in rows)
        return _table(("s", "d", "l", *columns), ((*at, *(row[name] for name in columns)) for at, row in known if at))

    categories = list(dict.fromkeys(row["category"] for row in findings.by_category))
    return {
        "settings": names.settings,
        "drafts": names.drafts,
        "loads": names.loads,
        "categories": categories,
        "points": beside((_point(row, output_tps.get(_place(row))) for row in findings.drafts), *POINT),
        "byCategory": beside(
            ({**row, "c": categories.index(row["category"])} for row in findings.by_category), *BY_CATEGORY
        ),
        "positions": beside(details.positions, "position", "conditional", "joint", "n"),
        "frontier": beside(details.frontier, *FRONTIER),
        "costs": beside(details.costs, "n", "gpu_s_per_mtok", "cpu_s_per_mtok", "money_per_mtok", "joules_per_mtok"),
        "timelines": beside(map(_timeline, details.timelines), "category", "question", "times_ms", "tokens"),
        "memory": _table(MEMORY, ([row[name] for name in MEMORY] for row in findings.memory)),
    }


GAINS = ("user_tps", "output_tps", "ttft", "e2e")
GAIN = ("ratio", "ci_low", "ci_high", "verdict", "valid", "n_prompts", "n_repeats")
LEVELS = (
    "al",
    "user_tps_p50",
    "output_tps",
    "ttft_ms_p50",
    "tpot_ms_p50",
    "e2e_ms_p50",
    "lossless",
    "n_cells",
    "n_ok",
    "n_valid",
)
POINT = tuple(f"level_{name}" for name in LEVELS) + GAINS
BY_CATEGORY = ("c", "al", *GAIN)
FRONTIER = (
    *("user_tps", "user_tps_min", "user_tps_max"),
    *("tps_per_device", "tps_per_device_min", "tps_per_device_max"),
    *("device", "on_frontier", "n_repeats"),
)
MEMORY = (
    *("run", "engine", "model", "draft", "k", "node"),
    *("weights_bytes", "draft_weights_bytes", "peak_memory_bytes", "kv_capacity_tokens", "kv_lost_tokens", "kv_lost_share"),
)


def _place(row: Row) -> tuple[str, str, str]:
    return row["run"], row["deployment_id"], row["condition"]


def _point(row: Row, output_tps: float | None) -> Row:
    """A row of `drafts`: what was measured, and each comparison as a list in the order of `GAIN`."""
    levels = {f"level_{name}": row[name] for name in LEVELS} | {"level_output_tps": output_tps}
    gains = {name: [_rounded(row[name][key]) for key in GAIN] if row[name] else None for name in GAINS}
    return {"run": row["run"], "deployment_id": row["deployment_id"], "condition": row["condition"], **levels, **gains}


def _timeline(row: Row) -> Row:
    gaps = row["chunk_gap_ns"]
    times = [round(sum(gaps[: n + 1]) / 1e6, 1) for n in range(len(gaps))]
    question = row["question_id"] + (f", turn {row['turn'] + 1}" if row["turn"] else "")
    return {**row, "question": question, "times_ms": times, "tokens": list(row["chunk_tokens"])}


class _Names:
    """Settings, drafts and loads in the order of the report, each once; rows name them by index."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.drafts: list[Row] = _once({"name": row["draft"], "method": row["method"]} for row in rows)
        self.drafts.sort(key=lambda draft: draft["method"] != "none")
        self._ambiguous = _ambiguous(rows)
        self.settings: list[Row] = _once(map(self._setting, rows))
        self.loads: list[Row] = _once(_load(row) for row in rows)
        self.loads.sort(key=lambda load: (load["kind"], load["x"] or 0))
        self._index = {
            kind: {repr(value): n for n, value in enumerate(values)}
            for kind, values in (("s", self.settings), ("d", self.drafts), ("l", self.loads))
        }

    def of(self, row: Row) -> tuple[int, int, int]:
        draft = {"name": row["draft"], "method": row["method"]}
        return (
            self._index["s"][repr(self._setting(row))],
            self._index["d"][repr(draft)],
            self._index["l"][repr(_load(row))],
        )

    def _setting(self, row: Row) -> Row:
        named = _named(row)
        return {**named, "baseline": (row["baseline_deployment_id"] or "none")[:8] if repr(named) in self._ambiguous else ""}


def _named(row: Row) -> Row:
    return {name: row[name] for name in SETTING if name != "baseline_deployment_id"}


def _ambiguous(rows: Sequence[Row]) -> set[str]:
    """Settings whose names are those of another: they differ in what has no column, such as `engine.args`."""
    known = {(repr(_named(row)), row["baseline_deployment_id"]) for row in rows}
    names = [name for name, _ in known]
    return {name for name in names if names.count(name) > 1}


def _load(row: Row) -> Row:
    x = row["concurrency"] if row["load_kind"] == "closed" else row["rate"]
    return {"name": row["load"], "kind": row["load_kind"], "x": x}


def _once(rows: Iterable[Row]) -> list[Row]:
    return list({repr(row): row for row in rows}.values())


def _table(columns: Sequence[str], rows: Iterable[Iterable[Any]]) -> dict[str, Any]:
    return {"columns": list(columns), "rows": [[_rounded(value) for value in row] for row in rows]}


def _rounded(value: Any) -> Any:
    """Five digits are more than any interval allows, and keep the page small; JSON has no infinity."""
    if not isinstance(value, float):
        return value
    return float(f"{value:.5g}") if math.isfinite(value) else None


def _rows(runs: duckdb.DuckDBPyConnection, sql: str) -> list[Row]:
    answer = runs.execute(sql)
    names = [column[0] for column in answer.description]
    return [dict(zip(names, row, strict=True)) for row in answer.fetchall()]
