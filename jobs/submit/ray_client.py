"""Owns Ray's client of jobs with a deadline for each request, which Ray's own has not. Does not own what is asked."""

from __future__ import annotations

from typing import Any

from ray.job_submission import JobSubmissionClient

REQUEST_LIMIT_S = 60.0  # for each step of it: the connection, a part that is sent, a part of the answer


class RayClient(JobSubmissionClient):  # type: ignore[misc]
    """A late answer is a `requests.Timeout`."""

    def _do_request(self, method: str, endpoint: str, **options: Any) -> Any:
        return super()._do_request(method, endpoint, timeout=REQUEST_LIMIT_S, **options)
