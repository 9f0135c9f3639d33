"""Owns `python -m storage.export`. Does not own what a row is, or how a service takes it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from storage.command import OneLineParser, run_command, write_output
from storage.errors import BadInput
from storage.export.openmetrics import openmetrics_text
from storage.export.rows import measured_rows
from storage.export.to_mlflow import export_to_mlflow
from storage.export.to_wandb import export_to_wandb

EPILOG = """\
examples:
  MLFLOW_TRACKING_URI=http://HOST:5000 python -m storage.export mlflow 'results/*'
  WANDB_MODE=offline python -m storage.export wandb results/quickstart --name drafts
  python -m storage.export openmetrics 'results/*' -o /var/lib/node_exporter/specsweep.prom
A row is one draft and load, with its speed-ups: as in the report's table.
Exported again, it is the same row, updated.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code: 0 exported, 1 refused by the other side, 2 bad input."""
    return run_command(lambda: _export(_parser().parse_args(arguments)))


def _parser() -> OneLineParser:
    parser = OneLineParser(
        prog="python -m storage.export",
        description="What was measured as rows of MLflow or Weights & Biases, or as a file of gauges for Prometheus.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("to", choices=("mlflow", "wandb", "openmetrics"))
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run's folder, or a glob of them")
    parser.add_argument("--name", default="specsweep", help="MLflow's experiment, W&B's project (specsweep)")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="openmetrics only: a .prom file; else to stdout")
    return parser


def _export(options: argparse.Namespace) -> int:
    if options.output and (options.to != "openmetrics" or options.output.suffix != ".prom"):
        raise BadInput(
            f"--output must be a .prom file, of openmetrics: got {options.to} and {options.output}. "
            "That is what a node exporter's textfile collector reads; MLflow and W&B have their own places."
        )
    rows = measured_rows(options.runs)
    if options.to == "openmetrics":
        content = openmetrics_text(rows)
        write_output(options.output, content) if options.output else sys.stdout.write(content.decode())
    else:
        export = export_to_mlflow if options.to == "mlflow" else export_to_wandb
        sys.stdout.write(f"{export(rows, options.name)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
