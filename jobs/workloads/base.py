"""Owns what a prompt and a conversation are. Does not own where prompts come from, or sending.

The columns of `Prompt` are those of SPEED-Bench, so that every workload can be sliced in the same way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from jobs.errors import BadInput
from jobs.spec import Workload

Message = Mapping[str, Any]
"""One of a dialogue, as chat templates have it: role, content, and for tools tool_calls or tool_call_id."""


class Template(Hashable, Protocol):
    """What a recipe may ask of the target's tokenizer."""

    def encode(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a dialogue that ends with a user's turn, in the chat template."""

    def plain_ids(self, text: str) -> list[int]:
        """The ids of a text as it stands, in no template."""

    def around(self) -> tuple[list[int], list[int]]:
        """The ids that the chat template puts before and after a user's only turn."""

    @property
    def ordinary_ids(self) -> Sequence[int]:
        """Ids that are text: neither special nor added to the vocabulary."""

    @property
    def vocabulary_size(self) -> int:
        """Ids must be smaller."""


class Recipe(Protocol):
    """How a prompt is made that depends on the tokenizer, because it is to have a certain length in its tokens."""

    @property
    def isl(self) -> int:
        """Tokens of the prompt, the chat template's counted in."""

    def made(self, template: Template) -> tuple[str, list[int]]:
        """The user's turn, and the ids of the whole prompt; `BadInput` where the length cannot be had."""


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
    recipe: Recipe | None = field(
        default=None, repr=False, compare=False
    )  # makes the one turn; `turns` says what it will be
    expects: str = field(default="", repr=False)  # what a valid answer is, for `jobs.workloads.validity`; "" = anything
    opening: tuple[Message, ...] = field(default=(), repr=False)  # before the first turn: what a system prompt says
    recorded: tuple[tuple[Message, ...], ...] = field(default=(), repr=False)
    """What is added before each turn, where a record gives the answers, too; the model's own are not fed back then."""
    tools: tuple[Message, ...] = field(default=(), repr=False)  # for the chat template
    output_limit: int = 0  # of each answer, where the workload's is not lower; 0 = the workload's
    arrival_s: float | None = None  # when it came, in a trace: these are sent in this order, by `load=replay` at these times

    def messages(self, answers: Sequence[str]) -> list[Message]:
        """The dialogue up to the turn after these answers."""
        if self.recorded:
            return [*self.opening, *(message for part in self.recorded[: len(answers) + 1] for message in part)]
        said: list[Message] = []
        for turn, answer in zip(self.turns, answers, strict=False):
            said += [{"role": "user", "content": turn}, {"role": "assistant", "content": answer}]
        return [*self.opening, *said, {"role": "user", "content": self.turns[len(answers)]}]

    def limit(self, output_limit: int) -> int:
        """Most tokens of each answer, where the workload allows so many."""
        return min(self.output_limit or output_limit, output_limit)


class Conversation(Protocol):
    """One conversation as token ids, the same for every engine."""

    @property
    def prompt(self) -> Prompt: ...

    @property
    def n_turns(self) -> int: ...

    def ids(self, answers: Sequence[Sequence[int]]) -> list[int]:
        """Token ids of turn `len(answers)`, with the answers (token ids) so far fed back through the chat template."""


def question_id_of(*names: object) -> str:
    """32 hex digits that stand for a prompt for ever: of where it comes from, and of all that its text depends on."""
    return hashlib.sha256("/".join(str(name) for name in names).encode()).hexdigest()[:32]


def refuse_meaningless(workload: Workload, reasons: Mapping[str, str]) -> None:
    """`BadInput` for a field (name → why it can mean nothing) that the workload could only ignore."""
    for name, reason in reasons.items():
        if value := getattr(workload, name):
            raise BadInput(
                f"`workload.{name}` does not exist for `{workload.name}`: got {value!r}, but {reason}. Leave it out."
            )
