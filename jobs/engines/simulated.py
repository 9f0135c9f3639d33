"""Owns the adapter of the simulated engine: what it supports and how it is started. Does not own what it plays.

It is for tests and planning: a real process with scripted times and acceptance (`jobs/engines/script.py`), and says so.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from jobs.engines.base import Launch, Offer, Site
from jobs.engines.own_host import OwnHost
from jobs.engines.script import make_script
from jobs.errors import BadInput, Unsupported
from jobs.spec import DRAFT_FIELDS, Cell, Deployment

METHODS = {method: Offer(run_on="any CPU") for method in DRAFT_FIELDS}


class SimulatedEngine(OwnHost):
    """Plays a script: every method, any batch, no model."""

    name = "simulated"
    methods = METHODS
    over_nodes = Offer(run_on="any CPU")

    def python(self, deployment: Deployment) -> str:
        return sys.executable

    def check(self, deployment: Deployment) -> None:
        draft, engine = deployment.draft, deployment.engine
        make_script(engine.args, draft.args)
        if draft.method not in DRAFT_FIELDS:
            raise Unsupported(f"`draft.method` must be known: got {draft.method!r}. Known: {', '.join(DRAFT_FIELDS)}.")
        if deployment.is_speculative and draft.k < 1:
            raise BadInput(f"`draft.k` must be at least 1 for {draft.method}: got {draft.k}.")
        if engine.batch < 1:
            raise BadInput(f"`engine.batch` must be at least 1: got {engine.batch}.")

    def check_cell(self, cell: Cell) -> None:
        """It plays everything."""

    def launch(self, deployment: Deployment, site: Site) -> Launch:
        if make_script(deployment.engine.args, deployment.draft.args).wrong_name:
            site = replace(site, nonce=f"not-{site.nonce}")
        how = super().launch(deployment, site)
        if site.meeting is None:
            return how
        return replace(how, argv=(*how.argv, "--meet", site.meeting.authority, "--rank", str(site.meeting.rank)))
