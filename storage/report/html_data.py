"""Owns what the HTML report draws: rows of the views, small enough to lie in a page. Does not own numbers or looks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from storage.report.findings import SETTING, Findings
from storage.report.reading import Row


def page_data(findings: Findings) -> dict[str, Any]:
    """What the page's script draws, each table as `{columns, rows}`; a setting, draft, load or category is its index."""
    names = _Names(findings.drafts)
    placed = {_place(row): names.of(row) for row in findings.drafts}
    details = findings.details

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
        "points": beside(map(_point, findings.drafts), *POINT),
        "byCategory": beside(
            ({**row, "c": categories.index(row["category"])} for row in findings.by_category), *BY_CATEGORY
        ),
        "positions": beside(details.positions, "position", "conditional", "joint", "n"),
        "frontier": beside(details.frontier, *FRONTIER),
        "goodput": beside(details.goodput, *GOODPUT),
        "costs": beside(details.costs, "n", "gpu_s_per_mtok", "cpu_s_per_mtok", "money_per_mtok", "joules_per_mtok"),
        "timelines": beside(map(_timeline, details.timelines), "category", "question", "times_ms", "tokens"),
        "memory": _table(MEMORY, ([row[name] for name in MEMORY] for row in findings.memory)),
    }


GAINS = ("user_tps", "output_tps", "ttft", "e2e")
GAIN = ("ratio", "ci_low", "ci_high", "verdict", "valid", "n_prompts", "n_repeats", "ratio_min", "ratio_max")
LEVELS = (
    "al",
    "al_min",
    "al_max",
    "user_tps_p50",
    "user_tps_min",
    "user_tps_max",
    "output_tps",
    "output_tps_min",
    "output_tps_max",
    "ttft_ms_p50",
    "ttft_ms_min",
    "ttft_ms_max",
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
GOODPUT = (
    *("slo_ttft_s", "slo_tpot_s", "goodput_rps", "goodput_rps_min", "goodput_rps_max"),
    *("slo_attainment", "holds", "is_best", "n_repeats"),
)
MEMORY = (
    *("run", "engine", "model", "draft", "k", "variant", "node"),
    *("weights_bytes", "draft_weights_bytes", "peak_memory_bytes", "kv_capacity_tokens", "kv_lost_tokens", "kv_lost_share"),
)


def _place(row: Row) -> tuple[str, str, str]:
    return row["run"], row["deployment_id"], row["condition"]


def _point(row: Row) -> Row:
    """A row of `drafts`: what was measured, and each comparison as a list in the order of `GAIN`."""
    levels = {f"level_{name}": row[name] for name in LEVELS} | {"level_output_tps": row["output_tps_mean"]}
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
        self.settings: list[Row] = _once(map(_setting, rows))
        self.loads: list[Row] = _once(_load(row) for row in rows)
        self.loads.sort(key=lambda load: (load["kind"], load["x"] or 0))
        self._index = {
            kind: {repr(value): n for n, value in enumerate(values)}
            for kind, values in (("s", self.settings), ("d", self.drafts), ("l", self.loads))
        }

    def of(self, row: Row) -> tuple[int, int, int]:
        draft = {"name": row["draft"], "method": row["method"]}
        return (
            self._index["s"][repr(_setting(row))],
            self._index["d"][repr(draft)],
            self._index["l"][repr(_load(row))],
        )


def _setting(row: Row) -> Row:
    return {name: row[name] for name in SETTING if name != "baseline_deployment_id"}


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
