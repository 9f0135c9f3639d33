"""Owns the port between the host's HTTP side and what generates. Does not own HTTP, or any model.

Standard library only: it is imported in the engine's environment.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Generate:
    """One request to generate. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 are off."""

    prompt_ids: Sequence[int]
    output_limit: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    ignore_eos: bool = False
    category: str = ""
    wants_logprobs: bool = False


@dataclass(frozen=True)
class Step:
    """One draft-and-verify round: the tokens that it delivered, and how many were drafted and accepted.

    Without speculation each token is a step with nothing drafted. `is_prefill`: the round only ended the prefill, so that
    nothing could be drafted. `is_cut`: a stop cut it short. `finish_reason` is "" until the last step. `logprobs`: the
    target's own, one a token, where the request wants them.
    """

    token_ids: Sequence[int]
    drafted: int = 0
    accepted: int = 0
    is_prefill: bool = False
    is_cut: bool = False
    finish_reason: str = ""
    logprobs: Sequence[float] = ()


class Backend(Protocol):
    """What generates. The host calls `generate` for at most `batch` requests at once; others wait in order of arrival."""

    batch: int

    def facts(self) -> dict[str, Any]:
        """Fields of `jobs.engines.base.EngineFacts`, as plain JSON values."""

    def generate(self, request: Generate) -> AsyncIterator[Step]:
        """Steps as they happen. Closing the iterator early (a client that went away) frees what it held."""
