"""Owns how a deployment becomes SGLang's command line, environment and files. Does not own what is refused. Pure."""

from __future__ import annotations

import json
from typing import Any

from jobs.engines.base import Launch, Site
from jobs.engines.launching import SESSION, drafter_of, visible
from jobs.engines.options import known_of, words_of
from jobs.engines.own_host import interpreter
from jobs.spec import Deployment, Draft, Engine

OURS = {
    **dict.fromkeys(("model_path", "tokenizer_path", "revision"), "model.path"),
    "tp_size": "engine.tp",
    "pp_size": "engine.pp",
    "dp_size": "engine.dp",
    "attn_dp_size": "engine.dp, which counts whole copies: copies that share GPUs are not counted rightly",
    "ep_size": "engine.ep",
    "nnodes": "engine.nodes",
    "max_running_requests": "engine.batch",
    "context_length": "engine.max_length",
    "mem_fraction_static": "engine.kv_fraction",
    "dtype": "engine.dtype",
    "kv_cache_dtype": "engine.kv_dtype",
    "quantization": "engine.quantization",
    "disable_decode_cuda_graph": "engine.cuda_graphs",
    "disable_prefill_cuda_graph": "engine.cuda_graphs",
    "device": "engine.device",
    "disable_radix_cache": "engine.prefix_cache",
    "random_seed": "engine.seed",
    **dict.fromkeys(("host", "port", "served_model_name", "api_key", "admin_api_key", "skip_tokenizer_init"), SESSION),
    **dict.fromkeys(("node_rank", "dist_init_addr", "config"), SESSION),
    "tokenizer_worker_num": "nothing: only one knows the key by which a session proves that the engine is its own",
    **dict.fromkeys(("enable_metrics", "stream_interval", "incremental_streaming_output"), SESSION),
}
"""SGLang's option → the field that sets it."""
DRAFT_OURS = {
    "speculative_algorithm": "draft.method",
    "speculative_draft_model_path": "draft.model",
    "speculative_draft_model_revision": "draft.revision",
    "speculative_draft_model_quantization": "draft.quantization",
    "speculative_draft_load_format": "draft.dummy_weights",
    **dict.fromkeys(
        ("speculative_num_draft_tokens", "speculative_dflash_block_size", "speculative_dspark_block_size"), "draft.k"
    ),
    **dict.fromkeys(("speculative_adaptive", "speculative_adaptive_config"), "draft.schedule and draft.k_by_batch"),
}
ALGORITHMS = {
    "ngram": "NGRAM",
    "draft_model": "STANDALONE",
    "eagle": "EAGLE",
    "eagle3": "EAGLE3",
    "mtp": "NEXTN",
    "dflash": "DFLASH",
    "dspark": "DSPARK",
}
TREES = ("draft_model", "eagle", "eagle3", "mtp")
"""Methods that draft in steps, each of one token or of several."""
ADAPTIVE = ("acceptance", "batch_size")
ADAPTIVE_STEPS = (1, 3, 5)
"""Below k, of `draft.schedule: acceptance`: as SGLang's own table has them."""
ADAPTIVE_FILE = "adaptive.json"
KEY_FILE = "key.yaml"
"""Options that no other user of the node may read in a command line."""


def launch_of(deployment: Deployment, site: Site) -> Launch:
    options = known_of("sglang", deployment.engine.version).sections.get("server", {})
    flags = {
        **session_flags(site),
        **engine_flags(deployment.engine),
        **meeting_flags(deployment.engine, site),
        **draft_flags(deployment.draft, site),
    }
    asked = {**flags, **deployment.engine.args, **deployment.draft.args}
    words = (word for name, value in asked.items() for word in words_of(name, value, options))
    python = deployment.engine.python
    key = {"served-model-name": site.nonce, "api-key": site.nonce}
    adaptive = {ADAPTIVE_FILE: json.dumps(steps_by_batch(deployment.draft))} if is_adaptive(deployment.draft) else {}
    return Launch(
        argv=(interpreter(python) if python else "python3", "-m", "sglang.launch_server", *words),
        env=visible(site) | environment_of(deployment) | meeting_environment(site),
        files={KEY_FILE: json.dumps(key), **adaptive},
    )


def session_flags(site: Site) -> dict[str, Any]:
    """What the session sets. The nonce is the name and the key, so that a stranger refuses our requests, too: in a file."""
    return {
        "model_path": site.model_dir,
        "host": "127.0.0.1",
        "port": site.port,
        "config": site.scratch / KEY_FILE,
        "enable_metrics": True,
        "stream_interval": 1,
        "incremental_streaming_output": True,  # else each event repeats all ids before it
    }


