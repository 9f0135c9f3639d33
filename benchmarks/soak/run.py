"""Owns the soak: a sweep over pretended nodes with kills at every level, and the count of what that cost.

`python benchmarks/soak/run.py --cells 2000 --json`. Does not own the cluster (`pretended`) or the sweep.

lost, duplicated and orphans must be 0. `lower_bound_s` is what the same sessions would take without kills, with perfect
packing: the seconds of the good cells and one engine start a deployment, divided by the seats, or the longest session. Those
seconds are measured in this very run: on a busy machine they are longer, and so is the bound.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.soak.pretended import Pretended, engines_of, kill, orphans_after, pretended, roots  # noqa: E402
from storage.rows import OK  # noqa: E402
from storage.views import open_records  # noqa: E402

LEVELS = ("engine", "worker", "node", "driver")
REAP_S = 60.0
STEP_MS = 20.0
LIVES = 50  # of the driver, at most: a soak ends by itself


@dataclass
class Soak:
    cluster: Pretended
    folder: Path
    cells: int
    cells_a_session: int
    cell_s: float
    kill_every_s: float
    seed: int
    kills: Counter[str] = field(default_factory=Counter)
    invocations: set[str] = field(default_factory=set)
    driver_peak_mb: float = 0.0
    makespan_s: float = 0.0

    @property
    def deployments(self) -> int:
        return -(-self.cells // self.cells_a_session)

    @property
    def command(self) -> list[str]:
        """Deployments differ in a number that means nothing; the cells of each are its repeats."""
        sizes = ",".join(str(100_000 + number) for number in range(self.deployments))
        return [
            *(sys.executable, "sweep.py", "cluster=ray", f"cluster.address={self.cluster.address}"),
            *(f"run.dir={self.folder}", "run.name=soak", "engine=simulated", "engine.device=cuda", "engine.cpus=1"),
            *("workload.limit=1", f"workload.output_limit={max(2, round(self.cell_s * 1e3 / STEP_MS))}", "load.warmup=0"),
            *(f"engine.args.step_ms={STEP_MS}", f"axes.engine.args.kv_capacity_tokens=[{sizes}]"),
            *(f"repeats={self.cells_a_session}", "limits.max_attempts=100", "limits.max_starts=100"),
        ]

    def run(self) -> int:
        """Until a driver ends by itself; its exit code."""
        draws = random.Random(self.seed)
        began = time.monotonic()
        code = None
        for _ in range(LIVES):
            code = self.live(draws)
            if code is not None:
                break
        self.makespan_s = time.monotonic() - began
        return -1 if code is None else code

    def live(self, draws: random.Random) -> int | None:
        """One life of a driver; None when it was one of the killed."""
        log = (self.folder / "driver.log").open("a")
        with log, subprocess.Popen(self.command, cwd=ROOT, env=self.cluster.environment, stdout=log, stderr=log) as driver:
            try:
                return self.watch(driver, draws)
            finally:
                driver.kill()

    def watch(self, driver: subprocess.Popen[bytes], draws: random.Random) -> int | None:
        due = time.monotonic() + draws.expovariate(1 / self.kill_every_s)
        while driver.poll() is None:
            self.look(driver.pid)
            if time.monotonic() > due and self.strike(draws, driver.pid):
                due = time.monotonic() + draws.expovariate(1 / self.kill_every_s)
            time.sleep(0.2)
        self.look(driver.pid)
        return None if driver.returncode == -9 else driver.returncode

    def look(self, driver: int) -> None:
        written = self.folder / "soak" / "sweep.yaml"
        if written.exists():
            self.invocations |= set(re.findall(r"^  id: \"(\w+)\"$", written.read_text(), re.MULTILINE))
        try:
            peak = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{driver}/status").read_text())
        except OSError:
            return
        self.driver_peak_mb = max(self.driver_peak_mb, int(peak[1]) / 1024 if peak else 0.0)

    def strike(self, draws: random.Random, driver: int) -> bool:
        """One kill, where there is something to kill; each level in turn, at a random place."""
        engines = roots(engines_of(self.invocations))
        if not engines:
            return False
        level = LEVELS[sum(self.kills.values()) % len(LEVELS)]
        engine = draws.choice(engines)
        self.kills[level] += self.do(level, engine, driver)
        return True

    def do(self, level: str, engine: psutil.Process, driver: int) -> bool:
        if level == "driver":
            return kill(psutil.Process(driver))
        if level == "node":
            node = self.cluster.node_of(engine)
            if node is None:
                return False
            self.cluster.lose_node(node)
            self.cluster.add_node()
            return True
        try:
            return kill(engine if level == "engine" else engine.parent())
        except psutil.Error:
            return False

    def told(self, code: int, seats: int) -> dict[str, object]:
        with open_records([self.folder / "soak"]) as runs:
            tries = runs.execute("SELECT cell_id, deployment_id, status, duration_ns / 1e9 FROM recorded_cells").fetchall()
            starts = runs.execute(
                "SELECT deployment_id, ready_s FROM recorded_sessions WHERE ready_s IS NOT NULL"
            ).fetchall()
            (rows, different) = runs.execute(
                "SELECT count(*), count(DISTINCT (cell_id, attempt, index, turn)) FROM recorded_requests"
            ).fetchall()[0]
        good = Counter(cell for cell, _, status, _ in tries if status == OK)
        sessions: dict[str, float] = defaultdict(float)
        for _, deployment, status, seconds in tries:
            sessions[deployment] += seconds if status == OK else 0.0
        start_s = median(seconds for _, seconds in starts)
        total_s = sum(sessions.values()) + start_s * len(sessions)
        bound_s = max(total_s / seats, start_s + max(sessions.values()))
        asked = self.deployments * self.cells_a_session
        return {
            "cells": asked,
            "measured": len(good),
            "lost": asked - len(good),
            "duplicated": sum(n - 1 for n in good.values()) + rows - different,
            "orphans": len(orphans_after(self.invocations, REAP_S)),
            "kills": dict(self.kills),
            "failed_tries": len(tries) - sum(good.values()),
            "exit_code": code,
            "makespan_s": round(self.makespan_s, 1),
            "lower_bound_s": round(bound_s, 1),
            "ratio": round(self.makespan_s / bound_s, 3),
            "session_s": round(total_s / len(sessions), 1),
            "engine_start_s": round(start_s, 2),
            "driver_peak_mb": round(self.driver_peak_mb, 1),
            "load_average": round(psutil.getloadavg()[1], 1),
        }


def main() -> int:
    options = parser().parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-results-") as folder, pretended(options.nodes, cpus=1, gpus=1) as cluster:
        soak = Soak(
            cluster,
            Path(folder),
            options.cells,
            options.cells_a_session,
            options.cell_s,
            options.kill_every_s,
            options.seed,
        )
        told = soak.told(soak.run(), options.nodes)
        if told["lost"] or told["exit_code"] not in (0, 1):
            sys.stderr.write((soak.folder / "driver.log").read_text()[-4000:])
    sys.stdout.write(
        json.dumps(told) + "\n" if options.json else "".join(f"{key}: {value}\n" for key, value in told.items())
    )
    return int(bool(told["lost"] or told["duplicated"] or told["orphans"]))


def parser() -> argparse.ArgumentParser:
    whole = argparse.ArgumentParser(description="A sweep over pretended nodes with kills at every level.")
    whole.add_argument("--cells", type=int, default=2000)
    whole.add_argument("--nodes", type=int, default=16)
    whole.add_argument("--cells-a-session", type=int, default=25, help="default: %(default)s")
    whole.add_argument("--cell-s", type=float, default=5.0, help="seconds that a cell takes (default: %(default)s)")
    whole.add_argument("--kill-every-s", type=float, default=20.0, help="mean (default: %(default)s)")
    whole.add_argument("--seed", type=int, default=1)
    whole.add_argument("--json", action="store_true")
    return whole


if __name__ == "__main__":
    sys.exit(main())
