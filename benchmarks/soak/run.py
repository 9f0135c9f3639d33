"""Owns the soak: a sweep over pretended nodes with kills at every level, and how it is watched.

`python benchmarks/soak/run.py --cells 2000 --json`; with `--kill-every-s 0` nothing is killed, and the ratio of the makespan
to its lower bound says what the orchestration costs. Does not own the cluster (`pretended`) or what is counted (`count`).
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
from collections import Counter
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.soak.count import counted  # noqa: E402
from benchmarks.soak.pretended import Pretended, engines_of, kill, orphans_after, pretended, roots  # noqa: E402

LEVELS = ("engine", "worker", "node", "driver")
REAP_S = 60.0
STEP_MS = 100.0  # between two tokens the engine sleeps: 16 of them are to fit on two cores
LIVES = 50  # of the driver, at most: a soak ends by itself


@dataclass
class Soak:
    cluster: Pretended
    folder: Path
    cells: int
    cells_a_session: int
    cell_s: float
    kill_every_s: float  # the mean; 0 = no kills
    seed: int
    most_kills: float = inf
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
            *(f"run.dir={self.folder}", "run.name=soak", "model=bytes"),
            *("engine=simulated", "engine.device=cuda", "engine.cpus=1"),
            *("workload.limit=1", f"workload.output_limit={max(2, round(self.cell_s * 1e3 / STEP_MS))}", "load.warmup=0"),
            *(
                f"engine.args.step_ms={STEP_MS}",
                "engine.args.answer_tokens=1e9",
                f"axes.engine.args.kv_capacity_tokens=[{sizes}]",
            ),
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
        due = self.next_kill(draws)
        while driver.poll() is None:
            self.look(driver.pid)
            if time.monotonic() > due and self.strike(draws, driver.pid):
                due = self.next_kill(draws)
            time.sleep(0.2)
        self.look(driver.pid)
        return None if driver.returncode == -9 else driver.returncode

    def next_kill(self, draws: random.Random) -> float:
        """When it is due."""
        if not self.kill_every_s or sum(self.kills.values()) >= self.most_kills:
            return inf
        return time.monotonic() + draws.expovariate(1 / self.kill_every_s)

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
        return {
            **counted(self.folder / "soak", self.deployments * self.cells_a_session, seats, self.makespan_s),
            "orphans": len(orphans_after(self.invocations, REAP_S)),
            "kills": dict(self.kills),
            "exit_code": code,
            "driver_peak_mb": round(self.driver_peak_mb, 1),
            "load_average": round(psutil.getloadavg()[1], 1),
        }


def main() -> int:
    options = parser().parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-results-") as made, pretended(options.nodes, cpus=1, gpus=1) as cluster:
        folder = Path(options.results or made)
        shape = {name: getattr(options, name) for name in ("cells", "cells_a_session", "cell_s", "kill_every_s", "seed")}
        soak = Soak(cluster, folder, **shape)
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
    whole.add_argument("--cell-s", type=float, default=8.0, help="seconds that a cell takes (default: %(default)s)")
    whole.add_argument("--kill-every-s", type=float, default=20.0, help="mean; 0 = none (default: %(default)s)")
    whole.add_argument("--seed", type=int, default=1)
    whole.add_argument("--results", help="a folder that stays (default: one that goes)")
    whole.add_argument("--json", action="store_true")
    return whole


if __name__ == "__main__":
    sys.exit(main())
