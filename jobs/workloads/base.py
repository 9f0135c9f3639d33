"""Owns what a prompt and a conversation are. Does not own where prompts come from, or sending.

The columns of `Prompt` are those of SPEED-Bench, so that every workload can be sliced in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Prompt:
    """One conversation before tokenization: user turns only; the model's own answers go between them."""

    question_id: str
    category: str
    turns: tuple[str, ...]
    sub_category: str = ""
    source: str = ""
    src_id: str = ""
    difficulty: str = ""
    multiturn: bool = False


class Conversation(Protocol):
    """One conversation as token ids, the same for every engine."""

    @property
    def prompt(self) -> Prompt: ...

    @property
    def n_turns(self) -> int: ...

    def ids(self, answers: Sequence[Sequence[int]]) -> list[int]:
        """Token ids of turn `len(answers)`, with the answers (token ids) so far fed back through the chat template."""
