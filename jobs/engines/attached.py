"""Owns the adapter of an engine that runs already: a server that speaks OpenAI's completions as vLLM does. Starts nothing.

What the fields of engine and draft say of it is the user's word, and recorded as such; its name, and whether it speculates,
are asked of the server itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar
from urllib.parse import SplitResult, urlsplit

from jobs.engines import control
from jobs.engines.base import Endpoint, EngineFacts, Offer, Site
from jobs.engines.dialect_openai import OpenAIDialect
from jobs.engines.own_host import check_name
from jobs.engines.prometheus import Sample
from jobs.engines.rules import Rule, enforce, one_of
from jobs.engines.vllm_facts import capacity_of, counters_of, identity_of, samples_at
from jobs.errors import BadInput, EngineDied, EngineFailed, EngineHung, WrongEngine
from jobs.spec import DRAFT_FIELDS, Cell, Deployment, Draft, Engine

T = TypeVar("T")
ARGS = ("ca_file", "proxy_env", "unproven")
"""Whom to trust, the environment variable with the proxy, and whether to believe in a speculation that cannot be seen."""
PORTS = {"http": 80, "https": 443}
RUN_ON = Offer(run_on="vLLM 0.32.0 on CPU")
METHODS = {method: Offer() for method in DRAFT_FIELDS} | {"none": RUN_ON, "ngram": RUN_ON}


class AttachedEngine:
    """Nothing is started and nothing is stopped."""

    name = "attached"
    dialect = OpenAIDialect()
    methods = METHODS
    over_nodes = Offer("it is not started at all")

    def check(self, deployment: Deployment) -> None:
        enforce((), rules(deployment.engine, deployment.draft))

    def check_cell(self, cell: Cell) -> None:
        """What the server cannot do, its answers tell."""

    def launch(self, deployment: Deployment, site: Site) -> Endpoint:
        """Where it runs; the key is read here, on the node that asks, and kept nowhere."""
        engine, url = deployment.engine, parts_of(deployment.engine.url)
        key = secret_of(engine.api_key_env, "engine.api_key_env")
        return Endpoint(
            host=url.hostname or "",
            port=url.port or PORTS[url.scheme],
            model=engine.served_model,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            tls=url.scheme == "https",
            proxy=secret_of(str(engine.args.get("proxy_env", "")), "engine.args.proxy_env"),
            ca_file=str(engine.args.get("ca_file", "")),
        )

    def facts(self, deployment: Deployment, endpoint: Endpoint) -> EngineFacts:
        self.check_identity(endpoint)
        version = told(lambda: str(control.get_json(endpoint, "/version")["version"]), "")
        samples = self.samples(endpoint)
        proof = proven(deployment, counters_of(samples))
        draft = deployment.draft
        return EngineFacts(
            version=version or "not told",
            effective_config={"method": draft.method, "k": draft.k, "speculation": proof, "url": deployment.engine.url},
            kv_capacity_tokens=capacity_of(samples),
        )

    def check_identity(self, endpoint: Endpoint) -> None:
        check_name(identity_of(endpoint), endpoint)

    def counters(self, endpoint: Endpoint) -> dict[str, float]:
        return counters_of(self.samples(endpoint))

    def samples(self, endpoint: Endpoint) -> list[Sample]:
        """Its metrics; none where it keeps them to itself."""
        nothing: list[Sample] = []
        return told(lambda: samples_at(endpoint), nothing)

    def reset(self, endpoint: Endpoint) -> bool | None:
        """Few servers let anybody empty their caches."""
        return told(lambda: control.call(endpoint, "POST", "/reset_prefix_cache").is_success, False)


def rules(engine: Engine, draft: Draft) -> Iterator[Rule]:
    """What the values must be."""
    yield (
        is_address(engine.url),
        f"`engine.url` must be the address of a running server, as http://HOST:PORT: got {engine.url!r}.",
    )
    yield bool(engine.served_model), "`engine.served_model` must be the name under which the server serves: got ''."
    for name in engine.args:
        yield one_of("engine.args", name, ARGS)
    ca_file = str(engine.args.get("ca_file", ""))
    yield not ca_file or Path(ca_file).is_file(), f"`engine.args.ca_file` must be a file: got {ca_file!r}."
    unproven = engine.args.get("unproven", False)
    yield isinstance(unproven, bool), f"`engine.args.unproven` must be true or false: got {unproven!r}."
    yield not draft.args, f"`draft.args` must be empty for attached, which starts nothing: got {', '.join(draft.args)}."
    proxy_env = str(engine.args.get("proxy_env", ""))
    for key, variable in (("engine.api_key_env", engine.api_key_env), ("engine.args.proxy_env", proxy_env)):
        is_set = not variable or variable in os.environ
        yield is_set, f"`{key}` must name a variable of the environment: got {variable!r}. Set it first."


def parts_of(url: str) -> SplitResult:
    """The address in its parts."""
    return urlsplit(url.removesuffix("/").removesuffix("/v1"))


def is_address(url: str) -> bool:
    """Whether it is a scheme, a host and perhaps a port, and nothing else."""
    try:
        parts = parts_of(url)
        port = parts.port
    except ValueError:
        return False
    plain = not (parts.path or parts.query or parts.fragment or parts.username)
    return parts.scheme in PORTS and bool(parts.hostname) and port != 0 and plain


def secret_of(variable: str, key: str) -> str:
    """What the variable holds; "" when none is named. `BadInput` where it is not set, or would break a header."""
    value = os.environ.get(variable, "") if variable else ""
    if variable and (not value or not value.isprintable() or not value.isascii()):
        raise BadInput(f"`{key}` must name a variable with one plain line: {variable} has none on this node. Set it there.")
    return value


def proven(deployment: Deployment, counters: dict[str, float]) -> str:
    """How it is known that the server speculates as the user says; `WrongEngine` when it says otherwise, or nothing."""
    if not counters:
        if deployment.is_speculative and not deployment.engine.args.get("unproven"):
            raise WrongEngine(
                f"the server must show that it speculates ({deployment.draft.method}): it has no counters at /metrics. "
                "engine.args.unproven=true takes your word for it, and says so in the session's row."
            )
        return "not told"
    if deployment.is_speculative != ("drafts" in counters):
        found = "speculates" if "drafts" in counters else "does not speculate"
        raise WrongEngine(
            f"the server must run with draft.method = {deployment.draft.method!r}: by its counters it {found}. "
            "Name the draft that it runs with, or another engine.url."
        )
    return f"by its counters; draft.k = {deployment.draft.k} is the user's word" if deployment.is_speculative else "none"


def told(ask: Callable[[], T], otherwise: T) -> T:
    """What the server answers, or `otherwise` where it has no such call. A server that is gone or hangs is no answer."""
    try:
        return ask()
    except (EngineDied, EngineHung):
        raise
    except (EngineFailed, KeyError):
        return otherwise
