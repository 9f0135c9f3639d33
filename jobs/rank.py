"""Owns one further rank of an engine over several nodes, on its node: started, watched, ended. Knows no Ray.

Does not own rank 0, which is the session's own (`session`), or what the loss of a rank means (`engines.spread`).
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from jobs.control import SessionControl
from jobs.engines import engine_named
from jobs.engines.base import Launch, Meeting
from jobs.engines.spread import RankEnd
from jobs.errors import SpecSweepError
from jobs.provenance import node_name
from jobs.session import end_of
from jobs.spec import Deployment
from jobs.starting import in_its_environment, models_for, site_for, start_process, wait_for_gpus


@dataclass(frozen=True)
class RankOrder:
    """What a rank is told by its session."""

    deployment: Deployment
    nonce: str
    meeting: Meeting  # as this rank has it


def prepare_rank(deployment: Deployment, rank: int) -> RankEnd | None:
    """The models on this rank's disk; returns why that cannot be."""
    try:
        models_for(deployment)
    except SpecSweepError as fault:
        return RankEnd(rank, f"rank {rank} on {node_name()} did not start: {fault}")
    return None


def run_rank(order: RankOrder, gpus: tuple[str, ...], control: SessionControl) -> RankEnd:
    """The whole life of a rank; returns when its process is gone, why, and with its log."""
    scratch = Path(tempfile.mkdtemp(prefix="specsweep-"))
    log = scratch / "engine.log"
    rank = order.meeting.rank
    try:
        with log.open("a+b") as reader:  # it goes with the scratch folder: what is open can still be read
            how = _ending_of(order, gpus, control, log)
            return RankEnd(rank, f"rank {rank} on {node_name()} {how}", end_of(reader))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _ending_of(order: RankOrder, gpus: tuple[str, ...], control: SessionControl, log: Path) -> str:
    """How its process ended, or why it did not start: the session makes a row of it."""
    try:
        deployment = in_its_environment(order.deployment)
        engine = engine_named(deployment.engine.name)
        engine.check(deployment)
        site = site_for(models_for(deployment), order.nonce, log.parent, gpus, order.meeting)
        how = engine.launch(deployment, site)
        assert isinstance(how, Launch), "an engine that runs already has no ranks"
        wait_for_gpus(site, control)
        process = start_process(how, site, log, f"{order.nonce}-rank{order.meeting.rank}", control)
    except SpecSweepError as fault:
        return f"did not start: {fault}"
    try:
        return f"ended with {process.wait()}"
    finally:
        process.stop()
