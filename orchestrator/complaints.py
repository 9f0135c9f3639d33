"""Owns how an error of composition is worded for the user: one line with the rule, the value, what exists and the remedy.

Does not own composition; it reads exceptions by what they carry (`full_key`, `options`, `__cause__`), and imports no Hydra.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from enum import Enum
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

from orchestrator.settings import SweepConfig

TYPES = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    list: "a list, as [a]",
    dict: "a mapping, as {a: b}",
}


def worded(error: BaseException) -> str:
    """The error as one line, as specific as its chain of causes allows."""
    chain = list(_chain(error))
    text = str(error)
    where = next((f"conf/{found[1]}.yaml: " for e in chain if (found := re.search(r"In '([^']+/[^']+)'", str(e)))), "")
    for item in chain:
        if getattr(item, "options", None) is not None and getattr(item, "missing_cfg_file", None):
            return _no_such_choice(str(item.missing_cfg_file), item.options)  # type: ignore[attr-defined]
    if found := re.search(r"append to your default list use \+?(\S+?)=(\S+)", text):
        asked = f"{found[1]}={found[2]}"
        return f"`{found[1]}` is not chosen by default, so it must be added: got {asked}. Write +{asked}."
    if found := re.search(r"Ambiguous value for argument '([^=]+)=(.*)'", text):
        return _several_values(found[1], found[2])
    if found := re.search(r"Multiple values for (\S+)\. To override a value use '.*: (\S+)'", text):
        return _chosen_twice(found[1], found[2])
    keyed = next((e for e in chain if getattr(e, "full_key", None)), None)
    if keyed and str(keyed.full_key) == "grid":  # type: ignore[attr-defined]
        return f"a grid must begin with '# @package _global_', as its keys are a sweep's: {where[:-2]} does not. Add it."
    return where + (_at_key(str(keyed.full_key), keyed) if keyed else _unreadable(text))  # type: ignore[attr-defined]


def no_such_field(key: str) -> str:
    """What to say of a key that the schema does not have."""
    section, _, name = key.rpartition(".")
    known = _names(section)
    if not known:  # the section itself is unknown: speak of that
        return no_such_field(section) if section else f"`{name}` is unknown."
    near = get_close_matches(name, known, n=1)
    hint = f"Did you mean {section + '.' if section else ''}{near[0]}?" if near else "Use one of them."
    owner = f"field of `{section}`. Fields" if section else "key of a sweep. Keys"
    return f"`{key}` is no {owner}: {', '.join(known)}. {hint}"


def no_such_choice(folder: str, choice: object, known: Iterable[str]) -> str:
    """What to say of a choice that a folder of conf/ does not have."""
    names = sorted(known)
    near = get_close_matches(str(choice), names, n=1)
    hint = f"Did you mean {near[0]}?" if near else "Use one of them."
    return f"`{folder}` must be a file of conf/{folder}/: got {str(choice)!r}. Known: {', '.join(names) or '(none)'}. {hint}"


@cache  # asked for each key of each composition, and it evaluates all annotations anew
def type_at(key: str) -> Any:
    """The type that the schema gives to a key; None where it has no such key."""
    kind: Any = SweepConfig
    for name in key.split("."):
        if kind is Any:
            return Any
        if get_origin(kind) is dict:
            kind = get_args(kind)[1]
            continue
        hints = get_type_hints(kind) if is_dataclass(kind) else {}
        if name not in hints:
            return None
        kind = hints[name]
    return kind


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _names(section: str) -> list[str]:
    kind = type_at(section) if section else SweepConfig
    return [f.name for f in fields(kind)] if is_dataclass(kind) else []


def _no_such_choice(missing: str, options: Iterable[str]) -> str:
    folder, _, choice = missing.partition("/")
    if "/" in choice:  # a path where a choice belongs
        return f"`{folder}` must be a file of conf/{folder}/: got {choice!r}. For a path write {folder}.path={choice}."
    return no_such_choice(folder, choice, options)


def _several_values(key: str, values: str) -> str:
    key = key.lstrip("+")
    return f"`{key}` takes one value: got {values}. To sweep over several, make it an axis: 'axes.{key}=[{values}]'."


def _chosen_twice(folder: str, choice: str) -> str:
    if folder != "grid":
        return f"`{folder}` is chosen by default: got +{folder}={choice}. Write {folder}={choice}."
    return f"a sweep has one grid: got a second one, {choice}. Run one after the other, or write one of your own."


def _at_key(key: str, error: BaseException) -> str:
    expected, message = type_at(key), str(error)
    if expected is None or "not in" in message:
        return no_such_field(key)
    got = re.search(r"(?:[Vv]alue|assign) '(.*?)'", message)
    value = f": got {got[1]!r}" if got and "$VALUE" not in got[1] else ""
    if "not Optional" in message:
        value = ": got null"
    if "Interpolation" in type(error).__name__ or "Missing" in type(error).__name__:
        return f"`{key}` has no value: {_one_line(message)}. Give {key}=..."
    return f"`{key}` must be {_type_words(expected)}{value}."


def _type_words(kind: Any) -> str:
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "one of " + ", ".join(item.name for item in kind)
    options = [item for item in get_args(kind) if item is not type(None)]
    if options and get_origin(kind) not in (list, dict):
        return _type_words(options[0]) + " or null"
    if is_dataclass(kind):
        return f"a choice or a mapping with the fields {', '.join(f.name for f in fields(kind))}"
    return TYPES.get(get_origin(kind) or kind, "a value" if kind is Any else str(kind))


def _unreadable(text: str) -> str:
    if found := re.search(r"Error parsing override '(.*?)'|input '(.*?)'|LexerNoViableAltException: \+*(.*)", text):
        got = found[found.lastindex or 0]
        return f"an override must read key=value: got {got!r}. Examples: draft.k=3, 'axes.draft.k=[1,3]'."
    return _one_line(text)


def _one_line(text: str) -> str:
    return " ".join(re.sub(r"See https://hydra\S+ for details", "", text.split("full_key")[0]).split())
