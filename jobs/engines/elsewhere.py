"""Owns what stands for the process of an engine that runs already, somewhere: nothing to start, to watch or to stop."""

from __future__ import annotations

import time
from collections.abc import Callable

from jobs.engines import control
from jobs.engines.base import Endpoint
from jobs.engines.process import POLL_S
from jobs.errors import EngineDidNotStart, EngineDied


class Elsewhere:
    """Fills the place of an `EngineProcess`."""

    pid: int | None = None

    def is_alive(self) -> bool:
        """As far as anybody here can tell: whether it answers is asked apart."""
        return True

    def wait_ready(
        self, endpoint: Endpoint, health_path: str, timeout_s: float, should_stop: Callable[[], bool] = lambda: False
    ) -> float:
        """Block until it answers; the seconds that took. `EngineDidNotStart` when it does not.

        It runs already: one that takes no connection is not waited for, only one that is busy.
        """
        started_s = time.monotonic()
        while not _answers(endpoint, health_path):
            waited_s = time.monotonic() - started_s
            if should_stop() or waited_s > timeout_s:
                raise EngineDidNotStart(
                    f"the server of `engine.url` must answer {health_path}: {endpoint.authority} did not "
                    f"within {waited_s:.0f} s (engine.start_timeout_s={timeout_s:g})."
                )
            time.sleep(POLL_S)
        return time.monotonic() - started_s

    def log_tail(self) -> str:
        return ""

    def stop(self) -> bool:
        return True


def _answers(endpoint: Endpoint, health_path: str) -> bool:
    try:
        return control.answers_well(endpoint, health_path)
    except EngineDied as failure:
        raise EngineDidNotStart(
            f"the server of `engine.url` must run already: {endpoint.authority} takes no connection. Asked there, "
            f"{failure} Start it, or name another engine.url."
        ) from failure
