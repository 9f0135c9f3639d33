"""Owns how a process of an engine comes up on a node: its interpreter, its models, its devices. For rank 0 and for others.

Does not own what is done with it (`session`, `rank`), or the process itself (`engines.process`).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jobs.control import SessionControl
from jobs.engines.base import Launch, Meeting, Site
from jobs.engines.process import EngineProcess, free_port
from jobs.hygiene import device_environment, wait_until_free
from jobs.models import resolve
from jobs.provenance import gpu_facts
from jobs.spec import Deployment


@dataclass(frozen=True)
class Models:
    """The models of a deployment on this node's disk."""

    target: Path
    draft: Path | None  # None = the draft has no model of its own


def in_its_environment(deployment: Deployment) -> Deployment:
    """With a `runtime_env`, Ray has made an environment for this worker: the engine runs in it too."""
    engine = deployment.engine
    if not engine.runtime_env or engine.python:
        return deployment
    return replace(deployment, engine=replace(engine, python=sys.executable))


def models_for(deployment: Deployment) -> Models:
    """Brings them to this node's disk where they are not there yet, which takes as long as a download does."""
    draft = deployment.draft
    target = resolve(deployment.model.path, deployment.model.revision)
    is_ours = not deployment.engine.url
    return Models(target, resolve(draft.model, draft.revision, "draft.model") if draft.model and is_ours else None)


def site_for(models: Models, nonce: str, scratch: Path, gpus: tuple[str, ...], meeting: Meeting | None = None) -> Site:
    """The site on this node, its port free a moment ago: asked for last, when nothing else has to be waited for."""
    return Site(free_port(), nonce, models.target, models.draft, scratch, gpus, meeting)


def wait_for_gpus(site: Site, control: SessionControl) -> list[dict[str, Any]]:
    """What they are, once what a session before left on them is gone: what is still used then is somebody else's."""
    wait_until_free(site.gpus, lambda: control.is_killed)
    return gpu_facts(site.gpus)


def start_process(how: Launch, site: Site, log: Path, marker: str, control: SessionControl) -> EngineProcess:
    """A started engine, which sees the GPUs of the site only (`wait_for_gpus` comes before); `control` may end it."""
    how = replace(how, env={**how.env, **device_environment(site.gpus)})
    process = EngineProcess.start(how, log, marker, site.scratch)
    control.own(process.stop)
    return process
