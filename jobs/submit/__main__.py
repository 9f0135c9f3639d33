"""Owns the command line of `python -m jobs.submit`. Does not own what the commands do.

Exit codes: with --follow those of the sweep (0 all measured, 1 some failed, 2 a mistake, 130 stopped); else 0, or 2 with one
line.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from jobs.errors import BadInput
from jobs.submit import kuberay, ray_jobs, slurm, values
from storage.command import OneLineParser, run_command


def main(argv: Sequence[str]) -> int:
    own, overrides = split_overrides(argv)

    def act() -> int:
        options = parser().parse_args(own)
        return int(options.run(options, overrides))

    return run_command(act)


def split_overrides(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """What is before the first `--` is ours, what is after it is the sweep's."""
    words = list(argv)
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


def parser() -> argparse.ArgumentParser:
    whole = OneLineParser(
        prog="python -m jobs.submit",
        description="A sweep as a cluster job. What follows `--` goes to sweep.py as it is.",
    )
    commands = whole.add_subparsers(required=True, metavar="COMMAND")
    _add_ray(commands)
    _add_slurm(commands)
    _add_kuberay(commands)
    for name, run, text in JOB_COMMANDS:
        command = _command(commands, name, run, f"{text} (Ray Jobs)")
        _add_address(command)
        if name != "list":
            command.add_argument("job", help="the id that `ray` printed")
        if name == "logs":
            command.add_argument("--follow", action="store_true", help="until the job ends; the exit code is the sweep's")
    return whole


def _command(commands: Any, name: str, run: Callable[..., int], text: str) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    command.set_defaults(run=run)
    return command


def _add_address(command: argparse.ArgumentParser) -> None:
    default = os.environ.get("RAY_API_SERVER_ADDRESS", "http://127.0.0.1:8265")
    command.add_argument("--address", default=default, help="of the cluster's dashboard (default: %(default)s)")


def _add_ray(commands: Any) -> None:
    command = _command(commands, "ray", _run_ray, "send the working tree to a Ray cluster and run the sweep there")
    _add_address(command)
    command.add_argument(
        "--follow", action="store_true", help="print the log until the job ends; the exit code is the sweep's"
    )
    command.add_argument("--results", default=ray_jobs.HOME_RESULTS, help="folder on the head (default: %(default)s)")
    command.add_argument(
        "--python", default="python", help="the head's Python that has SpecSweep's environment (default: %(default)s)"
    )
    command.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="for the sweep and its workers; no secrets: Ray shows them",
    )


def _add_slurm(commands: Any) -> None:
    command = _command(
        commands, "slurm", _run_slurm, "write one batch script that starts Ray over an allocation, and submit it"
    )
    command.add_argument("--print", action="store_true", dest="only_print", help="print the script; submit nothing")
    command.add_argument("--nodes", type=values.at_least(1, "--nodes"), default=1)
    command.add_argument("--gpus", type=values.at_least(0, "--gpus"), default=0, help="GPUs a node (default: none)")
    command.add_argument("--time", type=values.slurm_time("--time"), default="", help="HH:MM:SS, or as sbatch takes it")
    for name in ("partition", "account"):
        command.add_argument(f"--{name}", default="", help="as sbatch takes it")
    command.add_argument("--results", default="", help="folder that every node sees (default: results/ of this clone)")


def _add_kuberay(commands: Any) -> None:
    command = _command(commands, "kuberay", _run_kuberay, "write a RayJob manifest, for kubectl apply -f -")
    command.add_argument("--name", default="specsweep")
    command.add_argument("--namespace", type=values.kubernetes_label("--namespace"), default="default")
    command.add_argument("--head-image", required=True, help="built from docker/head")
    command.add_argument(
        "--worker", action="append", required=True, metavar="ENGINE=IMAGE", help="one group of pods; may be repeated"
    )
    _add_pods(command)
    command.add_argument("--apply", action="store_true", help="hand it to kubectl instead of printing it")


def _add_pods(command: argparse.ArgumentParser) -> None:
    def add(option: str, check: Callable[[str], Any], text: str, **more: Any) -> None:
        command.add_argument(option, type=check, help=text, **more)

    least, name = values.at_least, values.kubernetes_name
    add("--replicas", least(1, "--replicas"), "pods of each group (default: 1)", default=1)
    add("--gpus", least(0, "--gpus"), "GPUs of each worker pod (default: what the largest session of its engine takes)")
    add("--cpus", least(1, "--cpus"), "of each worker pod (default: none asked for)", default=0)
    add("--memory", values.quantity("--memory"), "of each worker pod, as Kubernetes takes it: 256Gi", default="")
    add("--results-claim", name("--results-claim"), "PersistentVolumeClaim for the results, or", default="")
    add("--results", str, "bucket for the results: s3://BUCKET/FOLDER", default="")
    secret = "Secret whose keys become environment variables of the pods; may be repeated"
    add("--secret", name("--secret"), secret, action="append", default=[])
    account = "of the pods: how a cloud gives them a bucket without a key"
    add("--service-account", name("--service-account"), account, default="")


def _run_ray(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    environment = dict(_pair("--env", item, "SPECSWEEP_CACHE=/scratch/specsweep") for item in options.env)
    job = ray_jobs.submit_job(
        options.address, overrides, results=options.results, python=options.python, environment=environment
    )
    _print(job)
    return ray_jobs.follow_job(options.address, job) if options.follow else 0


def _run_slurm(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    allocation = slurm.Allocation(options.nodes, options.gpus, options.time, options.partition, options.account)
    script = slurm.slurm_script(overrides, allocation, results=os.path.expanduser(options.results))  # noqa: PTH111 (s3://)
    _print(script.rstrip() if options.only_print else slurm.submit_script(script))
    return 0


def _run_kuberay(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    workers = kuberay.groups_of([_pair("--worker", item, "vllm=specsweep-vllm:0.1.0") for item in options.worker])
    pods = kuberay.Pods(
        name=options.name,
        namespace=options.namespace,
        head_image=options.head_image,
        workers=workers,
        replicas=options.replicas,
        cpus=options.cpus,
        memory=options.memory,
        results_claim=options.results_claim,
        results=options.results,
        secrets=options.secret,
        service_account=options.service_account,
    )
    kuberay.check_pods(overrides, pods)
    gpus = kuberay.checked_gpus(kuberay.largest_of_the_grid(overrides), workers, options.replicas)
    pods = replace(pods, gpus=gpus if options.gpus is None else dict.fromkeys(workers, options.gpus))
    text = kuberay.manifest(kuberay.rayjob(overrides, pods))
    _print(kuberay.apply_manifest(text) if options.apply else text.rstrip())
    return 0


def _pair(option: str, text: str, example: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise BadInput(f"`{option}` must be NAME=VALUE: got {text!r}. As in {example}.")
    return name, value


def _run_status(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    _print(ray_jobs.job_line(options.address, options.job))
    return 0


def _run_stop(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    asked = ray_jobs.stop_job(options.address, options.job)
    _print("asked to stop" if asked else "had ended already")
    return 0


def _run_logs(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    if options.follow:
        return ray_jobs.follow_job(options.address, options.job)
    _print(ray_jobs.job_log(options.address, options.job).rstrip())
    return 0


def _run_list(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    _print("\n".join(ray_jobs.job_lines(options.address)) or "no jobs")
    return 0


JOB_COMMANDS = (
    ("status", _run_status, "one line about a job"),
    ("stop", _run_stop, "stop a job; what it has measured stays"),
    ("logs", _run_logs, "print a job's log"),
    ("list", _run_list, "all submitted jobs, the newest first"),
)


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