def meeting_flags(engine: Engine, site: Site) -> dict[str, Any]:
    """Of an engine over several nodes; ranks above 0 answer health checks only."""
    meeting = site.meeting
    if meeting is None:
        return {}
    return {"nnodes": engine.nodes, "node_rank": meeting.rank, "dist_init_addr": meeting.authority}


def engine_flags(engine: Engine) -> dict[str, Any]:
    """Every field of the engine; those that are at SGLang's own default are left to it."""
    optional = {
        "context_length": engine.max_length,
        "mem_fraction_static": engine.kv_fraction,
        "quantization": engine.quantization,
        "load_format": "dummy" if engine.dummy_weights else "",
        "device": "" if engine.device == "auto" else engine.device,
        "disable_decode_cuda_graph": not engine.cuda_graphs,
        "disable_prefill_cuda_graph": not engine.cuda_graphs,
        "disable_radix_cache": not engine.prefix_cache,
    }
    return {
        "tp_size": engine.tp,
        "pp_size": engine.pp,
        "dp_size": engine.dp,
        "ep_size": engine.ep,
        "max_running_requests": engine.batch,
        "dtype": engine.dtype,
        "kv_cache_dtype": engine.kv_dtype,
        "random_seed": engine.seed,
        **{name: value for name, value in optional.items() if value},
    }


def draft_flags(draft: Draft, site: Site) -> dict[str, Any]:
    if draft.method == "none":
        return {}
    optional = {
        "speculative_draft_model_path": site.draft_dir,
        "speculative_draft_model_quantization": draft.quantization,
        "speculative_draft_load_format": "dummy" if draft.dummy_weights else "",
        "speculative_adaptive": is_adaptive(draft),
        "speculative_adaptive_config": site.scratch / ADAPTIVE_FILE if is_adaptive(draft) else "",
    }
    set_ones = {name: value for name, value in optional.items() if value}
    return {"speculative_algorithm": ALGORITHMS[drafter_of(draft)], **length_flags(draft), **set_ones}


def length_flags(draft: Draft) -> dict[str, int]:
    """How much is drafted: SGLang counts the window that is verified, one token more than the draft."""
    if drafter_of(draft) == "dspark":
        return {"speculative_dspark_block_size": draft.k}
    window = {"speculative_num_draft_tokens": draft.k + 1}
    if drafter_of(draft) not in TREES:
        return window
    steps, width = draft.args.get("speculative_num_steps", draft.k), draft.args.get("speculative_eagle_topk", 1)
    return {"speculative_num_steps": steps, "speculative_eagle_topk": width, **window}


def is_adaptive(draft: Draft) -> bool:
    return draft.schedule in ADAPTIVE


def steps_by_batch(draft: Draft) -> dict[str, dict[str, list[int]]]:
    """SGLang's table for draft lengths: batch size, at least → the lengths among which acceptance chooses."""
    if draft.schedule == "batch_size":
        return {str(size): {"candidate_steps": [k]} for size, k in sorted(draft.k_by_batch.items())}
    return {"1": {"candidate_steps": [*(steps for steps in ADAPTIVE_STEPS if steps < draft.k), draft.k]}}


def environment_of(deployment: Deployment) -> dict[str, str]:
    """Health checks without a generation, log-probabilities at temperature 1, and the environment told with the rest."""
    engine, draft = deployment.engine, deployment.draft
    return {
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false",
        "SGLANG_RETURN_ORIGINAL_LOGPROB": "true",
        "SGLANG_EXPOSE_OWN_ENV_VARS": "true",
        **({"SGLANG_USE_CPU_ENGINE": "1"} if engine.device == "cpu" else {}),
        **({"OMP_NUM_THREADS": str(engine.threads)} if engine.threads else {}),
        **(pretended(draft) if draft.method == "synthetic" else {}),
    }


def meeting_environment(site: Site) -> dict[str, str]:
    """The address by which the other ranks reach this one, where a node has several."""
    return {"SGLANG_HOST_IP": site.meeting.own_address} if site.meeting else {}


def pretended(draft: Draft) -> dict[str, str]:
    """Acceptance by dice: each step's length is the acceptance length rounded down or up, the same for the whole batch."""
    return {
        "SGLANG_SIMULATE_ACC_LEN": f"{draft.acceptance_length:g}",
        "SGLANG_SIMULATE_ACC_METHOD": "match-expected",
        "SGLANG_SIMULATE_ACC_TOKEN_MODE": "real-draft-token",
    }
