"""Owns what every side command (`python -m ...`) does alike: one line for a mistake, exit codes, closed pipes.

Does not own what a command does. `sweep.py` has its own words.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from storage.errors import BadInput, SpecSweepError
from storage.files import write_whole
from storage.interrupted import INTERRUPTED, end_in_order, interruptible_queries


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong with the arguments in one line, without the usage around it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}. See --help.\n")


def run_command(act: Callable[[], int]) -> int:
    """The exit code: what `act` returns; 2 for bad input, 1 for other failures (one line each), 130 when interrupted."""
    end_in_order()
    try:
        with interruptible_queries():
            code = act()
        sys.stdout.flush()
    except SpecSweepError as error:
        sys.stderr.write(f"{error}\n")
        return 2 if isinstance(error, BadInput) else 1
    except BrokenPipeError:  # `| head` has seen enough; nothing more may be flushed at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED
    return code


def refuse_unwritable(folder: Path) -> None:
    """`BadInput` for an `--output` in which no folder can be made or written, before any work is done."""
    there = next(place for place in (folder, *folder.parents) if place.exists())
    if not there.is_dir():
        raise BadInput(f"--output must be a folder: got {folder}, and {there} is a file. Name another one.")
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as refusal:
        raise BadInput(
            f"--output must be a folder that can be written: got {folder} ({refusal.strerror}). Name another one."
        ) from None


def is_of_a_run(path: Path) -> bool:
    """Whether the file would be taken for one that a sweep wrote."""
    return path.name == "sweep.yaml" or (path.parent.parent / "sweep.yaml").is_file()


def write_output(path: Path, content: bytes) -> None:
    """The file that the user named, whole or not at all. `BadInput` where its folder is not there."""
    if not path.parent.is_dir():
        raise BadInput(f"--output must be in a folder that exists: got {path}. Make {path.parent} first.")
    if path.is_dir():
        raise BadInput(f"--output must be a file: got the folder {path}. Name a file in it.")
    if is_of_a_run(path):
        raise BadInput(f"--output must be no file of a run's own: got {path}. Name one beside the run.")
    write_whole(path, content)
