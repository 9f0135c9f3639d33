"""Owns the vocabulary: what a cell is, and what a deployment is.

Does not own defaults of a site (conf/), the expansion of a grid, or how anything runs. The config dataclasses are plain,
not frozen: Hydra cannot compose frozen ones. Treat them as values all the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from jobs.identity import NOT_IN_ID, default_of, digest

DEVICES = ("auto", "cpu", "cuda")
SCHEDULES = ("constant", "batch_size", "acceptance", "heuristic", "heuristic_transient")
"""Of draft lengths: `k` tokens always; by the batch size (`k_by_batch`); by what was accepted, in the engine's own way
or as transformers does it (for good, or anew with each request)."""

ENTROPIES = ("", "low", "mixed", "high")
"""How hard to foresee the answers are: of copying, of both, of open continuation; "" = as the prompts are."""


@dataclass
class Model:
    """The target model. `path` is a local folder, a hub id, or `package:NAME/FILE.gguf` (a file inside a Python package)."""

    name: str = field(default="", metadata=NOT_IN_ID)
    path: str = ""
    revision: str = ""


_LENGTH = ("k", "schedule", "k_by_batch")
_MODEL = ("model", "revision", "quantization", "dummy_weights", "vocab_size", "tp")
DRAFT_FIELDS: dict[str, tuple[str, ...]] = {
    "none": (),
    "ngram": (*_LENGTH, "ngram_max", "ngram_min"),
    "suffix": ("k",),
    "draft_model": (*_LENGTH, *_MODEL, "confidence_threshold"),
    "eagle": (*_LENGTH, *_MODEL),
    "eagle3": (*_LENGTH, *_MODEL),
    "mtp": (*_LENGTH, *_MODEL),
    "medusa": (*_LENGTH, *_MODEL),
    "early_exit": ("k", "exit_layer", "schedule", "confidence_threshold"),
    "dflash": (*_LENGTH, *_MODEL),
    "pard": (*_LENGTH, *_MODEL),
    "p_eagle": (*_LENGTH, *_MODEL),
    "dspark": (*_LENGTH, *_MODEL),
    "synthetic": ("k", *_MODEL, "drafter", "acceptance_length", "acceptance_rates"),
}
"""method → the fields of `Draft` that mean something for it (besides `method` and `args`). Others are normalised away."""

NEEDS_MODEL = ("draft_model", "eagle", "eagle3", "medusa", "dflash", "pard", "p_eagle", "dspark")
"""Methods that have a draft model of their own: `draft.model` must name it (`mtp` and `synthetic` may have one)."""


@dataclass
class Draft:
    """How tokens are drafted: method + draft model + draft length `k` + draft TP."""

    name: str = field(default="", metadata=NOT_IN_ID)
    method: str = "none"
    k: int = 0  # draft tokens a step, at most
    model: str = ""  # path of the draft model, as `Model.path`
    revision: str = ""
    quantization: str = ""  # of the draft's weights; "" = as its files are
    dummy_weights: bool = False  # random weights of the right shape: for its costs, never for its acceptance
    vocab_size: int = 0  # tokens that the draft can propose (pruned vocabulary); 0 = as its files are
    tp: int = 0  # GPUs of the draft; 0 = as the target
    schedule: str = "constant"  # one of SCHEDULES
    k_by_batch: dict[int, int] = field(default_factory=dict)  # schedule batch_size: requests in the batch, at least → k
    confidence_threshold: float = 0.0  # stop drafting below this probability; 0 = never
    ngram_max: int = 2  # longest n-gram that is looked up
    ngram_min: int = 1
    exit_layer: int = 0  # early_exit: the layer after which the draft leaves the target
    drafter: str = ""  # synthetic: the method that drafts; whether its tokens are accepted is thrown by dice
    acceptance_length: float = 0.0  # synthetic: AL to pretend; 0 = `acceptance_rates` says it
    acceptance_rates: list[float] = field(
        default_factory=list
    )  # synthetic: AR by position, given that those before were accepted
    args: dict[str, Any] = field(default_factory=dict)  # verbatim to the engine

    def __post_init__(self) -> None:
        """Normalise what means nothing, so that redundant grid points collapse into one cell."""
        kept = DRAFT_FIELDS.get(self.method)
        if kept is None:
            return  # an unknown method is refused with the list by `orchestrator.grid`
        for item in fields(self):
            if item.name not in (*kept, "name", "method", "args"):
                setattr(self, item.name, default_of(item))
        if self.method == "none":
            self.args = {}
        if self.schedule != "batch_size":
            self.k_by_batch = {}


@dataclass
class Engine:
    """The serving engine and the shape in which it is started. Nothing here may be derived from the load."""

    name: str = "transformers"
    version: str = ""  # what must be found; "" = whatever is installed (recorded either way)
    python: str = field(default="", metadata=NOT_IN_ID)  # its interpreter; relative to the project's root
    # Ray's (uv, pip, conda or image_uri) for the session's worker, whose interpreter the engine then has; {} = none
    runtime_env: dict[str, Any] = field(default_factory=dict, metadata=NOT_IN_ID)
    tp: int = 1  # tensor parallel: GPUs of one copy of the target
    pp: int = 1  # pipeline parallel: stages, each on `tp` GPUs
    dp: int = 1  # data parallel: copies behind one address
    ep: int = 1  # expert parallel: GPUs over which the experts of a MoE model are dealt out
    nodes: int = 1  # over which all these GPUs are spread evenly: a process of the engine on each
    gpu_type: str = ""  # as Ray names it: H100, A100, L4; "" = whichever there is
    cpus: float = field(default=0.0, metadata=NOT_IN_ID)  # CPUs that a session takes of each node; 0 = all of them
    batch: int = 1  # most requests in one engine step
    max_length: int = 0  # prompt + output tokens; 0 = the model's own limit
    kv_fraction: float = 0.0  # of a GPU's memory, in the engine's own meaning; 0 = its default
    kv_bytes: int = 0  # of the KV cache, on each GPU; 0 = as `kv_fraction` says
    dtype: str = "auto"
    kv_dtype: str = "auto"
    quantization: str = ""  # of the target's weights; "" = as its files are
    dummy_weights: bool = False  # random weights of the right shape: for costs, never for outputs
    cuda_graphs: bool = True  # and compilation, where the engine has it; false = eager
    device: str = "auto"  # auto | cpu | cuda
    threads: int = 0  # CPU threads of the engine; 0 = the engine's own choice
    prefix_cache: bool = False
    seed: int = 0
    url: str = field(default="", metadata=NOT_IN_ID)  # attached: where an engine runs already, as http(s)://HOST:PORT
    served_model: str = field(default="", metadata=NOT_IN_ID)  # attached: the name under which it serves
    api_key_env: str = field(default="", metadata=NOT_IN_ID)  # attached: the environment variable with its key
    start_timeout_s: float = field(default=600.0, metadata=NOT_IN_ID)
    args: dict[str, Any] = field(default_factory=dict)  # verbatim to the engine; an unknown key is refused

    def __post_init__(self) -> None:
        """One type of GPU has one name, and so one cell."""
        self.gpu_type = self.gpu_type.upper()

    @property
    def devices(self) -> int:
        """On which it runs, all nodes together."""
        return self.tp * self.pp * self.dp


@dataclass
class Workload:
    """Which prompts. `limit` samples stratified over the categories; 0 = all of them."""

    name: str = "mini"
    split: str = ""
    path: str = ""  # a file or folder, or a data set's hub id
    revision: str = ""  # of a data set of the hub: the commit, 40 hex digits
    categories: list[str] = field(default_factory=list)  # [] = all
    columns: dict[str, str] = field(default_factory=dict)  # what a file's columns are called: ours → the file's
    isl: Any = 0  # input sequence length in tokens that the workload is asked for, 1000 or 1k; 0 = as the prompts are
    entropy: str = ""  # one of ENTROPIES
    limit: int = 0
    output_limit: int = 256  # most output tokens a turn
    ignore_eos: bool = False
    json_schema: str = ""  # a file with the JSON schema that every answer must keep; "" = free text
    template_args: dict[str, Any] = field(default_factory=dict)  # of the chat template, as {enable_thinking: false}
    seed: int = 0

    def __post_init__(self) -> None:
        """1k and 1000 are one length, and so one cell."""
        self.isl = tokens_of(self.isl)


@dataclass
class Sampling:
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    # At a temperature above 0: prompts that are asked once more after the cell, untimed, with log-probabilities, so that the
    # distribution can be compared with the baseline's; 0 = none.
    scored: int = field(default=24, metadata=NOT_IN_ID)


@dataclass
class Load:
    """How requests arrive.

    Closed loop: a conversation holds one slot of `concurrency` for all its turns. Open loop: conversations arrive at a rate
    over time, whatever is under way (`jobs.load.arrivals`).
    """

    kind: str = "closed"  # closed | constant | poisson | gamma | replay
    concurrency: int = 1  # closed loop only
    rate: float = 0.0  # conversations a second
    rates: list[float] = field(default_factory=list)  # rates one after the other, instead of `rate`; the last one holds
    rate_step_s: float = 0.0  # how long each of `rates` holds
    is_ramp: bool = False  # each of `rates` moves evenly to the next, instead of by a step
    burstiness: float = 1.0  # gamma: 1 = Poisson, below 1 = bursts, above 1 = more even
    replay: str = ""  # replay: a file with one send offset in seconds a line; "" = the times in the workload's trace
    seed: int = 0  # of the arrivals; the repeat is added
    warmup: int = 1  # conversations sent before the cell (at least `concurrency`), never rows; 0 = none
    request_timeout_s: float = field(default=300.0, metadata=NOT_IN_ID)
    cell_timeout_s: float = field(default=3600.0, metadata=NOT_IN_ID)
    slo_ttft_s: float = field(
        default=0.0, metadata=NOT_IN_ID
    )  # goodput counts requests with at most this TTFT; 0 = no limit
    slo_tpot_s: float = field(default=0.0, metadata=NOT_IN_ID)  # ... and at most this TPOT; 0 = no limit

    @property
    def label(self) -> str:
        if self.kind == "closed":
            return f"c={self.concurrency}"
        if self.kind == "replay":
            return self.kind
        return f"{self.kind} {','.join(f'{rate:g}' for rate in self.rates or [self.rate])}/s"


@dataclass(frozen=True)
class Deployment:
    """What needs an engine start: a change here restarts the engine."""

    model: Model
    engine: Engine
    draft: Draft

    @cached_property
    def id(self) -> str:
        return digest(self)

    @property
    def gpus(self) -> int:
        """GPUs that the session takes: none for an engine on the CPU, or one that runs already."""
        engine = self.engine
        return 0 if engine.device == "cpu" or engine.url else engine.devices

    @property
    def gpus_a_node(self) -> int:
        """Of those, the GPUs of each of its nodes."""
        return self.gpus // self.engine.nodes

    @property
    def is_speculative(self) -> bool:
        return self.draft.method != "none"


@dataclass(frozen=True)
class Cell:
    """One measurement, one row of the answer."""

    deployment: Deployment
    workload: Workload
    sampling: Sampling
    load: Load
    repeat: int = 0

    @cached_property
    def id(self) -> str:
        return digest(self)

    def with_draft(self, draft: Draft) -> Cell:
        """The same measurement with another draft: with `method: none`, the paired baseline."""
        return replace(self, deployment=replace(self.deployment, draft=draft))

    @cached_property
    def pair_id(self) -> str:
        """What a speculative cell and its baseline have in common: the id of the cell without its draft."""
        return self.with_draft(Draft()).id

    @property
    def label(self) -> str:
        deployment, draft = self.deployment, self.deployment.draft
        drafted = f"{draft.name or draft.method}{f' k={draft.k}' if draft.k else ''}"
        model = deployment.model.name or deployment.model.path
        return f"{model} {deployment.engine.name} {drafted} {self.workload.name} {self.load.label} r{self.repeat}"


@dataclass(frozen=True)
class CellOrder:
    """A cell of a session, with the number of this try at it (from 1)."""

    cell: Cell
    attempt: int


@dataclass(frozen=True)
class SessionSpec:
    """One life of an engine: the deployment, and its cells in the order in which they will run."""

    session_id: str
    invocation_id: str  # which run of the command this belongs to
    deployment: Deployment
    orders: tuple[CellOrder, ...]
    expected_s: float  # start and cells together


def tokens_of(length: Any) -> Any:
    """A length in tokens: 1000 for "1k" (as SPEED-Bench has it, not 1024); what says none comes back as it is."""
    found = re.fullmatch(r"(\d+)(k?)", length.strip().lower()) if isinstance(length, str) else None
    return int(found[1]) * (1000 if found[2] else 1) if found else length
