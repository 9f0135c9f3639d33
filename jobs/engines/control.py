"""Owns the control calls to a running engine: health, facts, counters, resets. Does not own the timed traffic (`jobs/load`).

The calls go through the proxy of the endpoint or through none, whatever the environment says. What goes wrong is an
`EngineFailed`.
"""

from __future__ import annotations

from typing import Any

import httpx

from jobs.engines.base import Endpoint
from jobs.errors import EngineDied, EngineFailed, EngineHung, WrongEngine
from jobs.load.proxy import Proxy
from jobs.load.sealed import context_of

TIMEOUT_S = 30.0  # an engine in the middle of a long step answers late


def get_json(endpoint: Endpoint, path: str, *, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
    """The JSON object at that path; `WrongEngine` when it is none."""
    return _as_object(call(endpoint, "GET", path, timeout_s=timeout_s))


def post_json(endpoint: Endpoint, path: str, *, body: object = None, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
    """The JSON object that a POST to that path brings, empty without a body; `WrongEngine` when it is none."""
    return _as_object(call(endpoint, "POST", path, body=body, timeout_s=timeout_s))


def call(endpoint: Endpoint, method: str, path: str, *, body: object = None, timeout_s: float = TIMEOUT_S) -> httpx.Response:
    """The 2xx answer; `EngineHung` when it is late, `EngineDied` without a connection.

    `WrongEngine` when it refuses our key, `EngineFailed` for another status.
    """
    try:
        answer = _request(endpoint, method, path, timeout_s, body)
    except httpx.TimeoutException:
        raise EngineHung(f"the engine must answer {method} {path} within {timeout_s:g} s: it did not.") from None
    except httpx.TransportError as failure:
        raise _no_connection(method, path, failure) from None
    if answer.status_code in (401, 403):
        raise WrongEngine(
            f"the engine on port {endpoint.port} must serve as {endpoint.model!r}: it refuses our key with "
            f"{answer.status_code}. Another server has that port, or the key is another."
        )
    if not answer.is_success:
        raise EngineFailed(
            f"the engine must answer {method} {path} with 2xx: got {answer.status_code} {answer.text[:200]!r}."
        )
    return answer


def is_healthy(endpoint: Endpoint, path: str, *, timeout_s: float = 2.0) -> bool:
    """Does a GET of that path bring a 2xx? Never raises for what is wrong with the engine."""
    try:
        return answers_well(endpoint, path, timeout_s=timeout_s)
    except EngineDied:
        return False


def answers_well(endpoint: Endpoint, path: str, *, timeout_s: float = 2.0) -> bool:
    """Does a GET of that path bring a 2xx in time? `EngineDied` without a connection; one that is cut is no answer."""
    try:
        return _request(endpoint, "GET", path, timeout_s).is_success
    except (httpx.TimeoutException, httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError):
        return False
    except httpx.TransportError as failure:
        raise _no_connection("GET", path, failure) from None


def _no_connection(method: str, path: str, failure: httpx.TransportError) -> EngineDied:
    return EngineDied(f"the engine must answer {method} {path}: no connection ({failure}).")


def _request(endpoint: Endpoint, method: str, path: str, timeout_s: float, body: object = None) -> httpx.Response:
    url = f"{'https' if endpoint.tls else 'http'}://{endpoint.authority}{path}"
    headers = dict(endpoint.headers)
    with httpx.Client(trust_env=False, timeout=timeout_s, headers=headers, **_way(endpoint)) as client:
        return client.request(method, url, json=body)


def _way(endpoint: Endpoint) -> dict[str, Any]:
    """Whom to trust and what to go through, in httpx's words."""
    way: dict[str, Any] = {"verify": False}  # without TLS: to load whom the system trusts takes longer than the call
    try:
        if endpoint.tls:
            way["verify"] = context_of(endpoint.ca_file)
        if endpoint.proxy:
            proxy = Proxy.of(endpoint.proxy)
            headers = {"Proxy-Authorization": proxy.authorization} if proxy.authorization else {}
            way["proxy"] = httpx.Proxy(f"http://{proxy.authority}", headers=headers)
    except OSError as flaw:
        raise EngineFailed(f"the way to {endpoint.authority} must be usable: {flaw}.") from None
    return way


def _as_object(answer: httpx.Response) -> dict[str, Any]:
    try:
        value = answer.json()
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise WrongEngine(
            f"{answer.url} must answer with a JSON object: got {answer.text[:200]!r}. Another server has that port."
        )
    return value
