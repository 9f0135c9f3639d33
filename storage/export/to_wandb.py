"""Owns rows as Weights & Biases runs: settings as config, results as summary, grouped by run. Does not own the rows."""

from __future__ import annotations

from collections.abc import Sequence

from storage.export.rows import ExportFailed, Measured, client_of
from storage.views import one_line

QUIET = {
    "console": "off",
    "silent": True,
    "disable_git": True,
    "disable_code": True,
    "x_disable_stats": True,
    "x_disable_meta": True,
}
"""A row was measured elsewhere and earlier: nothing of this machine and this moment belongs to it."""

PATIENCE = {"WANDB_INIT_TIMEOUT": "30", "WANDB_FINISH_TIMEOUT": "60", "WANDB_FINISH_TIMEOUT_RAISES": "true"}
"""Of its own it waits for a minute and a half, and for ever once a row is on its way."""


def export_to_wandb(rows: Sequence[Measured], project: str) -> str:
    """Each row is one run of the project, the same one if exported again. Returns in words what was done.

    WANDB_MODE=offline writes to WANDB_DIR, for `wandb sync`.
    """
    wandb = client_of("wandb", PATIENCE)
    try:
        for row in rows:
            with wandb.init(
                project=project,
                id=row.key,
                name=row.name,
                group=row.run,
                job_type=str(row.settings["method"]),
                config=dict(row.settings),
                resume=None if wandb.setup().settings.mode == "offline" else "allow",
                settings=wandb.Settings(**QUIET),
            ) as logged:
                logged.summary.update({**row.numbers, **row.words})
    except (wandb.errors.Error, TimeoutError) as refusal:
        raise ExportFailed(
            f"Weights & Biases must take the rows: got {one_line(refusal)}. Check WANDB_API_KEY, or use WANDB_MODE=offline."
        ) from refusal
    return f"{len(rows)} rows are runs of the W&B project {project}"
