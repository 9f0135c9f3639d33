"""Owns what a list of chat messages means as a prompt. Does not own where it comes from, or chat templates.

Without answers in it, its user's messages are turns, and the model's own answers go between them. With answers, it is a
record: there is a turn where each recorded answer stood, and before it stands what was recorded, whatever the model says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobs.workloads.base import Message
from jobs.workloads.rows import Row

FIRST = ("system", "developer")
ANSWER = "assistant"
ROLES = (*FIRST, "user", ANSWER, "tool")


@dataclass(frozen=True)
class Dialogue:
    """The parts of a prompt, as `Prompt` calls them."""

    opening: tuple[Message, ...]
    turns: tuple[str, ...]
    recorded: tuple[tuple[Message, ...], ...] = ()


def dialogue_of(messages: object, row: Row) -> Dialogue:
    """The dialogue that a row's messages are; `BadInput` for what no chat template could take."""
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise row.wrong("`messages` must be a list of messages", messages, 'Write [{"role": "user", "content": "..."}].')
    plain = [_message(item, row) for item in messages]
    n_first = next((n for n, item in enumerate(plain) if item["role"] not in FIRST), len(plain))
    opening, rest = tuple(plain[:n_first]), plain[n_first:]
    if all(item["role"] == "user" for item in rest):
        turns = tuple(item["content"] for item in rest)
        recorded: tuple[tuple[Message, ...], ...] = ()
    else:
        recorded = _recorded(rest)
        turns = tuple(str(part[-1]["content"]) for part in recorded)
    asked = [item for item in plain if item["role"] == "user"]
    if not turns or not asked:
        raise row.wrong("`messages` must ask something", [item["role"] for item in plain], "Add a user's message.")
    if not all(item["content"].strip() for item in asked):
        raise row.wrong("a user's message must say something", messages, "Take what is blank out.")
    return Dialogue(opening, turns, recorded)


def _recorded(messages: Sequence[Message]) -> tuple[tuple[Message, ...], ...]:
    """What comes before each turn: up to the first answer, then from each answer up to the next."""
    parts: list[list[Message]] = [[]]
    for item in messages:
        if item["role"] == ANSWER and parts[-1] and parts[-1][-1]["role"] != ANSWER:
            parts.append([])
        parts[-1].append(item)
    return tuple(tuple(part) for part in parts if part and part[-1]["role"] != ANSWER)


def _message(item: object, row: Row) -> Message:
    """A message without the empty fields that Parquet adds, its content as text, its calls' arguments as an object."""
    if not isinstance(item, Mapping) or item.get("role") not in ROLES:
        raise row.wrong(f"a message must have one of the roles {', '.join(ROLES)}", item, "Use one of them.")
    message = {name: value for name, value in item.items() if value is not None and value != []}
    message["content"] = _content(item.get("content"), row)
    if "tool_calls" in message:
        message["tool_calls"] = _calls(message["tool_calls"], row)
    return message


def _content(content: object, row: Row) -> str:
    """Text, or the texts of a list of parts."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, Sequence) else [content]
    texts = [part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None for part in parts]
    if None in texts:
        raise row.wrong("the content of a message must be text", content, "Leave pictures and sounds out.")
    return "".join(str(text) for text in texts)


def _calls(calls: object, row: Row) -> list[Any]:
    if not isinstance(calls, list):
        raise row.wrong("`tool_calls` must be a list of calls", calls, "Write it as the chat API does.")
    return [_call(call, row) for call in calls]


def _call(call: Any, row: Row) -> Any:
    """A tool call as chat templates want it: arguments as an object, where the API has them as text."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise row.wrong("a tool call must have a `function`", call, "Write it as the chat API does.")
    arguments = function.get("arguments")
    try:
        loaded = json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        raise row.wrong("the arguments of a tool call must be JSON", arguments, "Write an object.") from None
    return {**call, "function": {**function, "arguments": loaded}}
