"""Owns the command that every way of submitting sends, and what may travel with it. Does not own any way of submitting."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from jobs.errors import BadInput

ROOT = Path(__file__).resolve().parent.parent.parent

NOT_SHIPPED = (
    ".?*",  # .git, .venv, .venvs, .env, .netrc: nothing that a sweep needs begins with a dot
    "__pycache__",
    "/results",
    "/docs",
    "/tests",
    "/benchmarks",
    "*.egg-info",
    "*.pem",
    "*.key",
    "*.p12",
    "*.pfx",
    "*.kubeconfig",
    "id_rsa*",
    "id_ecdsa*",
    "id_ed25519*",
    "*credentials*",
    "*secret*",
    "auth_token*",
)
"""What stays here when the working tree is sent, as patterns of a .gitignore; what .gitignore names stays here too."""

PLAIN_PATH = re.compile(r"[\w./:@%~{}$-]+")


def sweep_command(
    overrides: Sequence[str], *, python: str = "python", script: str = "sweep.py", results: str = ""
) -> list[str]:
    """`python sweep.py` on the cluster that the job runs in, with results in `results` ("" = as the configuration says).

    What the user's own overrides say about the cluster and the results' folder stands.
    """
    chosen = {override.lstrip("+").partition("=")[0] for override in overrides}
    added = [] if "cluster" in chosen else ["cluster=ray"]
    if results and "run.dir" not in chosen:
        added.append(f"run.dir={_plain(results)}")
    return [python, script, *added, *overrides]


def _plain(results: str) -> str:
    if not PLAIN_PATH.fullmatch(results):
        raise BadInput(
            f"`--results` must be a path of letters, digits and ./:@%~-_: got {results!r}. Choose a plainer folder."
        )
    return results
