"""Owns what a report says, as plain rows read from the views. Does not own metrics (`storage/views/`), or its looks."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

import duckdb

from storage.places import Place
from storage.report.details import Details, details_of
from storage.report.reading import Row, rows_of
from storage.views import PUBLIC_VIEWS, find_runs, open_runs, readable_files, settle_for

SETTING = (
    "run",
    "baseline_deployment_id",
    "engine",
    "model",
    "dtype",
    "tp",
    "batch",
    "workload",
    "split",
    "entropy",
    "isl",
    "temperature",
    "variant",
)
"""What the rows of one table have in common: everything but the draft and the load."""

_ORDER = (
    "run, engine, model, dtype, tp, batch, workload, split, entropy, isl, temperature, variant, load_kind, concurrency, rate"
)
_DRAFTS = "method <> 'none', regexp_replace(draft, ' k=.*', ''), k, draft"  # k=12 comes after k=3


@dataclass(frozen=True)
class Findings:
    """All that a report tells. A row is a dict with the columns of the view that it comes from."""

    folders: Sequence[Place]
    drafts: Sequence[Row]  # one a draft and setting; `user_tps`, `output_tps`, ... hold its row of `draft_speedups`
    by_category: Sequence[Row]  # one a speculative draft, setting and category
    inflations: Sequence[Row]  # one a draft and setting that random tokens measured beside real text
    problems: Sequence[Row]  # cells that failed or are invalid
    remedies: Sequence[Row]  # of the reasons that occurred
    memory: Sequence[Row]  # one an engine start
    sessions: Sequence[Row]
    runs: Sequence[Row]
    warnings: Sequence[Row]  # of what is not quite comparable, the grave first
    details: Details
    n_cells: int
    n_invalid: int

    @property
    def is_whole(self) -> bool:
        """Whether all that was asked for is measured, as far as a run tells."""
        return all(row["is_whole"] or not row["n_planned"] for row in self.runs)

    @property
    def simulated(self) -> bool:
        return any(row["simulated"] for row in self.drafts)


def find(patterns: Sequence[Place | str]) -> Findings:
    """Read everything that a report tells of these runs. Raises `BadRun` as `open_runs` does."""
    with readable_files(), open_runs(patterns) as runs:
        settle_for(runs, PUBLIC_VIEWS)
        return Findings(
            folders=find_runs(patterns),
            drafts=_drafts(runs),
            by_category=_by_category(runs),
            inflations=_inflations(runs),
            problems=rows_of(
                runs,
                f"FROM cells WHERE NOT valid ORDER BY {_ORDER}, draft, repeat",
            ),
            remedies=rows_of(
                runs,
                "FROM remedies WHERE reason IN (SELECT unnest(reasons) FROM cells WHERE NOT valid) ORDER BY reason",
            ),
            memory=rows_of(runs, "SELECT DISTINCT * EXCLUDE (session_id, baseline_session_id) FROM memory ORDER BY ALL"),
            sessions=rows_of(runs, "SELECT * FROM sessions ORDER BY run, started_at, session_id"),
            runs=rows_of(runs, "FROM runs ORDER BY run"),
            warnings=rows_of(runs, "FROM warnings"),
            details=details_of(runs),
            n_cells=_count(runs, "true"),
            n_invalid=_count(runs, "NOT valid"),
        )


def command_of(folder: Place) -> str:
    """The command that made the run, as its `sweep.yaml` tells; "" when it does not."""
    file = folder / "sweep.yaml"
    found = re.search(r'^  command: (".*")$', file.read_text(), re.MULTILINE) if file.is_file() else None
    return str(json.loads(found[1])) if found else ""


def _drafts(runs: duckdb.DuckDBPyConnection) -> list[Row]:
    drafts = rows_of(runs, f"FROM drafts ORDER BY {_ORDER}, {_DRAFTS}")
    gains = rows_of(runs, "FROM draft_speedups WHERE category = 'all'")
    known = {(row["run"], row["deployment_id"], row["condition"], row["metric"]): row for row in gains}
    for draft in drafts:
        draft["output_tps_mean"] = draft["output_tps"]
        for metric in ("user_tps", "output_tps", "ttft", "e2e"):
            draft[metric] = known.get((draft["run"], draft["deployment_id"], draft["condition"], metric))
    return drafts


def _by_category(runs: duckdb.DuckDBPyConnection) -> list[Row]:
    return rows_of(
        runs,
        f"""FROM draft_speedups
            JOIN (SELECT run, deployment_id, condition, category, al, user_tps_p50 FROM draft_categories)
            USING (run, deployment_id, condition, category)
            WHERE metric = 'user_tps' AND category <> 'all' ORDER BY {_ORDER}, {_DRAFTS}, category""",
    )


def _inflations(runs: duckdb.DuckDBPyConnection) -> list[Row]:
    order = "run, engine, model, isl, variant, load, real_workload, entropy, method <> 'none', draft"
    return rows_of(runs, f"FROM draft_inflations ORDER BY {order}")


def _count(runs: duckdb.DuckDBPyConnection, condition: str) -> int:
    return int(runs.execute(f"SELECT count(*) FROM cells WHERE {condition}").fetchall()[0][0])
