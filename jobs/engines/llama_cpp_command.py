"""Owns how a deployment becomes llama-server's command line and environment. Does not own what is refused.

Pure, but for a look at where a GGUF file lies on this machine.
"""

from __future__ import annotations

from itertools import accumulate
from operator import mul
from typing import Any

from jobs.engines.base import Launch, Site
from jobs.engines.launching import SESSION, drafter_of, visible
from jobs.engines.options import known_of, words_of
from jobs.engines.own_host import interpreter
from jobs.models import locate
from jobs.spec import Deployment, Draft, Engine

OURS = {
    **dict.fromkeys(("model", "model_url", "hf_repo", "hf_file", "docker_repo", "models_dir"), "model.path"),
    "parallel": "engine.batch",
    "ctx_size": "engine.max_length",
    "kv_unified": "engine.max_length",
    "cache_type_k": "engine.kv_dtype",
    "cache_type_v": "engine.kv_dtype",
    **dict.fromkeys(("cache_prompt", "cache_ram"), "engine.prefix_cache"),
    **dict.fromkeys(("split_mode", "tensor_split"), "engine.tp"),
    **dict.fromkeys(("device", "gpu_layers"), "engine.device"),
    "threads": "engine.threads",
    "seed": "engine.seed",
    **dict.fromkeys(("host", "port", "alias", "api_key", "api_key_file", "api_prefix", "metrics", "slots"), SESSION),
    **dict.fromkeys(("slot_save_path", "offline", "ui"), SESSION),
}
"""llama-server's option → the field that sets it."""
DRAFT_OURS = {
    **dict.fromkeys(("spec_type", "spec_default"), "draft.method"),
    **dict.fromkeys(("spec_draft_model", "spec_draft_hf"), "draft.model"),
    **dict.fromkeys(("spec_draft_n_max", "spec_ngram_simple_size_m"), "draft.k"),
    "spec_ngram_simple_size_n": "draft.ngram_max",
    "spec_draft_p_min": "draft.confidence_threshold",
    "spec_synth_len": "draft.acceptance_length",
    "spec_synth_rates": "draft.acceptance_rates",
    "spec_draft_ngl": "engine.device",
}
TYPES = {
    "none": "none",
    "ngram": "ngram-simple",
    "draft_model": "draft-simple",
    "eagle3": "draft-eagle3",
    "mtp": "draft-mtp",
    "dflash": "draft-dflash",
    "dspark": "draft-dspark",
}
"""Our methods → `--spec-type`."""
LAYERS = {"cpu": "0", "cuda": "all"}


def launch_of(deployment: Deployment, site: Site) -> Launch:
    engine, draft = deployment.engine, deployment.draft
    options = known_of("llama_cpp", engine.version.lstrip("b")).sections.get("server", {})
    model = locate(deployment.model.path, deployment.model.revision)
    flags = {"model": model, **session_flags(site), **engine_flags(engine), **draft_flags(engine, draft)}
    words = (
        word for name, value in {**flags, **engine.args, **draft.args}.items() for word in words_of(name, value, options)
    )
    return Launch(
        argv=(interpreter(engine.python) if engine.python else "llama-server", *words),
        env={**key_of(site), **visible(site), **({} if engine.cuda_graphs else {"GGML_CUDA_DISABLE_GRAPHS": "1"})},
    )


def key_of(site: Site) -> dict[str, str]:
    """The nonce is the name and the key, so that a stranger refuses our requests, too. Others can read command lines."""
    return {"LLAMA_ARG_ALIAS": site.nonce, "LLAMA_API_KEY": site.nonce}


def session_flags(site: Site) -> dict[str, Any]:
    """What the session sets."""
    return {
        "host": "127.0.0.1",
        "port": site.port,
        "metrics": True,
        "slots": True,
        "slot_save_path": site.scratch,  # without one, it does not empty slots either
        "offline": True,
        "ui": False,
    }


def engine_flags(engine: Engine) -> dict[str, Any]:
    """Every field of the engine. Its context is one for all slots, which share it evenly."""
    optional = {
        "threads": engine.threads,
        "split_mode": "tensor" if engine.tp > 1 else "",
        "device": "none" if engine.device == "cpu" else "",
        "gpu_layers": LAYERS.get(engine.device, ""),
    }
    kv_dtype = {} if engine.kv_dtype == "auto" else dict.fromkeys(("cache_type_k", "cache_type_v"), engine.kv_dtype)
    return {
        "parallel": engine.batch,
        "ctx_size": engine.max_length * engine.batch,
        "kv_unified": False,
        "cache_prompt": engine.prefix_cache,
        "seed": engine.seed,
        **({} if engine.prefix_cache else {"cache_ram": 0}),
        **kv_dtype,
        **{name: value for name, value in optional.items() if value},
    }


def draft_flags(engine: Engine, draft: Draft) -> dict[str, Any]:
    method = drafter_of(draft)
    if method == "none":
        return {"spec_type": "none"}
    length = {"spec_draft_n_max": draft.k}
    if method == "ngram":
        length = {"spec_ngram_simple_size_n": draft.ngram_max, "spec_ngram_simple_size_m": draft.k}
    optional = {
        "spec_draft_model": locate(draft.model, draft.revision, "draft.model") if draft.model else "",
        "spec_draft_ngl": LAYERS.get(engine.device, "") if draft.model else "",
        "spec_draft_device": "CUDA0" if draft.tp == 1 < engine.tp else "",
        "spec_draft_p_min": draft.confidence_threshold,
        "spec_synth_len": draft.acceptance_length,
        "spec_synth_rates": ",".join(f"{rate:g}" for rate in accumulate(draft.acceptance_rates, mul)),
    }
    return {"spec_type": TYPES[method], **length, **{name: value for name, value in optional.items() if value}}
