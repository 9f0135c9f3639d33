"""Owns the last net under a process tree: when its owner dies, even by SIGKILL, the tree and its temporary folders go too.

Does not own the tree's ordinary life (`process.py`). Standard library and psutil only.

A tree is what carries a marker, an environment variable with a value of its own, and the descendants of that: descendants
alone would miss what was orphaned, process groups what made a session of its own. The supervisor is doubly forked into a
session of its own because Ray, killing a worker, kills the worker's group and direct children as well (measured). It holds
the read end of a pipe: the end of that pipe without a goodbye means that the owner is gone.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import psutil

from jobs.errors import SpecSweepError

PROJECT = Path(__file__).resolve().parents[2]
WATCHED = "SPECSWEEP_WATCHED"
"""Tells the supervisor the marker. Its command line must not: an engine's marker is the key to it, and others read those."""

GOODBYE = b"goodbye\n"
GRACE_S = 3.0  # from TERM to KILL after the owner's death
KILL_LIMIT_S = 10.0  # a killed process that is still there is stuck in the kernel
POLL_S = 0.05


class Lifeline:
    """Held by the owner of a tree; a context manager.

    `marker` is the (variable, value) that every process of the tree has in its environment; the folders in `remove` go after
    them. Leaving the context, or `close()`, lets go without harm: ending the tree is then the owner's business.
    """

    def __init__(self, marker: tuple[str, str], remove: Sequence[Path] = (), *, grace_s: float = GRACE_S) -> None:
        folders = [part for path in remove for part in ("--remove", str(path.absolute()))]
        passed = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
        starter = subprocess.Popen(
            [sys.executable, "-m", "jobs.engines.lifeline", "--grace", str(grace_s), *folders],
            bufsize=0,
            stdin=subprocess.PIPE,  # close-on-exec: no engine inherits its write end
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={"PYTHONPATH": str(PROJECT), WATCHED: "=".join(marker), **passed},  # not its owner's own marker
            start_new_session=True,
        )
        assert starter.stdin is not None
        self._pipe = starter.stdin
        if starter.wait() != 0:
            self._pipe.close()
            raise SpecSweepError(f"the lifeline of {marker[0]} must start: it ended with {starter.returncode}.")

    def close(self) -> None:
        """Say goodbye. Safe to call twice."""
        if not self._pipe.closed:
            with suppress(BrokenPipeError):  # somebody ended the supervisor
                self._pipe.write(GOODBYE)
            self._pipe.close()

    def __enter__(self) -> Lifeline:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def marked(marker: tuple[str, str]) -> set[psutil.Process]:
    """What carries the marker, as far as this user may look, with all descendants; never the caller."""
    name, value = marker
    found: set[psutil.Process] = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process not in found and process.environ().get(name) == value:
                found.update(family(process))
    return {process for process in found if process.pid != os.getpid()}


def family(process: psutil.Process) -> list[psutil.Process]:
    """A process and its descendants."""
    with suppress(psutil.Error):
        return [process, *process.children(recursive=True)]
    return [process]


def end_tree(marker: tuple[str, str], *, grace_s: float, roots: Iterable[psutil.Process] = ()) -> bool:
    """TERM → wait → KILL everything that carries the marker or descends from a root. True = all are gone.

    A process seen once stays on the list: it may lose its marked ancestor, or write its title over its environment.
    """
    tree = {member for root in roots for member in family(root)}
    steps: tuple[tuple[Callable[[psutil.Process], None], float], ...] = (
        (psutil.Process.terminate, grace_s),
        (psutil.Process.kill, KILL_LIMIT_S),
    )
    for end, limit_s in steps:
        deadline = time.monotonic() + limit_s
        while (tree := alive(tree | marked(marker))) and time.monotonic() < deadline:
            for process in tree:
                with suppress(psutil.Error):
                    end(process)
            wait_until_gone(tree, deadline)
    return not tree


def wait_until_gone(processes: set[psutil.Process], deadline: float) -> None:
    while alive(processes) and time.monotonic() < deadline:
        time.sleep(POLL_S)


def alive(processes: Iterable[psutil.Process]) -> set[psutil.Process]:
    """Those that still run. A zombie does not: it only waits to be read by its parent.

    Unless it has threads left: then only its main thread has ended, and it still holds its memory, its ports and its GPU.
    """
    return {process for process in processes if _runs(process)}


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and (process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1)
    except psutil.Error:
        return False


def remove(folder: Path, *, limit_s: float = 5.0) -> None:
    """Remove a folder, again and again while somebody else (another tree's last process) still writes into it."""
    deadline = time.monotonic() + limit_s
    while folder.exists() and time.monotonic() < deadline:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(POLL_S)


def main() -> None:
    """The supervisor: fork away from the owner, wait for the end of the pipe, clean up unless it ended with a goodbye."""
    parser = argparse.ArgumentParser(prog="python -m jobs.engines.lifeline")
    parser.add_argument("--grace", required=True, type=float)
    parser.add_argument("--remove", action="append", default=[], type=Path)
    args = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it must outlive what it watches
    if os.fork():
        os._exit(0)  # the owner, waiting for this, knows that the supervisor stands
    if sys.stdin.buffer.read() != GOODBYE:
        name, _, value = os.environ[WATCHED].partition("=")
        end_tree((name, value), grace_s=args.grace)
        for folder in args.remove:
            remove(folder)


if __name__ == "__main__":
    main()
