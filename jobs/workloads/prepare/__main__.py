"""Owns `python -m jobs.workloads.prepare`: its options, what it shows, its exit codes. Does not own how texts are made."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table

from jobs.errors import BadInput
from jobs.models import cache_folder
from jobs.provenance import local_path
from jobs.spec import Workload
from jobs.workloads.files import MANIFEST, located
from jobs.workloads.prepare import words
from jobs.workloads.prepare.library import Library
from jobs.workloads.prepare.masked import Base, Outcome, prepare
from jobs.workloads.prepare.turns import SOURCES
from jobs.workloads.speed_bench import CONFIGS, patterns_of
from storage.command import OneLineParser, run_command

DATA_SET = "nvidia/SPEED-Bench"
REVISION = "487aa718444e816458d1a0a52bfce7a454285cf4"
MASKED_CONFIGS = [name for name in CONFIGS if name != "agentic"]  # nothing of that one is masked


def main(argv: Sequence[str] | None = None) -> int:
    """0 when every row is whole, 1 when some lack their text (all said), 2 for bad input, with its one line on stderr."""
    return run_command(lambda: _run(_parser().parse_args(argv)))


def _run(options: argparse.Namespace) -> int:
    library = Library(_local(options.source), cache_folder() / "sources")
    configs = MASKED_CONFIGS if options.config == "all" else [options.config]
    codes = []
    for config in configs:  # each summed up at once: a later one may be refused
        outcomes = _prepared(config, options, library)
        codes.append(_summed_up(config, local_path(options.output) / config, outcomes))
    return max(codes)


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="python -m jobs.workloads.prepare",
        description="Fetch the texts that SPEED-Bench may not pass on from their sources. Run it again to go on.",
    )
    parser.add_argument("data_set", choices=["speed_bench"])
    parser.add_argument("--config", required=True, choices=[*MASKED_CONFIGS, "all"])
    parser.add_argument("--output", required=True, type=Path, help="folder: a folder for each configuration is made in it")
    parser.add_argument("--input", default=DATA_SET, help=f"file or folder with the masked rows, or a hub id ({DATA_SET})")
    parser.add_argument("--revision", default=None, help=f"commit of the data set on the hub ({REVISION})")
    parser.add_argument(
        "--source",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="a local file or folder instead of a source; may be given several times. Names: "
        f"{', '.join([*SOURCES, words.SOURCE])} (the words of the prompts)",
    )
    return parser


def _local(given: Sequence[str]) -> dict[str, Path]:
    found = {}
    for item in given:
        name, _, path = item.partition("=")
        place = local_path(path)
        if name not in (*SOURCES, words.SOURCE):
            raise BadInput(f"--source must name a source: got {name!r}. Known: {', '.join([*SOURCES, words.SOURCE])}.")
        if not path or not place.exists():
            raise BadInput(f"--source must read NAME=PATH, of a file or folder that exists: got {item!r}. Correct the path.")
        found[name] = place
    return found


def _prepared(config: str, options: argparse.Namespace, library: Library) -> list[Outcome]:
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as progress:
        tell = _teller(progress, config)
        return prepare(_base(config, options), local_path(options.output) / config, library, tell)


def _base(config: str, options: argparse.Namespace) -> Base:
    is_local = local_path(options.input).exists()
    revision = options.revision or ("" if is_local else REVISION)
    paths = located(Workload(name="speed_bench", path=options.input, revision=revision), patterns_of(config))
    if any(path.parent.resolve() == (local_path(options.output) / config).resolve() for path in paths):
        raise BadInput(f"--output must be another folder than the files of --input: got {options.output}. Name another one.")
    return Base(config, paths, revision)


def _teller(progress: Progress, config: str) -> Callable[[str, int, int], None]:
    tasks: dict[str, TaskID] = {}

    def tell(source: str, done: int, of: int) -> None:
        if source not in tasks:
            tasks[source] = progress.add_task(f"{config}: {source}", total=of)
        progress.update(tasks[source], completed=done)

    return tell


def _summed_up(config: str, folder: Path, outcomes: Sequence[Outcome]) -> int:
    """Print what is whole and what is not, and why; 1 where something is missing."""
    console = Console(highlight=False, soft_wrap=True)
    table = Table(title=f"{config}: {folder / MANIFEST}")
    for column in ("source", "masked rows", "from before", "made", "missing"):
        table.add_column(column, justify="left" if column == "source" else "right")
    for item in outcomes:
        missing = sum(item.missing.values())
        table.add_row(item.source, *(str(n) for n in (item.rows, item.kept, item.made, missing)))
    console.print(table)
    for item in outcomes:
        for why, count in item.missing.items():
            console.print(f"{item.source}: {count} rows have no text: {why}.", markup=False)
    return 1 if any(item.missing for item in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
