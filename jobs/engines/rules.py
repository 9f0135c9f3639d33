"""Owns how adapters say what they refuse: rules as pairs, and the refusal of a method with the engines that offer it.

Does not own any engine's rules. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from functools import cache

from jobs.engines.base import Engine
from jobs.errors import BadInput, Unsupported
from jobs.identity import default_of

Rule = tuple[bool, str]
"""Does it hold, and what is wrong if not."""


def enforce(offers: Iterable[Rule], rules: Iterable[Rule]) -> None:
    """`Unsupported` for the first of `offers` that does not hold (another engine may help), then `BadInput` for `rules`."""
    for kind, pairs in ((Unsupported, offers), (BadInput, rules)):
        for holds, wrong in pairs:
            if not holds:
                raise kind(wrong)


def offers_method(engine: Engine, method: str, version: str = "") -> Rule:
    """Whether this engine has this method, in this version of it ("" = in the newest that is known)."""
    offer = engine.methods[method]
    why = offer.refusal
    if not why and offer.until and version and version_of(version) >= version_of(offer.until):
        why = f"version {version} has it no more, it went with {offer.until}"
    others = ", ".join(engines_that_offer(method)) or "no engine"
    return not why, f"`draft.method` must be one that {engine.name} offers: got {method!r} ({why}). Offered by: {others}."


@cache
def engines_that_offer(method: str) -> tuple[str, ...]:
    """The names of the engines that have this method; the simulated one never counts."""
    from jobs.engines import ENGINES, engine_named  # the registry imports adapters, and those import this

    return tuple(name for name in ENGINES if name != "simulated" and not engine_named(name).methods[method].refusal)


def lacks(engine: str, section: str, part: object, names: Iterable[str]) -> Iterator[Rule]:
    """That these fields of a section have their defaults, because this engine has nothing of the kind."""
    for item in fields(part):  # type: ignore[arg-type]  # a dataclass
        if item.name in names:
            value, default = getattr(part, item.name), default_of(item)
            wrong = (
                f"`{section}.{item.name}` must be {default!r} for {engine}, which has nothing of the kind: got {value!r}."
            )
            yield value == default, wrong


def one_of(name: str, value: object, known: tuple[str, ...] | Mapping[str, object]) -> Rule:
    return value in known, f"`{name}` must be known: got {value!r}. Known: {', '.join(known)}. Use one of them."


def at_least(name: str, value: int, least: int, why: str = "") -> Rule:
    return value >= least, f"`{name}` must be at least {least}{why}: got {value}."


def version_of(text: str) -> tuple[int, ...]:
    """`0.32.0+cpu` → (0, 32, 0): as far as it is numbers."""
    numbers: list[int] = []
    for part in text.split("+")[0].split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)
