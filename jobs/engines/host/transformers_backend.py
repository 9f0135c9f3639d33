"""Owns generation with Hugging Face transformers: one loaded model, one request at a time, one `Step` a verify step.

Does not own HTTP, or how a draft is configured (`drafting.py`). Runs in the engine's environment only.

What a step is here (read in transformers 5.24, `_assisted_decoding`). Each round drafts first, then verifies draft and one
bonus token in one forward. The first round is no exception: prompt lookup searches the prompt, an assistant prefills it and
drafts, and the target's prefill and its first verification are *one* forward. So such a request has no prefill step of its
own: its first step may deliver several tokens, and its time holds the prefill (twice with an assistant). Without
speculation, and where the target's hidden states are what drafts (Medusa, MTP, DFlash), the first token ends the prefill
and is marked so. What EOS or the limit cut off a round is not counted as
accepted; `is_cut` marks it. Prompt lookup never drafts EOS; an assistant may, and then no bonus token follows it.
"""

from __future__ import annotations

import asyncio
import os
import platform
import resource
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import transformers
from transformers import GenerationConfig
from transformers.generation import BaseStreamer, StoppingCriteria, StoppingCriteriaList

from jobs.engines.host.backend import Generate, Step
from jobs.engines.host.drafting import AFTER_PREFILL, Drafting, is_cut
from jobs.engines.host.loading import described, load_drafter, load_model, weights_bytes
from jobs.engines.host.logprobs import with_logprobs

Emit = Callable[[Step], None]


def load(config: dict[str, Any]) -> TransformersBackend:
    """The backend of this deployment; see `__main__` for the shape of `config`."""
    engine = config["engine"]
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(engine["threads"] or usable_cores())
    torch.manual_seed(engine["seed"])
    model = load_model(config["model_dir"], engine)
    drafting = Drafting(config["draft"], model, load_drafter(config, model))
    return TransformersBackend(model, drafting, engine["max_length"])


