"""Owns rows as MLflow runs: settings are parameters, results metrics, names and verdicts tags. Does not own the rows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from storage.export.rows import NAMES, ExportFailed, Measured, client_of
from storage.views import one_line

KEY = "specsweep.key"
PATIENCE = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "20", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2"}
"""Its own are two minutes, and seven more tries with pauses that double."""


def export_to_mlflow(rows: Sequence[Measured], experiment: str) -> str:
    """Each row is one run of the experiment, the same one if exported again. Returns in words what was done.

    MLFLOW_TRACKING_URI says where to; a file store needs MLFLOW_ALLOW_FILE_STORE=true.
    """
    mlflow = client_of("mlflow", PATIENCE)
    try:
        client = mlflow.MlflowClient()
        home = _experiment(client, experiment)
        for row in rows:
            _export(client, mlflow.entities, home, row)
    except mlflow.exceptions.MlflowException as refusal:
        raise ExportFailed(f"MLflow must take the rows: got {one_line(refusal)}. Check MLFLOW_TRACKING_URI.") from refusal
    return f"{len(rows)} rows are in MLflow's experiment {experiment}, at {mlflow.get_tracking_uri()}"


def _experiment(client: Any, name: str) -> str:
    found = client.get_experiment_by_name(name)
    return str(found.experiment_id if found else client.create_experiment(name))


def _export(client: Any, entities: Any, home: str, row: Measured) -> None:
    found = client.search_runs([home], f"tags.`{KEY}` = '{row.key}'", max_results=1)
    known = found[0] if found else client.create_run(home, run_name=row.name, tags={KEY: row.key, "specsweep.run": row.run})
    now_ms = time.time_ns() // 1_000_000
    client.log_batch(
        known.info.run_id,
        metrics=[entities.Metric(name, value, now_ms, 0) for name, value in row.numbers.items()],
        params=[entities.Param(name, str(value)) for name, value in row.settings.items() if name not in NAMES],
        tags=[entities.RunTag(name, str(value)) for name, value in {**row.words, **row.names}.items()],  # these may change
    )
    client.set_terminated(known.info.run_id)
