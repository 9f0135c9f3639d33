"""Owns the registry of engines. Does not import one before it is asked for."""

from __future__ import annotations

from importlib import import_module

from jobs.engines.base import Engine
from jobs.errors import BadInput

ENGINES = {
    "transformers": "jobs.engines.transformers:TransformersEngine",
    "simulated": "jobs.engines.simulated:SimulatedEngine",
    "vllm": "jobs.engines.vllm:VllmEngine",
    "sglang": "jobs.engines.sglang:SGLangEngine",
    "tensorrt_llm": "jobs.engines.tensorrt_llm:TensorrtLlmEngine",
    "llama_cpp": "jobs.engines.llama_cpp:LlamaCppEngine",
    "attached": "jobs.engines.attached:AttachedEngine",
}
"""name → module:class of its adapter."""


def engine_named(name: str) -> Engine:
    """The adapter of that name; `BadInput` with the list when there is none."""
    if name not in ENGINES:
        known = ", ".join(sorted(ENGINES))
        raise BadInput(f"`engine.name` must be a known engine: got {name!r}. Known: {known}. Use one of them.")
    module, _, attribute = ENGINES[name].partition(":")
    engine: Engine = getattr(import_module(module), attribute)()
    return engine
