"""Owns sweeps as Slurm jobs: one batch script that starts Ray over the allocation. Does not own the allocation's policy.

The clone and the results must be on storage that every node sees. Requeued, the script resumes: the sweep measures what is
missing. The exit code of the job is the sweep's.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jobs.errors import BadInput
from jobs.submit.programs import hand_to
from jobs.submit.sweep_command import ROOT, sweep_command

FIRST_PORT = 20000
PORTS = 20000
STOP_BEFORE_END_S = 120
START_LIMIT_S = 300

SCRIPT = """\
#!/usr/bin/env bash
{directives}
set -euo pipefail
cd {root}

export PATH={bin_dir}:"$PATH"

# One token a job: without it, whoever reaches Ray's port can run code as this user.
RAY_AUTH_TOKEN=$(python -c 'import secrets; print(secrets.token_hex(32))')
export RAY_AUTH_TOKEN RAY_AUTH_MODE=token PYTHONUNBUFFERED=1

read -r head < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
RAY_ADDRESS="$head:$(({first_port} + SLURM_JOB_ID % {ports}))"
export RAY_ADDRESS

# One Ray on each node, with a folder and a port of this job alone: a shared node may have others. It goes with the step.
srun --overlap --export=ALL bash -c '
  run() {{  # on a busy node the limits of Ray for its own start are sometimes too short
    for _ in 1 2 3; do "$@" --block --disable-usage-stats --num-gpus={gpus} || true; done
    exit 1
  }}
  if ((SLURM_NODEID == 0)); then
    run env -u RAY_ADDRESS ray start --head --port="${{RAY_ADDRESS##*:}}" --temp-dir="/tmp/specsweep-$SLURM_JOB_ID" \\
      --include-dashboard=false
  fi
  until (exec 3<>"/dev/tcp/${{RAY_ADDRESS%:*}}/${{RAY_ADDRESS##*:}}") 2>/dev/null; do sleep 1; done
  run ray start --address="$RAY_ADDRESS"
' &
ray=$!
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
python -m jobs.submit.all_nodes "$SLURM_JOB_NUM_NODES" {start_limit_s} &
wait -n  # all nodes are there, or a Ray has ended, which ends the job

# Slurm says INT some time before the end, and TERM when it takes the nodes away: both are for the sweep.
{command} &
sweep=$!
trap 'kill -INT "$sweep"' INT
trap 'kill -TERM "$sweep"' TERM
code=0
wait "$sweep" || code=$?
while kill -0 "$sweep" 2>/dev/null; do  # a signal ends the wait, not the sweep
  code=0
  wait "$sweep" || code=$?
done
kill "$ray" 2>/dev/null || true
wait "$ray" 2>/dev/null || true
srun --overlap rm -rf "/tmp/specsweep-$SLURM_JOB_ID"
exit "$code"
"""


@dataclass(frozen=True)
class Allocation:
    """What to ask Slurm for. `time` is Slurm's own text (`4:00:00`); "" leaves it to the partition."""

    nodes: int = 1
    gpus: int = 0  # a node
    time: str = ""
    partition: str = ""
    account: str = ""


def slurm_script(overrides: Sequence[str], allocation: Allocation, *, results: str = "", root: Path = ROOT) -> str:
    """The batch script. Pure."""
    bin_dir = root / ".venv" / "bin"
    command = sweep_command(overrides, results=results)
    return SCRIPT.format(
        directives="\n".join(f"#SBATCH {item}" for item in _directives(allocation)),
        root=shlex.quote(str(root)),
        bin_dir=shlex.quote(str(bin_dir)),
        first_port=FIRST_PORT,
        ports=PORTS,
        gpus=allocation.gpus,
        start_limit_s=START_LIMIT_S,
        command=shlex.join(command),
    )


def _directives(allocation: Allocation) -> list[str]:
    asked = {"time": allocation.time, "partition": allocation.partition, "account": allocation.account}
    for name, value in asked.items():
        if any(letter.isspace() for letter in value):
            raise BadInput(f"`--{name}` must be one word: got {value!r}.")
    return [
        "--job-name=specsweep",
        "--output=specsweep-%j.log",
        f"--nodes={allocation.nodes}",
        "--ntasks-per-node=1",
        "--exclusive",
        "--requeue",
        f"--signal=B:INT@{STOP_BEFORE_END_S}",  # as Ctrl-C: the running cell ends, the rest waits for the next run
        *([f"--gpus-per-node={allocation.gpus}"] if allocation.gpus else []),
        *(f"--{name}={value}" for name, value in asked.items() if value),
    ]


def submit_script(script: str) -> str:
    """Hand the script to sbatch; what sbatch says."""
    if not shutil.which("sbatch"):
        raise BadInput(
            "Submitting needs Slurm's `sbatch`, which is not on PATH. Use --print here, and run sbatch where Slurm is."
        )
    return hand_to(["sbatch"], script)
