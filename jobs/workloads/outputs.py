"""Owns what is read from an answer after it came: where its thoughts end, and whether it is valid. Times nothing.

Does not own the rules of validity, or what is done with either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from jobs.workloads.base import Conversation
from jobs.workloads.tokenize import ChatTokenizer
from jobs.workloads.validity import expects_schema, is_valid
from storage.rows import RequestRow

MARKS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("◁think▷", "◁/think▷"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),
)
"""How models mark the beginning and the end of their thoughts. The last is gpt-oss's: its answer is a channel of its own."""

NEAR = 16  # ids at a prompt's end in which the template may open or close the thoughts itself


@dataclass(frozen=True)
class Thoughts:
    """The marks of a model as ids."""

    begin: tuple[int, ...]
    end: tuple[int, ...]

    def count(self, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> int:
        """Output tokens up to the end of the thoughts, its mark counted in; all of them where they never end."""
        end = _first(output_ids, self.end)
        if end is not None:
            return end + len(self.end)
        near = prompt_ids[-NEAR:]
        is_open = _last(near, self.begin) > _last(near, self.end) or _first(output_ids, self.begin) is not None
        return len(output_ids) if is_open else 0


def thoughts_of(tokenizer: ChatTokenizer) -> Thoughts | None:
    """The marks that a model's vocabulary has; None where it has none, and nothing tells thoughts from answers."""
    for begin, end in MARKS:
        ids = tuple(tokenizer.plain_ids(begin)), tuple(tokenizer.plain_ids(end))
        if all(tokenizer.is_added(mark[0]) and tokenizer.is_added(mark[-1]) for mark in ids):
            return Thoughts(*ids)
    return None


def with_outputs_read(
    rows: Sequence[RequestRow], conversations: Sequence[Conversation], tokenizer: ChatTokenizer, json_schema: str = ""
) -> list[RequestRow]:
    """The rows with `n_thinking_tokens` and `output_valid`; None where the engine told no ids or nothing was expected.

    `json_schema`: what every answer must keep whose prompt expects nothing else; "" = nothing.
    """
    thoughts = thoughts_of(tokenizer)
    common = expects_schema(json_schema) if json_schema else ""

    def read(row: RequestRow) -> RequestRow:
        conversation = conversations[row.index]
        n_thinking = thoughts.count(conversation.ids([]), row.output_ids) if thoughts else None
        expects = conversation.prompt.expects or common
        answer = row.output_ids[n_thinking or 0 :]
        valid = is_valid(expects, tokenizer.decode(answer)) if expects and not row.error else None
        return replace(row, n_thinking_tokens=n_thinking, output_valid=valid)

    return [read(row) if len(row.output_ids) else row for row in rows]


def _first(ids: Sequence[int], mark: Sequence[int]) -> int | None:
    places = range(len(ids) - len(mark) + 1)
    return next((at for at in places if tuple(ids[at : at + len(mark)]) == mark), None)


def _last(ids: Sequence[int], mark: Sequence[int]) -> int:
    """-1 = nowhere."""
    places = range(len(ids) - len(mark), -1, -1)
    return next((at for at in places if tuple(ids[at : at + len(mark)]) == mark), -1)
