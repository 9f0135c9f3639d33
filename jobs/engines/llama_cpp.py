"""Owns the adapter of llama.cpp: what it offers, what is refused, and how it is asked. Does not own its command line.

`llama-server` (`engine.python` names it, else the PATH has it), for models and drafts in GGUF files. It does not tell
its arguments, and k only after it has drafted: so that a short request of our own proves both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jobs.engines import control
from jobs.engines.base import Endpoint, EngineFacts, Launch, Offer, Site
from jobs.engines.dialect_llama import LlamaDialect
from jobs.engines.launching import drafter_of
from jobs.engines.llama_cpp_command import DRAFT_OURS, OURS, TYPES, launch_of
from jobs.engines.options import known_of, option_rules
from jobs.engines.own_host import check_name, check_speculation
from jobs.engines.prometheus import Sample, samples_in, total
from jobs.engines.rules import Rule, at_least, enforce, lacks, offers_method, one_of
from jobs.errors import EngineDied, EngineFailed, EngineHung, WrongEngine
from jobs.spec import DEVICES, Cell, Deployment, Draft, Engine, Model

METHODS = {
    "none": Offer(),
    "ngram": Offer(),
    "suffix": Offer("it has no suffix decoding"),
    "draft_model": Offer(),
    "eagle": Offer("it takes EAGLE-3 heads only"),
    "eagle3": Offer(),
    "mtp": Offer(),
    "medusa": Offer("it has no Medusa heads"),
    "early_exit": Offer("it has no early exit"),
    "dflash": Offer(),
    "pard": Offer("its draft models draft one token after the other"),
    "p_eagle": Offer("its EAGLE-3 heads draft one token after the other"),
    "dspark": Offer(),
    "synthetic": Offer(),
}
LACKING = ("pp", "dp", "ep", "kv_fraction", "kv_bytes", "dtype", "quantization", "dummy_weights", "url", "served_model")
LACKING_OF_DRAFTS = ("quantization", "dummy_weights", "vocab_size", "k_by_batch")
KV_DTYPES = ("auto", "f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
GGUF = ".gguf"
PREFIX = "llamacpp:"
PER_POSITION = PREFIX + "spec_decode_num_accepted_tokens_per_pos_total"
COUNTERS = {
    "drafts": PREFIX + "spec_decode_num_drafts_total",
    "draft_tokens": PREFIX + "spec_decode_num_draft_tokens_total",
    "accepted_tokens": PREFIX + "spec_decode_num_accepted_tokens_total",
    "output_tokens": PREFIX + "tokens_predicted_total",
    "prompt_tokens": PREFIX + "prompt_tokens_total",
}
PROBE_ID = 10  # any token will do, repeated: so that also n-grams are found again
PROBE_PROMPT = 64


class LlamaCppEngine:
    """`llama-server`, one for each session."""

    name = "llama_cpp"
    dialect = LlamaDialect()
    methods = METHODS
    over_nodes = Offer("its workers on other nodes take commands from anybody, without a key")

    def check(self, deployment: Deployment) -> None:
        engine, draft = deployment.engine, deployment.draft
        enforce(offers(deployment.model, engine, draft), rules(engine, draft))

    def check_cell(self, cell: Cell) -> None:
        refuse = "`workload.json_schema` must be empty with synthetic acceptance, which keeps no grammar: got {!r}."
        is_synthetic = cell.deployment.draft.method == "synthetic"
        enforce([(not (cell.workload.json_schema and is_synthetic), refuse.format(cell.workload.json_schema))], ())

    def launch(self, deployment: Deployment, site: Site) -> Launch:
        return launch_of(deployment, site)

    def facts(self, deployment: Deployment, endpoint: Endpoint) -> EngineFacts:
        props = self.props(endpoint)
        version = str(props.get("build_info"))
        if (asked := deployment.engine.version) and asked.lstrip("b") != version.lstrip("b").partition("-")[0]:
            raise WrongEngine(f"llama-server must have the version of `engine.version`, {asked}: it says {version}.")
        settings = probed(deployment, endpoint)
        samples = samples_at(endpoint)
        speculation = speculation_of(settings, samples, deployment)
        model = (control.get_json(endpoint, "/v1/models").get("data") or [{}])[0]
        slot_tokens = (props.get("default_generation_settings") or {}).get("n_ctx")
        return EngineFacts(
            version=version,
            effective_config={"props": props, "model": model, "generation_settings": settings, **speculation},
            weights_bytes=(model.get("meta") or {}).get("size"),
            draft_weights_bytes=None if deployment.is_speculative else 0,
            kv_capacity_tokens=slot_tokens * props["total_slots"] if slot_tokens else None,
        )

    def props(self, endpoint: Endpoint) -> dict[str, Any]:
        """What it tells of itself, if it is ours."""
        props = control.get_json(endpoint, "/props")
        check_name({"model": props.get("model_alias")}, endpoint)
        return props

    def check_identity(self, endpoint: Endpoint) -> None:
        self.props(endpoint)

    def counters(self, endpoint: Endpoint) -> dict[str, float]:
        """Requests count when they end."""
        samples = samples_at(endpoint)
        found = {name: total(samples, metric) or 0.0 for name, metric in COUNTERS.items()}
        return found | {f"accepted_at_{sample.labels['position']}": sample.value for sample in positions(samples)}

    def reset(self, endpoint: Endpoint) -> bool | None:
        try:
            for slot in range(self.props(endpoint)["total_slots"]):
                control.post_json(endpoint, f"/slots/{slot}?action=erase")
        except (EngineDied, EngineHung, WrongEngine):
            raise
        except EngineFailed:
            return False
        return True


def samples_at(endpoint: Endpoint) -> list[Sample]:
    return samples_in(control.call(endpoint, "GET", "/metrics").text)


def positions(samples: list[Sample]) -> list[Sample]:
    """One a draft position, once something was drafted."""
    return [sample for sample in samples if sample.name == PER_POSITION]


def probed(deployment: Deployment, endpoint: Endpoint) -> dict[str, Any]:
    """The settings under which it answers a request that is long enough for a whole draft."""
    n_prompt = min(PROBE_PROMPT, deployment.engine.max_length // 2 or PROBE_PROMPT)
    n_answer = deployment.draft.k + 2  # the token of the prefill, and one drafted step with the target's own
    body = {"prompt": [PROBE_ID] * n_prompt, "n_predict": n_answer, "temperature": 0, "ignore_eos": True}
    settings: dict[str, Any] = control.post_json(endpoint, "/completion", body=body).get("generation_settings") or {}
    return settings


def speculation_of(settings: Mapping[str, Any], samples: list[Sample], deployment: Deployment) -> dict[str, Any]:
    """Method and k as the engine says; `WrongEngine` for others: a draft may have fewer heads than k, or a shorter block."""
    draft = deployment.draft
    types = set(str(settings.get("speculative.types")).split(",")) - {"none", ""}
    asked = {TYPES[drafter_of(draft)]} - {"none"}
    told = {"method": draft.method if types == asked else ",".join(sorted(types)), "k": len(positions(samples))}
    check_speculation({"effective_config": told}, deployment)
    return told


def offers(model: Model, engine: Engine, draft: Draft) -> Iterator[Rule]:
    """What llama.cpp has, and what other engines are for."""
    yield offers_method(LlamaCppEngine(), draft.method)
    for name, path in (("model.path", model.path), ("draft.model", draft.model or GGUF)):
        yield (
            path.endswith(GGUF),
            f"`{name}` must be a GGUF file for llama_cpp: got {path!r}. Name one, or use another engine.",
        )
    yield from lacks("llama_cpp", "engine", engine, LACKING)
    yield from lacks("llama_cpp", "draft", draft, LACKING_OF_DRAFTS)
    yield (
        draft.tp in (0, 1, engine.tp),
        f"`draft.tp` must be 0, 1 or engine.tp for llama_cpp, which puts a draft on one device or on all: got {draft.tp}.",
    )
    yield (
        draft.schedule == "constant",
        f"`draft.schedule` must be constant for llama_cpp, whose k is fixed: got {draft.schedule!r}. Use another engine.",
    )
    yield (
        draft.method != "ngram" or draft.ngram_min == draft.ngram_max,
        "`draft.ngram_min` must equal `draft.ngram_max` for llama_cpp, which looks up n-grams of one length: "
        f"got {draft.ngram_min} and {draft.ngram_max}.",
    )


def rules(engine: Engine, draft: Draft) -> Iterator[Rule]:
    """What the values must be."""
    options = known_of("llama_cpp", engine.version.lstrip("b")).sections.get("server", {})
    yield one_of("engine.device", engine.device, DEVICES)
    yield one_of("engine.kv_dtype", engine.kv_dtype, KV_DTYPES)
    yield at_least("engine.threads", engine.threads, 0)
    yield from option_rules("engine.args", engine.args, OURS, options)
    yield from option_rules("draft.args", draft.args, DRAFT_OURS, options)
    for name in engine.args:
        yield not is_of_drafts(name), f"`engine.args.{name}` is a setting of drafts: give it as draft.args.{name}."
    for name in draft.args:
        yield is_of_drafts(name), f"`draft.args.{name}` is no setting of drafts: give it as engine.args.{name}."
    yield (
        engine.batch == 1 or engine.max_length > 0,
        "`engine.max_length` must be given for llama_cpp with a batch above 1, as its slots share out one context: got 0.",
    )
    yield (
        draft.method != "synthetic" or not draft.acceptance_rates or len(draft.acceptance_rates) == draft.k,
        f"`draft.acceptance_rates` must be draft.k = {draft.k} rates for llama_cpp: got {len(draft.acceptance_rates)}.",
    )
    yield (
        draft.method != "synthetic" or draft.drafter in TYPES,
        f"`draft.drafter` must be a method that llama_cpp has: got {draft.drafter!r}. It has {', '.join(TYPES)}.",
    )


def is_of_drafts(name: str) -> bool:
    return name.startswith("spec_")
