"""Owns what the adapters of our own host share: its command line, facts, counters and reset.

Does not own what a backend supports (`check`), or the host's process side (`jobs/engines/host`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from jobs.engines import control
from jobs.engines.base import Endpoint, EngineFacts, Launch, Site
from jobs.engines.dialects import HostDialect
from jobs.engines.host import NAME
from jobs.errors import WrongEngine
from jobs.spec import Deployment

PROJECT = Path(__file__).resolve().parents[2]
"""The project's root: the host's `PYTHONPATH`, and what `engine.python` is relative to."""


class OwnHost:
    """An engine served by `python -m jobs.engines.host`; subclasses add `name` (also the backend's), `python`, `check`."""

    name: str
    dialect = HostDialect()

    def python(self, deployment: Deployment) -> str:
        """The interpreter when `engine.python` is empty."""
        raise NotImplementedError

    def environment(self, deployment: Deployment, site: Site) -> Mapping[str, str]:
        """What the backend needs in its environment, besides the project's code."""
        return {}

    def launch(self, deployment: Deployment, site: Site) -> Launch:
        return Launch(
            argv=(
                interpreter(deployment.engine.python or self.python(deployment)),
                *("-m", "jobs.engines.host", "--backend", self.name, "--port", str(site.port)),
                *("--config", json.dumps(host_config(deployment, site))),
            ),
            env={"PYTHONPATH": str(PROJECT), NAME: site.nonce, **self.environment(deployment, site)},
        )

    def facts(self, deployment: Deployment, endpoint: Endpoint) -> EngineFacts:
        told = control.get_json(endpoint, "/facts")
        check_name(told, endpoint)
        check_speculation(told, deployment)
        asked, found = deployment.engine.version, told.get("version")
        if asked not in ("", found):
            raise WrongEngine(f"{self.name} must have the version of `engine.version`, {asked}: it says {found}.")
        known = {item.name for item in fields(EngineFacts)}
        return EngineFacts(**{key: value for key, value in told.items() if key in known})

    def check_identity(self, endpoint: Endpoint) -> None:
        check_name(control.get_json(endpoint, "/facts"), endpoint)

    def counters(self, endpoint: Endpoint) -> dict[str, float]:
        return {key: float(value) for key, value in control.get_json(endpoint, "/counters").items()}

    def reset(self, endpoint: Endpoint) -> bool | None:
        answer: bool | None = control.post_json(endpoint, "/reset").get("reset")
        return answer


def interpreter(python: str) -> str:
    """The interpreter as an absolute path. Its links are not followed: a venv's interpreter is one."""
    return str(PROJECT / python)


def host_config(deployment: Deployment, site: Site) -> dict[str, Any]:
    """What the host's backend is given, see `jobs/engines/host/__main__.py`."""
    return {
        "model": asdict(deployment.model),
        "engine": asdict(deployment.engine),
        "draft": asdict(deployment.draft),
        "model_dir": str(site.model_dir),
        "draft_dir": None if site.draft_dir is None else str(site.draft_dir),
    }


def check_speculation(told: Mapping[str, Any], deployment: Deployment) -> None:
    """Raise `WrongEngine` unless it speculates as asked."""
    config = told.get("effective_config") or {}
    for key, asked in (("method", deployment.draft.method), ("k", deployment.draft.k)):
        if config.get(key) != asked:
            raise WrongEngine(f"the engine must run with draft.{key} = {asked!r}: it says {config.get(key)!r}.")


def check_name(told: Mapping[str, Any], endpoint: Endpoint) -> None:
    """Raise `WrongEngine` unless it serves under our name."""
    if told.get("model") != endpoint.model:
        raise WrongEngine(
            f"the engine on port {endpoint.port} must serve as {endpoint.model!r}: it serves as {told.get('model')!r}. "
            "Another server has that port."
        )
