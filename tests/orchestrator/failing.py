"""Owns what the tests of failures share: runs of the command one after the other, what they leave, and where they may run.

Does not own the cluster (`benchmarks.soak.pretended`), or what fails.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from benchmarks.soak.pretended import Pretended, engines_of, orphans_after, roots
from storage.rows import FAILED, OK
from storage.views import open_records

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 240
REAP_S = 30  # a lifeline ends a tree in less; this machine may be busy

STARTED: list[subprocess.Popen[str]] = []


@dataclass
class Run:
    """Runs of the command into one folder, one after the other, and all that they leave."""

    folder: Path
    overrides: Sequence[str]
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    invocations: set[str] = field(default_factory=set)
    _seen: tuple[list[Path], list[tuple[str, str, str]]] = field(default=([], []))

    @property
    def argv(self) -> list[str]:
        """A cell takes a second and more: two answers of 32 tokens, unless the overrides say something else."""
        shape = {"engine": "simulated", "engine.args.step_ms": 20, "workload.limit": 2, "workload.output_limit": 32}
        said = {override.partition("=")[0].removeprefix("axes.") for override in self.overrides}
        said |= {"engine.args.step_ms"} if "engine" in said else set()
        words = [f"{key}={value}" for key, value in shape.items() if key not in said]
        return [
            *(sys.executable, "sweep.py", *words, f"run.dir={self.folder}", "run.name=run"),
            *self.overrides,
        ]

    def start(self, *before: str) -> subprocess.Popen[str]:
        command = [*before, *self.argv]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        driver = subprocess.Popen(command, cwd=ROOT, env=self.environment, text=True, **pipes)
        STARTED.append(driver)
        return driver

    def finish(self, driver: subprocess.Popen[str]) -> tuple[int, str]:
        with driver:
            try:
                said = driver.communicate(timeout=LIMIT_S)[0]
            finally:
                driver.kill()
        self.note()
        return driver.returncode, said

    def note(self) -> None:
        """The id of the newest run of the command: it is in the names of its engines."""
        written = self.folder / "run" / "sweep.yaml"
        if written.exists():
            self.invocations |= set(re.findall(r"^  id: \"(\w+)\"$", written.read_text(), re.MULTILINE))

    def engines(self) -> list[psutil.Process]:
        self.note()
        return roots(engines_of(self.invocations))

    def answering(self) -> list[psutil.Process]:
        """Those that somebody speaks to: they are no longer starting, and have not ended."""
        return [engine for engine in self.engines() if _is_spoken_to(engine)]

    def tries(self) -> list[tuple[str, str, str]]:
        """Of each recorded try: the cell, how it ended, why. Read again when there are others: `wait` asks all the time."""
        files = sorted((self.folder / "run" / "cells").glob("*.parquet"))
        if files != self._seen[0]:
            with open_records([self.folder / "run"]) as runs:
                asked = "SELECT cell_id, status, error_kind FROM recorded_cells ORDER BY started_at, attempt"
                self._seen = files, runs.execute(asked).fetchall()
        return self._seen[1]

    def measured(self) -> Counter[str]:
        return Counter(cell for cell, status, _ in self.tries() if status == OK)

    def lost(self) -> list[str]:
        return [kind for _, status, kind in self.tries() if status == FAILED]

    def wait(self, until: Callable[[], object], limit_s: float = LIMIT_S) -> None:
        deadline = time.monotonic() + limit_s
        while not until():
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def assert_each_once(self, n_cells: int) -> None:
        assert list(self.measured().values()) == [1] * n_cells

    def assert_nothing_left(self) -> None:
        assert orphans_after(self.invocations, REAP_S) == []


def _is_spoken_to(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return any(found.status == psutil.CONN_ESTABLISHED for found in process.net_connections("tcp"))
    return False


def assert_true_end(code: int, said: str, n_unmeasured: int = 0, *, is_ray_sound: bool = True) -> None:
    """0, or 1 with a line for each cell that is not as it should be; a busy machine may make a measured one invalid."""
    assert code == (n_unmeasured > 0 or "invalid: " in said), said
    assert not is_ray_sound or "Traceback" not in said
    assert len(re.findall(r": (?:failed|not_measured): ", said)) == n_unmeasured, said


def as_another_machine() -> list[str]:
    """A host name of its own, where that is allowed."""
    words = ["unshare", "--uts", "sh", "-c", 'hostname elsewhere && exec "$@"', "sh"]
    return words if is_allowed([*words, "true"]) else []


def is_allowed(command: list[str]) -> bool:
    return bool(shutil.which(command[0])) and subprocess.run(command, capture_output=True, check=False).returncode == 0


def in_mounts(script: str, words: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """A shell that may mount, in a view of the file system that only it has."""
    enter = ["unshare", "--mount"]
    if not is_allowed([*enter, "mount", "-t", "tmpfs", "none", "/mnt"]):
        pytest.skip("this user may not mount")
    command = [*enter, "bash", "-c", script, "bash", *words]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=2 * LIMIT_S, check=False
    )


def on(cluster: Pretended, folder: Path, *overrides: str) -> Run:
    where = ["cluster=ray", f"cluster.address={cluster.address}", "engine.device=cuda", "engine.cpus=1", "engine.tp=2"]
    return Run(folder, [*where, *overrides], cluster.environment)


def end_drivers() -> None:
    """Those that are still there."""
    for driver in STARTED:
        with driver:
            driver.kill()
    STARTED.clear()