def usable_cores() -> int:
    """The cores that this process may use: torch counts all of the machine's, also under an affinity mask."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    physical: int = torch.get_num_threads()
    return max(1, min(physical, allowed))


@dataclass
class TransformersBackend:
    """A loaded model. Its one worker thread generates, so that two requests can never meet in the model."""

    model: Any
    drafting: Drafting
    max_length: int = 0  # prompt and output; 0 = the model's own limit
    batch: int = 1  # assisted generation in transformers takes no more
    eos_ids: list[int] = field(default_factory=list)
    worker: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "generate"))

    def __post_init__(self) -> None:
        parts = [part for part in (self.model, self.drafting.assistant) if part is not None]
        own = [getattr(part.config.get_text_config(), "max_position_embeddings", None) for part in parts]
        self.max_length = min((limit for limit in (self.max_length, *own) if limit), default=0)
        self.eos_ids = as_ids(self.model.generation_config.eos_token_id)
        for part in parts:
            if part.can_generate():
                forget_settings(part)
        self.drafting.install()

    def facts(self) -> dict[str, Any]:
        drafter = self.drafting.drafter
        versions = {"transformers": transformers.__version__, "torch": torch.__version__}
        return {
            "version": transformers.__version__,
            "versions": {**versions, "python": platform.python_version()},
            "effective_config": {
                **self.drafting.settings,
                **described(self.drafting.method, drafter, self.model),
                **self.settings(),
            },
            "weights_bytes": weights_bytes(self.model),
            "draft_weights_bytes": weights_bytes(drafter, beside=self.model) if drafter is not None else 0,
            "kv_capacity_tokens": self.max_length or None,
            "peak_memory_bytes": peak_memory_bytes(self.model.device),
        }

    def settings(self) -> dict[str, Any]:
        """What it really runs with, as far as it can be asked."""
        return {
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "device": str(self.model.device),
            "threads": torch.get_num_threads(),
            "batch": self.batch,
            "max_length": self.max_length,
            "attn_implementation": self.model.config._attn_implementation,
            "layers": self.model.config.get_text_config().num_hidden_layers,
            "architecture": type(self.model).__name__,
            "eos_token_ids": self.eos_ids,
        }

    def reset(self) -> bool | None:
        """Set the draft length back to its start: `heuristic` carries it over. Nothing else outlives a request."""
        return self.drafting.restore()

    async def generate(self, request: Generate) -> AsyncIterator[Step]:
        """Steps as they happen. Closed early, it waits for the step that is being computed; no more follow."""
        loop, gone = asyncio.get_running_loop(), threading.Event()
        steps: asyncio.Queue[Step | None] = asyncio.Queue()

        def emit(step: Step) -> None:
            loop.call_soon_threadsafe(steps.put_nowait, step)

        job = loop.run_in_executor(self.worker, self._run, request, emit, gone)
        job.add_done_callback(lambda _: steps.put_nowait(None))
        try:
            while (step := await steps.get()) is not None:
                yield step
            await job  # raises what the request raised
        finally:
            gone.set()
            await asyncio.wait({job})

    def _run(self, request: Generate, emit: Emit, gone: threading.Event) -> None:
        steps: list[Step] = []
        self._generate(request, steps.append if request.wants_logprobs else emit, gone)
        if request.wants_logprobs and steps:  # untimed: they may all come at the end
            for step in with_logprobs(self.model, request.prompt_ids, steps):
                emit(step)

    def _generate(self, request: Generate, emit: Emit, gone: threading.Event) -> None:
        request = fitted(request, self.max_length)
        eos_ids = [] if request.ignore_eos else self.eos_ids
        torch.manual_seed(request.seed)
        prompt = torch.tensor([list(request.prompt_ids)], device=self.model.device)
        with self.drafting.watched() as drafting:
            self.model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                generation_config=GenerationConfig(
                    **sampling_of(request), eos_token_id=eos_ids or None, **drafting.options()
                ),
                streamer=StepStreamer(request, drafting, eos_ids, emit),
                stopping_criteria=StoppingCriteriaList([Abandoned(gone)]),
                assistant_model=drafting.assistant,
            )


@dataclass
class StepStreamer(BaseStreamer):  # type: ignore[misc]  # transformers has no types
    """Turns what `generate()` hands over (the prompt, then the tokens of each round) into steps."""

    request: Generate
    drafting: Drafting
    eos_ids: Sequence[int]
    emit: Emit
    n_puts: int = 0
    n_tokens: int = 0

    def put(self, value: Any) -> None:
        if self.n_puts:
            self.emit(self.step(value.flatten().tolist()))
        self.n_puts += 1

    def end(self) -> None:
        """Nothing: the last step said why it is the last."""

    def step(self, tokens: list[int]) -> Step:
        seen, room = self.drafting.round, self.request.output_limit - self.n_tokens
        self.n_tokens += len(tokens)
        return Step(
            token_ids=tokens,
            drafted=len(seen.draft),
            accepted=len(tokens) - 1,
            is_prefill=self.n_puts == 1 and self.drafting.method in AFTER_PREFILL,
            is_cut=is_cut(tokens, seen, room),
            finish_reason="stop" if tokens[-1] in self.eos_ids else "length" if len(tokens) == room else "",
        )


@dataclass
class Abandoned(StoppingCriteria):  # type: ignore[misc]  # transformers has no types
    """Stops after the step that is being computed, once nobody waits for the answer any more."""

    gone: threading.Event

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        return torch.full((input_ids.shape[0],), self.gone.is_set(), device=input_ids.device)


def as_ids(token_id: int | Sequence[int] | None) -> list[int]:
    """What transformers writes as nothing, a number or a list, as a list."""
    if token_id is None:
        return []
    return [token_id] if isinstance(token_id, int) else list(token_id)


def forget_settings(model: Any) -> None:
    """Leave the padding token only in the model's generation settings.

    Many models bring a temperature or a repetition penalty there, and `generate()` silently takes it for what a request
    leaves out. Other engines don't; and with EOS there, `ignore_eos` would not be possible.
    """
    told = model.generation_config
    pad = told.pad_token_id if told.pad_token_id is not None else next(iter(as_ids(told.eos_token_id)), None)
    model.generation_config = GenerationConfig(pad_token_id=pad)


def sampling_of(request: Generate) -> dict[str, Any]:
    """The request as settings of `generate()`, where an unset `top_k` would be 50."""
    settings: dict[str, Any] = {"max_new_tokens": request.output_limit, "do_sample": request.temperature > 0}
    if request.temperature > 0:
        settings |= {"temperature": request.temperature, "top_p": request.top_p, "top_k": request.top_k}
    return settings


def fitted(request: Generate, max_length: int) -> Generate:
    """The request with a limit that keeps prompt and output within `max_length` (0 = no limit)."""
    room = max_length - len(request.prompt_ids) if max_length else request.output_limit
    if room < 1:
        raise ValueError(
            f"a prompt must leave room in the model's {max_length} tokens: got {len(request.prompt_ids)}. Use a shorter one."
        )
    return replace(request, output_limit=min(request.output_limit, room))


def peak_memory_bytes(device: Any) -> int:
    """The most that was ever allocated on the GPU, or the largest resident size of this process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in KiB
