"""Owns what a vLLM worker is asked that vLLM itself does not tell: the memory of its weights, and its peak.

Runs inside vLLM's workers (`--worker-extension-cls`), not in our environment. Does not own anything that happens in a step.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from typing import Any


class WorkerMemory:
    """Mixed into vLLM's worker class; called over `/collective_rpc`."""

    model_runner: Any

    def specsweep_memory(self) -> dict[str, int]:
        """Bytes of this worker: the target's weights, those of the draft that are its own, and the peak of all memory."""
        target = dict(_storages(self.model_runner.get_model()))
        draft = dict(_storages(_draft_of(self.model_runner)))
        shared = target.keys() & draft.keys()
        return {
            "weights": sum(target.values()),
            "draft_weights": sum(size for key, size in draft.items() if key not in shared),
            "peak": _peak_bytes(),
        }


def _draft_of(runner: Any) -> Any:
    """The draft's model, as the runners of different versions name it; None where there is none."""
    drafter = getattr(runner, "drafter", None) or getattr(runner, "speculator", None)
    return getattr(drafter, "model", None)


def _storages(model: Any) -> Iterator[tuple[int, int]]:
    """Address and bytes of what holds the parameters of a model: what is shared has one address."""
    if hasattr(model, "parameters"):
        for tensor in model.parameters():
            storage = tensor.untyped_storage()
            yield storage.data_ptr(), storage.nbytes()
        yield from _packed(model)


def _packed(model: Any) -> Iterator[tuple[int, int]]:
    """Linear layers whose weight vLLM has packed for the CPU and then dropped: what it was, as it is in the packed form."""
    for module in model.modules():
        weight, size_out = getattr(module, "weight", None), getattr(module, "output_size", 0)
        if size_out and weight is not None and weight.numel() == 0:
            size_in = getattr(module, "input_size_per_partition", module.input_size)
            size_out = getattr(module, "output_size_per_partition", size_out)
            yield id(module), size_in * size_out * module.params_dtype.itemsize


def _peak_bytes() -> int:
    """Of the device where there is one, else of this process."""
    cuda = sys.modules["torch"].cuda
    if cuda.is_available():
        return int(cuda.max_memory_reserved())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
