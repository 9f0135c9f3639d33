"""Owns the types of what is recorded, and the version of their schema. Does not own files, Arrow types or metrics.

Standard library only, so that everything may import it. All times of a cell are nanoseconds on one monotonic clock, counted
from the cell's start; one UTC stamp per row says when that was.

History of the schema
    1   first version
    2   `ScoredRow`, `CellRow.scored_error`; no `CellRow.acceptance_source`, which the views tell;
        `RequestRow.n_thinking_tokens` and `output_valid`
    3   `TelemetryRow`: temperature, energy, throttling, ECC and Xid errors, and what others do on the GPU
    4   `DecisionRow`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

SCHEMA_VERSION = 4

OK = "ok"
FAILED = "failed"
NOT_MEASURED = "not_measured"


@dataclass(frozen=True)
class SessionRow:
    """One life of an engine: what was started, where, with which versions, and how it ended."""

    session_id: str
    invocation_id: str
    deployment_id: str
    deployment_json: str  # every field, defaults too
    status: str  # "ok" (was ready) | "failed" (never was, or its worker died)
    started_at: str  # UTC, ISO 8601
    ready_s: float | None = None  # from process start to the first good health check; None = never
    ended_s: float | None = None  # from the session's start to the end of the engine's process tree
    error_kind: str = ""
    error: str = ""  # message, then the tail of the engine's log
    engine_version: str = ""
    effective_config_json: str = "{}"  # what the engine says that it runs with
    simulated: bool = False
    weights_bytes: int | None = None  # of target and draft together unless `draft_weights_bytes` is there
    draft_weights_bytes: int | None = None
    kv_capacity_tokens: int | None = None
    peak_memory_bytes: int | None = None
    node: str = ""
    host_json: str = "{}"  # CPU, memory, OS, kernel
    gpus_json: str = "[]"  # name, uuid, memory, driver of each assigned GPU
    versions_json: str = "{}"  # python, ray, libraries of the worker and of the engine
    git_commit: str = ""
    git_dirty: bool | None = None
    log: str = ""  # path of the engine's log, relative to the run
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class CellRow:
    """One try at a cell. Written last: a try exists if and only if its row does."""

    cell_id: str
    attempt: int  # from 1
    session_id: str  # "" for a cell that no session got to
    invocation_id: str
    deployment_id: str
    pair_id: str  # the same for a speculative cell and its baseline
    position: int  # in the session, from 0
    status: str  # OK | FAILED | NOT_MEASURED
    cell_json: str  # every field, defaults too
    started_at: str = ""  # UTC, ISO 8601
    duration_ns: int = 0  # from the first send to the last byte of the last answer
    error_kind: str = ""
    error: str = ""
    caches_reset: bool | None = None  # None = the engine has none
    counters_before: Mapping[str, float] = field(default_factory=dict)  # raw, cumulative since engine start
    counters_after: Mapping[str, float] = field(default_factory=dict)
    clock: str = "monotonic"  # whose stamps the chunks carry: "monotonic" | "kernel"
    clock_stepped: bool = False  # the wall clock jumped during the cell
    late_send_ns: Sequence[int] = ()  # sent − scheduled of every request; above 100,000 of a sample, with the latest of all
    merged_reads: int = 0  # reads that found more than one chunk waiting
    loop_lag_ns_max: int = 0
    client_cpu_share: float = 0.0  # CPU seconds of the client / duration
    load_average: float | None = None  # of the node, at the cell's start
    scored_error: str = ""  # why the untimed pass with log-probabilities brought less than it was asked for
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class RequestRow:
    """One turn of one conversation of a cell, as seen by the client and as told by the engine."""

    cell_id: str
    attempt: int
    index: int  # of the conversation within the cell, from 0
    turn: int  # from 0
    question_id: str
    category: str
    sub_category: str
    prompt_tokens: int
    prompt_hash: str  # of the token ids: equal prompts, equal hash
    t_sched_ns: int  # when the load said to send
    t_sent_ns: int  # when the last byte of the request was handed to the kernel
    chunk_gap_ns: Sequence[int] = ()  # to the chunk before; the first from `t_sent_ns`
    chunk_tokens: Sequence[int] = ()
    step_drafted: Sequence[int] = ()  # [] = the engine does not tell steps
    step_accepted: Sequence[int] = ()
    first_step_is_prefill: bool = False  # the first step only ended the prefill: nothing could be drafted
    last_step_is_cut: bool = False  # a stop (EOS or limit) cut the last step short
    output_ids: Sequence[int] = ()
    output_hash: str = ""
    n_thinking_tokens: int | None = None  # of the output, up to the mark that ends the thoughts; None = the model marks none
    output_valid: bool | None = None  # as JSON, SQL, ... that the prompt asked for; None = it asked for nothing of the kind
    engine_al: float | None = None  # the engine's own mean acceptance length of this request
    finish_reason: str = ""  # "stop" | "length" | "" (failed)
    error: str = ""  # "" = answered whole
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class ScoredRow:
    """An answer that was asked for once more after a sampled cell, untimed, with the target's log-probabilities."""

    cell_id: str
    attempt: int
    index: int  # from 0
    question_id: str  # its first turn
    category: str
    prompt_hash: str
    output_ids: Sequence[int] = ()
    logprobs: Sequence[float] = ()  # natural logarithms, one for each of `output_ids`; [] = the engine did not tell
    error: str = ""  # "" = answered whole
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class TelemetryRow:
    """One sample of one device while a cell ran. What a device does not tell is None."""

    cell_id: str
    attempt: int
    t_ns: int
    device: str  # "cpu" | "gpu0" ...
    utilisation: float | None = None  # share, 0 to 1
    memory_bytes: int | None = None  # of the engine's process tree (cpu), of the device (gpu)
    power_w: float | None = None
    clock_mhz: float | None = None
    temperature_c: float | None = None
    energy_j: float | None = None  # of the device since its driver was loaded: differences tell
    throttle_reasons: int | None = None  # NVML's bits of why its clock is below the highest; 0 and 1 (idle) are harmless
    ecc_corrected: int | None = None  # memory errors since its driver was loaded
    ecc_uncorrected: int | None = None
    xid: int | None = None  # a critical error of the device since the sample before, by NVIDIA's number
    other_processes: int | None = None  # that compute on it and are not of this session
    other_memory_bytes: int | None = None  # that those hold
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class DecisionRow:
    """What a search decided of one cell, or what it answered; all of a search's are written anew with each of its rounds."""

    search_id: str  # of the grid and the settings: the same command again has the same
    number: int  # from 0, in the order in which they were made
    round: int  # from 1: what is measured together
    action: str  # "measure" | "skip" | "answer"
    goal: str
    metric: str  # of the speed-ups that it is about
    question: str  # model, engine and workload, in words
    reason: str  # of an answer: the answer, in words
    presumed: str = ""  # of a skipped cell: "faster" or "slower" than its baseline, "not best", or "" for nothing
    cell_id: str = ""  # "" for an answer that names no cell
    deployment_id: str = ""
    pair_id: str = ""
    draft: str = ""
    k: int | None = None
    concurrency: int | None = None
    value: float | None = None  # of an answer: the speed-up or goodput that it rests on, with its interval
    low: float | None = None
    high: float | None = None
    pays_to: int | None = None  # of a crossover: the loads on both sides of it; null = there is none on that side
    costs_from: int | None = None
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class CellBatch:
    """Rows of a try at a cell that still runs. They count once its `CellResult` is recorded, and not before."""

    cell_id: str
    attempt: int
    part: int  # from 0, in the order of coming
    requests: Sequence[RequestRow] = ()
    telemetry: Sequence[TelemetryRow] = ()


@dataclass(frozen=True)
class CellResult:
    """How a try at a cell ended, with the rows that no batch brought; recording it commits those of its batches too."""

    cell: CellRow
    requests: Sequence[RequestRow] = ()
    telemetry: Sequence[TelemetryRow] = ()
    n_batches: int = 0  # that came before
    scored: Sequence[ScoredRow] = ()


@dataclass(frozen=True)
class Attempt:
    """What the planner needs to know of a recorded try."""

    cell_id: str
    attempt: int
    invocation_id: str
    deployment_id: str
    status: str
    duration_s: float


@dataclass(frozen=True)
class Start:
    """What the planner needs to know of a recorded engine start."""

    session_id: str
    invocation_id: str
    deployment_id: str
    status: str
    ready_s: float | None


@dataclass(frozen=True)
class History:
    """What is recorded of a run, as the planner sees it."""

    attempts: Sequence[Attempt] = ()
    starts: Sequence[Start] = ()
