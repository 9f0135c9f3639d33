"""Owns the target's own log-probabilities of an answer, with transformers. Does not own how the answer came about.

They are taken afterwards, in one forward pass of the target over prompt and answer: so they are the target's, whatever
generation did, and plain and assisted generation are told alike. Before temperature, top-k and top-p.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from jobs.engines.host.backend import Step


def with_logprobs(model: Any, prompt_ids: Sequence[int], steps: Sequence[Step]) -> Iterator[Step]:
    """The steps of one answer, each with its tokens' log-probabilities."""
    told = iter(logprobs_of(model, prompt_ids, [token for step in steps for token in step.token_ids]))
    for step in steps:
        yield replace(step, logprobs=[next(told) for _ in step.token_ids])


def logprobs_of(model: Any, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> list[float]:
    """Natural logarithms, one for each of `output_ids`."""
    count = len(output_ids)
    ids = torch.tensor([[*prompt_ids, *output_ids]], device=model.device)
    kept = {"logits_to_keep": count + 1} if model._supports_logits_to_keep() else {}
    with torch.inference_mode():
        logits = model(ids, use_cache=False, **kept).logits[0, -count - 1 : -1].float()
        told: list[float] = logits.log_softmax(-1).gather(1, ids[0, -count:, None])[:, 0].tolist()
    return told
