"""Owns the adapter of TensorRT-LLM: what it offers, what is refused, and how it is asked. Does not own its options.

Its PyTorch backend behind `trtllm-serve`. Nothing tells the weights' size, which step accepted how much, or whether
acceptance is pretended; it does not look at the model's name in a request, so that only its list of models proves who it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jobs.engines import control
from jobs.engines.base import Endpoint, EngineFacts, Launch, Offer, Site
from jobs.engines.dialect_trtllm import TrtllmDialect
from jobs.engines.launching import drafter_of
from jobs.engines.options import Known, known_of, option_rules
from jobs.engines.own_host import check_name, check_speculation
from jobs.engines.prometheus import Sample, labels_of, samples_in, total
from jobs.engines.rules import Rule, enforce, lacks, offers_method, one_of, version_of, whole_on_nodes
from jobs.engines.tensorrt_llm_options import DECODING_TYPES, DRAFT_OURS, KV_OURS, OURS, WINDOW, launch_of
from jobs.errors import WrongEngine
from jobs.spec import Cell, Deployment, Draft, Engine

METHODS = {
    "none": Offer(),
    "ngram": Offer(),
    "suffix": Offer(),
    "draft_model": Offer(),
    "eagle": Offer("its PyTorch backend takes EAGLE-3 heads only"),
    "eagle3": Offer(),
    "mtp": Offer(),
    "medusa": Offer("its PyTorch backend has no Medusa heads"),
    "early_exit": Offer("it has no early exit"),
    "dflash": Offer(),
    "pard": Offer(),
    "p_eagle": Offer("its EAGLE-3 heads draft one token after the other"),
    "dspark": Offer(),
    "synthetic": Offer(),
}
OLDEST = (1, 3)
VARIED = ("suffix", "draft_model", "eagle3", "mtp", "dflash", "pard")
"""Methods whose draft length may follow the batch size; also those for which acceptance can be pretended, but for suffix."""
GUIDED = ("none", "ngram", "suffix", "draft_model", "eagle3", "mtp", "pard")
"""Methods that keep a grammar."""
DTYPES = ("auto", "float16", "bfloat16", "float32")
KV_DTYPES = ("auto", "float16", "bfloat16", "float32", "fp8", "fp8_ds_mla", "nvfp4")
LACKING = ("dp", "quantization", "seed", "threads", "url", "served_model")
LACKING_OF_DRAFTS = ("quantization", "vocab_size", "confidence_threshold", "acceptance_rates")
METRICS = "/prometheus/metrics"
COUNTERS = {
    "draft_tokens": "trtllm_spec_decode_num_draft_tokens_total",
    "accepted_tokens": "trtllm_spec_decode_num_accepted_tokens_total",
    "output_tokens": "trtllm_generation_tokens_total",
    "prompt_tokens": "trtllm_prompt_tokens_total",
}
INFOS = ("model", "parallel", "speculative", "kv_cache")


class TensorrtLlmEngine:
    """`trtllm-serve`, one for each session."""

    name = "tensorrt_llm"
    dialect = TrtllmDialect()
    methods = METHODS
    over_nodes = Offer()

    def check(self, deployment: Deployment) -> None:
        enforce(offers(deployment.engine, deployment.draft), rules(deployment.engine, deployment.draft))

    def check_cell(self, cell: Cell) -> None:
        enforce(grammar_rules(cell.workload.json_schema, cell.deployment), ())

    def launch(self, deployment: Deployment, site: Site) -> Launch:
        return launch_of(deployment, site)

    def facts(self, deployment: Deployment, endpoint: Endpoint) -> EngineFacts:
        self.check_identity(endpoint)
        version = str(control.get_json(endpoint, "/version").get("version"))
        if deployment.engine.version not in ("", version):
            raise WrongEngine(
                f"TensorRT-LLM must have the version of `engine.version`, {deployment.engine.version}: it says {version}."
            )
        samples = samples_at(endpoint)
        config = {name: dict(labels_of(samples, f"trtllm_{name}_config_info")) for name in INFOS}
        speculation = speculation_of(config["speculative"], deployment)
        return EngineFacts(
            version=version,
            effective_config={**config, **speculation},
            draft_weights_bytes=None if deployment.is_speculative else 0,
            kv_capacity_tokens=capacity_of(samples),
        )

    def check_identity(self, endpoint: Endpoint) -> None:
        models = control.get_json(endpoint, "/v1/models").get("data") or [{}]
        check_name({"model": models[0].get("id")}, endpoint)

    def counters(self, endpoint: Endpoint) -> dict[str, float]:
        """It does not count steps; requests count when they end, and drafts a moment after the step."""
        samples = samples_at(endpoint)
        return {name: total(samples, metric) or 0.0 for name, metric in COUNTERS.items()}

    def reset(self, endpoint: Endpoint) -> bool | None:
        """It cannot: None where no block is used again, so that there is nothing to empty."""
        reuse = labels_of(samples_at(endpoint), "trtllm_kv_cache_config_info").get("enable_block_reuse")
        return None if reuse == "False" else False


def samples_at(endpoint: Endpoint) -> list[Sample]:
    return samples_in(control.call(endpoint, "GET", METRICS).text)


def speculation_of(told: Mapping[str, str], deployment: Deployment) -> dict[str, Any]:
    """Method and k as the engine says; `WrongEngine` when it runs with others."""
    draft = deployment.draft
    spoken = told.get("spec_method", "")
    method = draft.method if spoken == DECODING_TYPES[drafter_of(draft)] else spoken
    k = int(told.get("spec_num_tokens", "0"))
    check_speculation({"effective_config": {"method": method, "k": k}}, deployment)
    return {"method": method, "k": k}


def capacity_of(samples: Sequence[Sample]) -> int | None:
    """Tokens for which the KV cache has room; None before the first step."""
    blocks, size = (total(samples, f"trtllm_kv_cache_{name}") for name in ("max_blocks", "tokens_per_block"))
    return int(blocks * size) if blocks and size else None


def offers(engine: Engine, draft: Draft) -> Iterator[Rule]:
    """What TensorRT-LLM has, and what other engines are for."""
    drafter = drafter_of(draft)
    yield offers_method(TensorrtLlmEngine(), draft.method)
    yield engine.device != "cpu", "`engine.device` must not be cpu for tensorrt_llm, which runs on GPUs only. Use a GPU."
    yield from lacks("tensorrt_llm", "engine", engine, LACKING)
    yield from lacks("tensorrt_llm", "draft", draft, LACKING_OF_DRAFTS)
    yield (
        draft.tp in (0, engine.tp),
        "`draft.tp` must be 0 or engine.tp for tensorrt_llm, whose drafts run on the GPUs of the target: "
        f"got {draft.tp}. Use vllm, or llama_cpp.",
    )
    yield whole_on_nodes(engine, "stage", engine.tp)
    yield (
        (version_of(engine.version) or OLDEST) >= OLDEST,
        f"`engine.version` must be 1.3 or later for tensorrt_llm, as its server takes no name before: got {engine.version}.",
    )
    yield (
        draft.method != "ngram" or draft.ngram_min == 1,
        f"`draft.ngram_min` must be 1 for tensorrt_llm, which tries every length down to 1: got {draft.ngram_min}.",
    )
    pretenders = [method for method in VARIED if method != "suffix"]
    yield (
        draft.method != "synthetic" or draft.drafter in pretenders,
        f"`draft.drafter` must be one for which tensorrt_llm can pretend acceptance: got {draft.drafter!r}. "
        f"It can for {', '.join(pretenders)}.",
    )
    yield (
        draft.method != "synthetic" or draft.acceptance_length > 1,
        "`draft.acceptance_length` must be above 1 for tensorrt_llm, which takes no accepted tokens for nothing pretended: "
        f"got {draft.acceptance_length:g}.",
    )
    yield (
        draft.schedule in ("constant", "acceptance") or (draft.schedule == "batch_size" and drafter in VARIED),
        f"`draft.schedule` must be constant or acceptance for {draft.method} on tensorrt_llm: got {draft.schedule!r}.",
    )


def rules(engine: Engine, draft: Draft) -> Iterator[Rule]:
    """What the values must be."""
    yield one_of("engine.dtype", engine.dtype, DTYPES)
    yield one_of("engine.kv_dtype", engine.kv_dtype, KV_DTYPES)
    known = known_of("tensorrt_llm", engine.version)
    yield from option_rules("engine.args", engine.args, OURS, known.sections.get("TorchLlmArgs", {}))
    yield from kv_rules(engine, known)
    yield from option_rules("draft.args", draft.args, DRAFT_OURS, known.sections.get(DECODING_TYPES[drafter_of(draft)], {}))
    yield (
        engine.cuda_graphs or "cuda_graph_config" not in engine.args,
        "`engine.args.cuda_graph_config` must be left out without CUDA graphs: engine.cuda_graphs is false.",
    )
    sizes = sorted(draft.k_by_batch)
    yield (
        not sizes or draft.k_by_batch[sizes[0]] == draft.k,
        f"`draft.k_by_batch` must begin with draft.k = {draft.k} for tensorrt_llm: got {dict(draft.k_by_batch)}.",
    )
    has_window = all(name in draft.args for name in WINDOW)
    yield (
        has_window == (draft.schedule == "acceptance"),
        f"`draft.schedule` = acceptance and {' and '.join(f'draft.args.{name}' for name in WINDOW)} must be given together: "
        f"got {draft.schedule!r} and {', '.join(draft.args) or 'no argument'}. Below the threshold, drafting ends for good.",
    )


def kv_rules(engine: Engine, known: Known) -> Iterator[Rule]:
    """What may stand in `kv_cache_config` besides our fields."""
    cache = engine.args.get("kv_cache_config")
    yield from option_rules(
        "engine.args.kv_cache_config",
        cache if isinstance(cache, dict) else {},
        KV_OURS,
        known.sections.get("KvCacheConfig", {}),
    )


def grammar_rules(json_schema: str, deployment: Deployment) -> Iterator[Rule]:
    """What structured output needs of a deployment."""
    if not json_schema:
        return
    method = deployment.draft.method
    yield (
        method in GUIDED,
        f"`workload.json_schema` must be empty for {method} on tensorrt_llm, which keeps no grammar: got {json_schema!r}. "
        f"It does for {', '.join(GUIDED)}.",
    )
    yield (
        deployment.engine.args.get("guided_decoding_backend") is not None,
        "`engine.args.guided_decoding_backend` must be xgrammar or llguidance for a JSON schema on tensorrt_llm, which "
        f"must know it when it starts: got none, with workload.json_schema = {json_schema!r}.",
    )
