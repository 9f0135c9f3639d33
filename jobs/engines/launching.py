"""Owns what the command lines of engines that are not ours have in common. Does not own any engine's options. Pure."""

from __future__ import annotations

from jobs.engines.base import Site
from jobs.spec import Draft

SESSION = "nothing: every session sets it itself"
"""What to use instead of an option that no field sets."""


def drafter_of(draft: Draft) -> str:
    """The method that drafts, also where acceptance is only pretended."""
    return draft.drafter if draft.method == "synthetic" else draft.method


def visible(site: Site) -> dict[str, str]:
    """The devices that are ours, where the node has any."""
    return {"CUDA_VISIBLE_DEVICES": ",".join(site.gpus)} if site.gpus else {}
