"""Owns what is known of one version of vLLM: its options as they were recorded, and which of them SpecSweep sets itself.

Does not own how a setting becomes an option (`vllm_command`). `make record-vllm` records another version.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from jobs.engines.rules import Rule, version_of
from jobs.spec import Draft, Engine

KNOWN = Path(__file__).with_name("known")
SESSION = "nothing: every session sets it itself"

FLAGS_OF_FIELDS = {
    "model": "model.path",
    "revision": "model.path",
    "tensor_parallel_size": "engine.tp",
    "pipeline_parallel_size": "engine.pp",
    "data_parallel_size": "engine.dp",
    "enable_expert_parallel": "engine.ep",
    "nnodes": "engine.nodes",
    "max_num_seqs": "engine.batch",
    "max_model_len": "engine.max_length",
    "gpu_memory_utilization": "engine.kv_fraction",
    "kv_cache_memory_bytes": "engine.kv_bytes",
    "dtype": "engine.dtype",
    "kv_cache_dtype": "engine.kv_dtype",
    "quantization": "engine.quantization",
    "enforce_eager": "engine.cuda_graphs",
    "enable_prefix_caching": "engine.prefix_cache",
    "seed": "engine.seed",
    "device_ids": "engine.tp",
    "speculative_config": "draft",
    "spec_method": "draft.method",
    "spec_model": "draft.model",
    "spec_tokens": "draft.k",
    "override_generation_config": "sampling",
    "generation_config": "sampling",
    "hf_token": "HF_TOKEN in the environment",
    **dict.fromkeys(("host", "port", "uds", "root_path", "served_model_name", "api_key", "headless", "config"), SESSION),
    **dict.fromkeys(("node_rank", "master_addr", "master_port", "data_parallel_rpc_port", "data_parallel_address"), SESSION),
    **dict.fromkeys(("grpc", "grpc_port", "ssl_certfile", "ssl_keyfile", "ssl_ca_certs", "ssl_cert_reqs"), SESSION),
    **dict.fromkeys(("disable_log_stats", "stream_interval", "worker_extension_cls"), SESSION),
    **dict.fromkeys(("per_request_spec_decode_metrics", "disable_uvicorn_access_log"), SESSION),
}
"""vLLM's flag → the field that sets it."""

DRAFT_KEYS_OF_FIELDS = {
    "method": "draft.method",
    "num_speculative_tokens": "draft.k",
    "num_speculative_tokens_per_batch_size": "draft.k_by_batch",
    "model": "draft.model",
    "revision": "draft.revision",
    "quantization": "draft.quantization",
    "draft_tensor_parallel_size": "draft.tp",
    "tensor_parallel_size": "draft.tp",
    "prompt_lookup_max": "draft.ngram_max",
    "prompt_lookup_min": "draft.ngram_min",
    "parallel_drafting": "draft.method",
    "synthetic_acceptance_length": "draft.acceptance_length",
    "synthetic_acceptance_rates": "draft.acceptance_rates",
    "draft_load_config": "draft.dummy_weights",
}
"""Key of vLLM's speculative configuration → the field that sets it."""


@dataclass(frozen=True)
class Known:
    """The options of one version; empty for one that was not recorded: its own parser refuses what it does not know."""

    version: str = ""
    flags: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    speculative: tuple[str, ...] = ()

    def kind(self, flag: str) -> str:
        """How the value of a flag is written: switch, flag, many or value."""
        return str(self.flags.get(flag, {}).get("kind", ""))


@cache
def known_of(version: str) -> Known:
    """What is known of this version ("" = of an unknown one, so nothing)."""
    number = ".".join(map(str, version_of(version)))
    file = KNOWN / f"vllm-{number}.json"
    if not number or not file.is_file():
        return Known()
    told = json.loads(file.read_text(encoding="utf-8"))
    return Known(told["version"], told["flags"], tuple(told["speculative"]))


def option_rules(engine: Engine, draft: Draft, known: Known) -> Iterator[Rule]:
    """That `engine.args` and `draft.args` hold only what this version knows and no field of ours sets."""
    yield from _rules_of("engine.args", engine.args, FLAGS_OF_FIELDS, tuple(known.flags))
    yield from _rules_of("draft.args", draft.args, DRAFT_KEYS_OF_FIELDS, known.speculative)
    yield _not_ours("engine.args.load_format", engine.args.get("load_format"), "dummy", "engine.dummy_weights")
    sampler = draft.args.get("rejection_sample_method")
    yield _not_ours("draft.args.rejection_sample_method", sampler, "synthetic", "draft.method=synthetic")
    for name, value in engine.args.items():
        choices = known.flags.get(name, {}).get("choices") or (value,)
        yield (
            value in choices or known.kind(name) == "many",
            f"`engine.args.{name}` must be known to vLLM {known.version}: got {value!r}. "
            f"Known: {', '.join(map(str, choices))}.",
        )
        yield (
            known.kind(name) not in ("switch", "flag") or isinstance(value, bool),
            f"`engine.args.{name}` must be true or false: got {value!r}.",
        )
        yield (
            known.kind(name) != "flag" or value is True,
            f"`engine.args.{name}` can only be true, as vLLM has no flag for its opposite: got {value!r}. Leave it out.",
        )


def choice_rules(engine: Engine, known: Known) -> Iterator[Rule]:
    """That values which vLLM spells itself are among those that this version knows."""
    for name, flag, value in (
        ("engine.dtype", "dtype", engine.dtype),
        ("engine.kv_dtype", "kv_cache_dtype", engine.kv_dtype),
        ("engine.quantization", "quantization", engine.quantization),
    ):
        choices = known.flags.get(flag, {}).get("choices")
        yield (
            not value or not choices or value in choices,
            f"`{name}` must be known to vLLM {known.version}: got {value!r}. Known: {', '.join(choices or ())}.",
        )


def _rules_of(section: str, args: Mapping[str, Any], ours: Mapping[str, str], names: tuple[str, ...]) -> Iterator[Rule]:
    for key in args:
        yield key not in ours, f"`{section}.{key}` must be left to SpecSweep: use {ours.get(key)}."
        near = ", ".join(name for name in names if name.startswith(key[:4])) or "none that begins alike"
        yield not names or key in names, f"`{section}` must hold vLLM's own names: got {key!r}. Known: {near}."


def _not_ours(name: str, value: object, forbidden: str, use: str) -> Rule:
    return value != forbidden, f"`{name}` must not be {forbidden!r}: use {use}."
