"""Owns sweeps as Ray Jobs: sent with the working tree, followed, asked about and stopped. Does not own the cluster.

The client is Ray's own, and finds the cluster's token by itself.
"""

from __future__ import annotations

import asyncio
import http.client
import re
import shlex
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from json import JSONDecodeError
from pathlib import Path
from typing import Any

from jobs.errors import BadInput
from jobs.submit.ray_address import TOKEN_PLACES, believe_in_tokens, check_address, check_dashboard, check_token, not_ray
from jobs.submit.sweep_command import NOT_SHIPPED, ROOT, sweep_command
from jobs.submit.values import first_line

HOME = "${oc.env:HOME}"
HOME_RESULTS = f"{HOME}/specsweep/results"
"""Resolved by the sweep, on the head. The job's own folder is a cache that Ray may delete."""

STOPPED_EXIT = 130  # as after Ctrl-C
NOT_RAYS = (http.client.HTTPException, LookupError, TypeError, AttributeError, JSONDecodeError)


def submit_job(
    address: str,
    overrides: Sequence[str],
    *,
    results: str = HOME_RESULTS,
    python: str = "python",
    environment: Mapping[str, str] | None = None,
    root: Path = ROOT,
) -> str:
    """Send the working tree and start the sweep on the head; the id of the job. Ray shows `environment` to whoever asks."""
    there = re.sub(r"^~(?=/|$)", HOME, results)  # the head's home, not ours
    entrypoint = shlex.join(sweep_command(overrides, python=python, results=there))
    variables = {"PYTHONUNBUFFERED": "1", **(environment or {})}
    sent = {"working_dir": str(root), "excludes": list(NOT_SHIPPED), "env_vars": variables}
    with _client(address) as client:
        if is_open(address):
            _say(f"Warning: {address} answers without a token: whoever reaches it can run code there. See docs/security.md.")
        return str(client.submit_job(entrypoint=entrypoint, runtime_env=sent))


def follow_job(address: str, job_id: str) -> int:
    """Print the job's log until it ends; the exit code of its command. After Ctrl-C the job goes on."""
    with _client(address) as client:
        try:
            asyncio.run(_print_log(client, job_id))
        except KeyboardInterrupt:
            _say("\nNo longer following; the job goes on. `list`, `logs` and `stop` reach it.")
            raise
        return exit_code(client.get_job_info(job_id))


def exit_code(job: Any) -> int:
    """The code of the job's own command; Ray's client alone tells only 0 or 1."""
    if job.status == "STOPPED":
        return STOPPED_EXIT
    if job.status == "SUCCEEDED":
        return 0
    return int(job.driver_exit_code or 1)


def job_log(address: str, job_id: str) -> str:
    with _client(address) as client:
        return str(client.get_job_logs(job_id))


def stop_job(address: str, job_id: str) -> bool:
    """Ask the job to stop; False when it had ended already."""
    with _client(address) as client:
        return bool(client.stop_job(job_id))


def job_line(address: str, job_id: str) -> str:
    with _client(address) as client:
        return line_of(client.get_job_info(job_id))


def job_lines(address: str) -> list[str]:
    """One line a job that was submitted, the newest first."""
    with _client(address) as client:
        jobs = [job for job in client.list_jobs() if job.submission_id]
    return [line_of(job) for job in sorted(jobs, key=lambda job: job.start_time or 0, reverse=True)]


def line_of(job: Any) -> str:
    code = "" if job.driver_exit_code is None else f"  exit {job.driver_exit_code}"
    return f"{job.submission_id}  {job.status}{code}  {job.entrypoint}"


def is_open(address: str) -> bool:
    """Whether the cluster lists its jobs to a caller without a token."""
    try:
        with urllib.request.urlopen(f"{address.rstrip('/')}/api/jobs/", timeout=10) as answer:
            return bool(answer.status == 200)
    except (http.client.HTTPException, ValueError, OSError):
        return False


@contextmanager
def _client(address: str) -> Iterator[Any]:
    """Ray's client; what it raises becomes one line, and so does whatever else answers there."""
    check_address(address)
    check_token()
    believe_in_tokens()
    import aiohttp  # comes with ray[default]
    from ray.exceptions import AuthenticationError, RayError
    from requests import Timeout

    from jobs.submit.ray_client import RayClient  # only who asks Ray pays for it

    check_dashboard(address)
    try:
        yield RayClient(address)
    except (BadInput, BrokenPipeError):  # of ours, and of who reads what we print
        raise
    except AuthenticationError as error:
        raise BadInput(f"{address} needs the cluster's token: {TOKEN_PLACES}.") from error
    except aiohttp.WSServerHandshakeError as error:
        raise BadInput(
            f"{address} refused to show that log: {error.status}. `list` shows the jobs that it knows."
        ) from error
    except (RayError, RuntimeError) as error:  # Ray's own words
        raise BadInput(f"{address} refused: {first_line(str(error))}") from error
    except (Timeout, asyncio.TimeoutError) as error:
        raise not_ray(address, "it answered at first, and then no more") from error
    except NOT_RAYS as error:
        raise not_ray(address, f"its answer is not Ray's ({type(error).__name__})") from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise not_ray(address, first_line(str(error))) from error


async def _print_log(client: Any, job_id: str) -> None:
    async for text in client.tail_job_logs(job_id):
        sys.stdout.write(text)
        sys.stdout.flush()


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
