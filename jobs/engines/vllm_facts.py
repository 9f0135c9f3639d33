"""Owns what a running vLLM tells of itself: its configuration, counters and memory. Does not own what was asked of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jobs.engines import control
from jobs.engines.base import Endpoint, EngineFacts
from jobs.engines.own_host import check_name, check_speculation
from jobs.engines.prometheus import Sample, samples_in
from jobs.engines.rules import version_of
from jobs.engines.vllm_command import speculative_config
from jobs.errors import EngineFailed, WrongEngine
from jobs.spec import Deployment

INFO_LIMIT_S = 120.0  # its first answer collects the versions of everything around it
COUNTERS = {
    "vllm:spec_decode_num_drafts_total": "drafts",
    "vllm:spec_decode_num_draft_tokens_total": "draft_tokens",
    "vllm:spec_decode_num_accepted_tokens_total": "accepted_tokens",
    "vllm:generation_tokens_total": "output_tokens",
    "vllm:iteration_tokens_total_count": "iterations",
}
PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
NOT_COMPARED = ("model", "draft_load_config")  # told as vLLM has resolved them
HIDDEN = ("hf_token", "target_model_config", "target_parallel_config")  # a secret; what is told elsewhere


def identity_of(endpoint: Endpoint) -> dict[str, Any]:
    """The name under which it serves, as `check_name` wants it."""
    told = control.get_json(endpoint, "/v1/models").get("data")
    names = [model.get("id") for model in told] if isinstance(told, list) else []
    return {"model": endpoint.model if endpoint.model in names else ", ".join(map(str, names))}


def facts_of(deployment: Deployment, endpoint: Endpoint) -> EngineFacts:
    """Raises `WrongEngine` when it is not ours, or another version, or does not speculate exactly as asked."""
    check_name(identity_of(endpoint), endpoint)
    version = str(control.get_json(endpoint, "/version").get("version"))
    check_version(version, deployment.engine.version)
    info = control.get_json(endpoint, "/server_info?config_format=json", timeout_s=INFO_LIMIT_S)
    config, samples = info.get("vllm_config") or {}, samples_at(endpoint)
    told = proven(deployment, config.get("speculative_config"), counters_of(samples))
    check_speculation({"effective_config": told}, deployment)
    return EngineFacts(
        version=version,
        effective_config={**told, **visible(config)},
        versions=versions_of(info.get("system_env") or {}),
        kv_capacity_tokens=capacity_of(samples),
        **memory_of(endpoint, is_speculative=deployment.is_speculative),  # type: ignore[arg-type]
    )


def check_version(version: str, asked: str) -> None:
    if asked and version_of(version) != version_of(asked):
        raise WrongEngine(f"vLLM must have the version of `engine.version`, {asked}: it says {version}.")


def proven(deployment: Deployment, told: Mapping[str, Any] | None, counters: Mapping[str, float]) -> dict[str, Any]:
    """Method and `k` as vLLM says that it runs; its own words where they are not what was asked for.

    Two witnesses must agree: its configuration, and the counters that it has only when it speculates.
    """
    if (told is None) != ("drafts" not in counters):
        raise WrongEngine(f"vLLM's configuration and counters must agree: {told} with {sorted(counters)}.")
    if told is None:
        return {"method": "none", "k": 0}
    if not deployment.is_speculative:
        return {"method": told.get("method"), "k": told.get("num_speculative_tokens")}
    asked = speculative_config(deployment, None)
    k = told.get("num_speculative_tokens")
    for name, value in asked.items():
        if name not in (*NOT_COMPARED, "num_speculative_tokens") and told.get(name) != value:
            raise WrongEngine(f"vLLM must run with {name} = {value!r}: it says {told.get(name)!r}.")
    return {"method": deployment.draft.method, "k": k}


def visible(config: Any) -> Any:
    """A configuration without what must not be recorded."""
    if isinstance(config, dict):
        return {name: visible(value) for name, value in config.items() if name not in HIDDEN}
    return config


def versions_of(environment: Mapping[str, Any]) -> dict[str, str]:
    """Of Python, CUDA and the packages that vLLM itself names."""
    packages = (line.partition("==") for line in str(environment.get("pip_packages") or "").splitlines())
    found = {name: version for name, _, version in packages if version}
    for name in ("python", "cuda_runtime", "cudnn", "nvidia_driver"):
        found[name] = str(environment.get(f"{name}_version") or "").partition(" ")[0]
    return {name: version for name, version in found.items() if version}


def memory_of(endpoint: Endpoint, *, is_speculative: bool) -> dict[str, int]:
    """Bytes over all workers, as our extension of them tells; nothing where vLLM does not let it."""
    try:
        told = control.post_json(endpoint, "/collective_rpc", body={"method": "specsweep_memory"})["results"]
        total = {name: sum(worker[name] for worker in told) for name in ("weights", "draft_weights", "peak")}
    except (EngineFailed, KeyError, TypeError):
        return {}
    draft = {"draft_weights_bytes": total["draft_weights"] if is_speculative else 0}
    return {"weights_bytes": total["weights"], "peak_memory_bytes": total["peak"], **draft}


def samples_at(endpoint: Endpoint) -> list[Sample]:
    """Each of its metrics."""
    return samples_in(control.call(endpoint, "GET", "/metrics").text)


def counters_of(samples: list[Sample]) -> dict[str, float]:
    """Our counters, summed over the engines of data parallelism. Those of speculation are absent without it."""
    found: dict[str, float] = {}
    for sample in samples:
        at = sample.labels.get("position")
        key = f"accepted_at_{at}" if sample.name == PER_POSITION else COUNTERS.get(sample.name)
        if key:
            found[key] = found.get(key, 0.0) + sample.value
    return found


def capacity_of(samples: list[Sample]) -> int | None:
    """Tokens for which the KV cache has room, over the engines of data parallelism."""
    caches = [sample.labels for sample in samples if sample.name == "vllm:cache_config_info"]
    rooms = [_tokens_of(cache) for cache in caches]
    return sum(room for room in rooms if room) or None


def _tokens_of(cache: Mapping[str, str]) -> int:
    if (tokens := cache.get("kv_cache_size_tokens", "")).isdigit():
        return int(tokens)
    blocks, size = cache.get("num_gpu_blocks", ""), cache.get("block_size", "")
    return int(blocks) * int(size) if blocks.isdigit() and size.isdigit() else 0


def holds_suffixes(endpoint: Endpoint) -> bool:
    """Whether it keeps a tree of past answers, which nothing but a new start empties."""
    info = control.get_json(endpoint, "/server_info?config_format=json", timeout_s=INFO_LIMIT_S)
    config = (info.get("vllm_config") or {}).get("speculative_config") or {}
    return config.get("method") == "suffix" and config.get("suffix_decoding_max_cached_requests") != 0
