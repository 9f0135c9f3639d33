"""Owns lengths as SPEED-Bench has them, in tokens of o200k_base of the text alone. Does not own the target's tokens."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, Protocol

from jobs.models import reason_of
from jobs.workloads.prepare.library import Library, Missing

ENCODING = "o200k_base"
PADDING = "Answer now please.\n"  # after a prompt that is too short, as the reference does it


class Encoder(Protocol):
    """What is used of tiktoken's Encoding."""

    def encode(self, text: str, *, disallowed_special: Any) -> list[int]: ...

    def decode(self, tokens: Sequence[int]) -> str: ...


def encoder(library: Library) -> Encoder:
    """tiktoken's o200k_base; `Missing` where there is no tiktoken, or its table cannot be fetched."""
    return library.once(ENCODING, _loaded)


def ids_of(text: str, tokens: Encoder) -> list[int]:
    """Token ids; what looks like a special token is text."""
    return tokens.encode(text, disallowed_special=())


def fitted(prompt: str, count: int, tokens: Encoder) -> str:
    """The prompt at `count` tokens: the first ones of a longer one, a shorter one with the PADDING repeated after it."""
    ids = ids_of(prompt, tokens)
    if len(ids) == count:
        return prompt
    if len(ids) < count:
        repeats = -(-(count - len(ids)) // len(ids_of(PADDING, tokens)))
        ids = ids_of(prompt + PADDING * repeats, tokens)
    return tokens.decode(ids[:count])


def _loaded() -> Encoder:
    try:
        loaded: Encoder = importlib.import_module("tiktoken").get_encoding(ENCODING)
    except ImportError:
        raise Missing(f"its length is in tokens of {ENCODING}, which needs tiktoken: pip install tiktoken") from None
    except (OSError, ValueError) as failure:
        raise Missing(
            f"tiktoken cannot fetch {ENCODING} ({reason_of(failure)}): set TIKTOKEN_CACHE_DIR to a folder that has it"
        ) from None
    return loaded
