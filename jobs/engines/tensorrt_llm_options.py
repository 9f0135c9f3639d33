"""Owns how a deployment becomes `trtllm-serve`'s command, options and environment. Does not own what is refused. Pure."""

from __future__ import annotations

import json
import re
from typing import Any

from jobs.engines.base import Launch, Site
from jobs.engines.launching import SESSION, drafter_of, visible
from jobs.engines.own_host import interpreter
from jobs.engines.tensorrt_llm_ray import options_over_nodes, over_nodes
from jobs.spec import Deployment, Draft, Engine

OURS = {
    **dict.fromkeys(("model", "tokenizer", "revision", "tokenizer_revision", "skip_tokenizer_init"), "model.path"),
    "tensor_parallel_size": "engine.tp",
    "pipeline_parallel_size": "engine.pp",
    "moe_expert_parallel_size": "engine.ep",
    **dict.fromkeys(("orchestrator_type", "gpus_per_node"), "engine.nodes"),
    "max_batch_size": "engine.batch",
    "max_seq_len": "engine.max_length",
    "dtype": "engine.dtype",
    "load_format": "engine.dummy_weights",
    "speculative_config": "draft",
    "max_beam_width": "nothing: an answer is one sequence",
    **dict.fromkeys(
        ("backend", "stream_interval", "return_perf_metrics", "enable_iter_perf_stats", "telemetry_config"), SESSION
    ),
    **dict.fromkeys(("num_serve_frontends", "generation_config", "env_overrides"), SESSION),
}
"""Option of `TorchLlmArgs` → the field that sets it."""
KV_OURS = {
    "enable_block_reuse": "engine.prefix_cache",
    "enable_partial_reuse": "engine.prefix_cache",
    "free_gpu_memory_fraction": "engine.kv_fraction",
    "max_gpu_total_bytes": "engine.kv_bytes",
    "dtype": "engine.kv_dtype",
}
DRAFT_OURS = {
    "decoding_type": "draft.method",
    "speculative_model": "draft.model",
    "max_draft_len": "draft.k",
    "draft_len_schedule": "draft.k_by_batch",
    "max_concurrency": "draft.k_by_batch",
    "max_matching_ngram_size": "draft.ngram_max",
    "load_format": "draft.dummy_weights",
    "block_size": "draft.k",
}
DECODING_TYPES = {
    "none": "",
    "ngram": "NGram",
    "suffix": "SA",
    "draft_model": "Draft_Target",
    "eagle3": "Eagle3",
    "mtp": "MTP",
    "dflash": "DFlash",
    "pard": "PARD",
    "dspark": "DSpark",
}
"""Our methods → `decoding_type`."""
WINDOW = ("acceptance_rate_window_size", "acceptance_rate_threshold")
OPTIONS_FILE = "options.yaml"
NUMBER_AS_KEY = re.compile(r'"(\d+)": ')


def launch_of(deployment: Deployment, site: Site) -> Launch:
    python = deployment.engine.python
    module = ("-m", "tensorrt_llm.commands.serve")
    program = (interpreter(python), *module) if python else ("trtllm-serve",)
    words = (
        *("serve", str(site.model_dir), "--backend", "pytorch", "--host", "127.0.0.1", "--port", str(site.port)),
        *("--served_model_name", site.nonce, "--config", str(site.scratch / OPTIONS_FILE), "--no-telemetry"),
    )
    server = Launch(
        argv=(*program, *words),
        env={"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", **visible(site), **pretended(deployment.draft)},
        files={OPTIONS_FILE: yaml_of(options_of(deployment, site))},
    )
    return over_nodes(deployment.engine, site, server, (*module, *words))


def yaml_of(options: dict[str, Any]) -> str:
    """JSON is YAML, but for numbers as keys: they stay numbers."""
    return NUMBER_AS_KEY.sub(r"\1: ", json.dumps(options, indent=1)) + "\n"


def options_of(deployment: Deployment, site: Site) -> dict[str, Any]:
    """The options file: fields of `TorchLlmArgs`. Its metrics are on, as only they tell its configuration and counters."""
    engine = deployment.engine
    optional = {
        "moe_expert_parallel_size": engine.ep if engine.ep > 1 else 0,
        "max_seq_len": engine.max_length,
        "load_format": "dummy" if engine.dummy_weights else "",
        "speculative_config": speculative_config(deployment, site) if deployment.is_speculative else {},
    }
    return {
        "tensor_parallel_size": engine.tp,
        "pipeline_parallel_size": engine.pp,
        "max_batch_size": engine.batch,
        "dtype": engine.dtype,
        "return_perf_metrics": True,
        "enable_iter_perf_stats": True,
        "stream_interval": 1,
        **options_over_nodes(engine),
        **({} if engine.cuda_graphs else {"cuda_graph_config": None}),
        **{name: value for name, value in optional.items() if value},
        **engine.args,
        "kv_cache_config": kv_cache_config(engine),
    }


def kv_cache_config(engine: Engine) -> dict[str, Any]:
    """Of the KV cache. Its fraction is of the memory that is free when the weights are loaded."""
    optional = {"free_gpu_memory_fraction": engine.kv_fraction, "max_gpu_total_bytes": engine.kv_bytes}
    return {
        "dtype": engine.kv_dtype,
        "enable_block_reuse": engine.prefix_cache,
        "enable_partial_reuse": engine.prefix_cache,
        **{name: value for name, value in optional.items() if value},
        **engine.args.get("kv_cache_config", {}),
    }


def speculative_config(deployment: Deployment, site: Site) -> dict[str, Any]:
    engine, draft = deployment.engine, deployment.draft
    method = drafter_of(draft)
    optional = {
        "speculative_model": str(site.draft_dir) if site.draft_dir else "",
        "load_format": "dummy" if draft.dummy_weights else "",
        "draft_len_schedule": lengths_up_to(draft.k_by_batch, engine.batch),
        "block_size": draft.k if method == "dspark" else 0,
    }
    return {
        "decoding_type": DECODING_TYPES[method],
        "max_draft_len": draft.k,
        # a pool of all requests would help later cells with what earlier ones answered, and could not be emptied
        **({"max_matching_ngram_size": draft.ngram_max, "is_public_pool": False} if method == "ngram" else {}),
        **{name: value for name, value in optional.items() if value},
        **draft.args,
    }


def lengths_up_to(k_by_batch: dict[int, int], batch: int) -> dict[int, int]:
    """{batch size, at least: k} → {batch size, at most: k}, as TensorRT-LLM has it."""
    starts = sorted(k_by_batch)
    ends = [start - 1 for start in starts[1:]] + [max([batch, *starts])]
    return {end: k_by_batch[start] for start, end in zip(starts, ends if starts else (), strict=True)}


def pretended(draft: Draft) -> dict[str, str]:
    """Acceptance by dice: the number of accepted draft tokens of each step, a fraction of one as its probability."""
    if draft.method != "synthetic":
        return {}
    return {"TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS": f"{draft.acceptance_length - 1:g}"}
