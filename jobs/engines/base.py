"""Owns the port that an engine adapter fills, and the facts that cross it. Does not own processes, HTTP or any engine.

An adapter is pure but for the calls that take an `Endpoint`. An engine is never imported: it is a child process in its own
interpreter or image, spoken to over loopback HTTP with prompts as token ids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from jobs.spec import Cell, Deployment, Sampling


@dataclass(frozen=True)
class Meeting:
    """Where the processes of an engine over several nodes find each other, and which of them this one is."""

    address: str  # of the node of rank 0
    port: int  # free there
    spare_port: int  # free there too, for engines that need two
    rank: int = 0  # 0 is the one that is spoken to
    own_address: str = ""  # of this rank's node, as the others reach it
    secret: str = field(default="", repr=False)  # that only the ranks know, for engines that let in who has it

    @property
    def authority(self) -> str:
        """address:port of the meeting."""
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


@dataclass(frozen=True)
class Site:
    """Where an engine is started: what the node decides, not the deployment."""

    port: int
    nonce: str  # the served model's name, which proves that it is our engine that answers; and the key to it
    model_dir: Path  # the target as a local folder
    draft_dir: Path | None  # the draft model as a local folder, where the method has one
    scratch: Path  # a folder that goes with the session
    gpus: tuple[str, ...] = ()  # the devices that are ours
    meeting: Meeting | None = None  # None = the engine is on one node

    @property
    def endpoint(self) -> Endpoint:
        """Where the engine answers us. Engines that can ask for a key are started to ask for this one."""
        return Endpoint("127.0.0.1", self.port, self.nonce, {"Authorization": f"Bearer {self.nonce}"})


@dataclass(frozen=True)
class Launch:
    """How to start an engine. `env` is added to a minimal environment, nothing is ever given to a shell."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    health_path: str = "/health"
    files: Mapping[str, str] = field(default_factory=dict)  # name → text, written into the scratch folder before the start


@dataclass(frozen=True)
class Endpoint:
    """Where a started engine answers."""

    host: str
    port: int
    model: str  # the name under which it serves: the session's nonce
    headers: Mapping[str, str] = field(default_factory=dict)
    tls: bool = False  # the certificate is always verified
    proxy: str = field(default="", repr=False)  # host:port of an HTTP proxy, user:password@ before it where it wants them
    ca_file: str = ""  # whom to trust; "" = whom the system trusts

    @property
    def authority(self) -> str:
        """host:port as URLs and `Host` have it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class EngineFacts:
    """What a started engine tells of itself. None = it does not tell."""

    version: str
    effective_config: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)  # libraries in its environment
    weights_bytes: int | None = None
    draft_weights_bytes: int | None = None
    kv_capacity_tokens: int | None = None
    peak_memory_bytes: int | None = None
    simulated: bool = False


@dataclass(frozen=True)
class Ask:
    """One turn as the engine gets it."""

    prompt_ids: Sequence[int]
    output_limit: int
    sampling: Sampling
    ignore_eos: bool = False
    seed: int = 0
    category: str = ""  # only the simulated engine looks at it
    json_schema: str = ""  # the text of the schema that the answer must keep; "" = free text
    wants_logprobs: bool = False  # the target's log-probability of each token; never asked for while the clock runs


@dataclass(frozen=True)
class Answer:
    """What the events of one stream say. `chunk_tokens[i]` belongs to event `chunk_events[i]` (index into the events)."""

    chunk_events: Sequence[int] = ()
    chunk_tokens: Sequence[int] = ()
    output_ids: Sequence[int] = ()
    step_drafted: Sequence[int] = ()
    step_accepted: Sequence[int] = ()
    first_step_is_prefill: bool = False
    last_step_is_cut: bool = False
    engine_al: float | None = None
    logprobs: Sequence[float] = ()  # natural logarithms, one for each of `output_ids`, where they were asked for
    finish_reason: str = ""
    error: str = ""  # what was wrong with the stream, in one line; "" = whole


class Dialect(Protocol):
    """How an engine family is spoken to: two pure functions."""

    def request(self, ask: Ask, endpoint: Endpoint) -> bytes:
        """The whole HTTP/1.1 request (head and body), ready for the socket; keep-alive."""

    def answer(self, events: Sequence[bytes]) -> Answer:
        """What the payloads of the server-sent events (without `data: `) of one whole stream say. Never raises."""


@dataclass(frozen=True)
class Offer:
    """What an engine has of one speculative method."""

    refusal: str = ""  # why it has not, in one sentence without a full stop; "" = it has
    until: str = ""  # the first version that has it no more; "" = none is known
    run_on: str = ""  # on what the contract suite ran it, as "0.32.0, CPU"; "" = not run


class Process(Protocol):
    """A started engine, to whoever watches and stops it: one process, several on several nodes, or one elsewhere."""

    @property
    def pid(self) -> int | None:
        """None = not on this machine."""

    def is_alive(self) -> bool:
        """Of several processes: whether all are."""

    def wait_ready(
        self, endpoint: Endpoint, health_path: str, timeout_s: float, should_stop: Callable[[], bool] = lambda: False
    ) -> float:
        """Block until it answers its health check; the seconds since its start. `EngineDidNotStart` when it does not."""

    def log_tail(self) -> str:
        """The last lines of its log."""

    def stop(self) -> bool:
        """End it all. Safe to call twice, from any thread; True = all gone."""


class Engine(Protocol):
    """One engine family."""

    @property
    def name(self) -> str:
        """As the registry has it."""

    @property
    def dialect(self) -> Dialect:
        """How it is spoken to."""

    @property
    def methods(self) -> Mapping[str, Offer]:
        """What it has of every method in `jobs.spec.DRAFT_FIELDS`."""

    @property
    def over_nodes(self) -> Offer:
        """Whether it is started over several nodes, a process on each."""

    def check(self, deployment: Deployment) -> None:
        """Raise `Unsupported` for what this engine cannot do, at plan time, naming the engines that can."""

    def check_cell(self, cell: Cell) -> None:
        """Raise `Unsupported` for sampling or structured output that cannot be had with this deployment, at plan time."""

    def launch(self, deployment: Deployment, site: Site) -> Launch | Endpoint:
        """The command line and environment of this deployment, or where it runs already. Starts and asks nothing."""

    def facts(self, deployment: Deployment, endpoint: Endpoint) -> EngineFacts:
        """Ask the running engine for its facts; raise `WrongEngine` when it is not ours or does not speculate as asked."""

    def check_identity(self, endpoint: Endpoint) -> None:
        """Raise `WrongEngine` when it is not ours that answers: asked before the first request and after each cell."""

    def counters(self, endpoint: Endpoint) -> dict[str, float]:
        """Raw counters since start: `drafts, draft_tokens, accepted_tokens, accepted_at_0..k-1, output_tokens`."""

    def reset(self, endpoint: Endpoint) -> bool | None:
        """Empty the caches between cells. False = could not; None = the engine has none that outlive a request."""
