"""Owns what engines' own options are, as recorded in `known/`: their names, kinds and spelling on a command line.

Does not own which of them SpecSweep sets itself, or the recording (`tests/jobs/record_options.py`). Pure but for the files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from jobs.engines.rules import Rule

KNOWN = Path(__file__).with_name("known")
KINDS: dict[str, tuple[str, tuple[type, ...]]] = {
    "switch": ("true (leave it out for false)", (bool,)),
    "bool": ("true or false", (bool,)),
    "int": ("a whole number", (int,)),
    "float": ("a number", (int, float)),
    "str": ("a text", (str,)),
    "list": ("a list", (list,)),
    "map": ("a mapping", (dict,)),
    "any": ("a value", (bool, int, float, str, list, dict)),
}
"""kind → in words, and the types of YAML that it takes."""


@dataclass(frozen=True)
class Option:
    """One option of an engine."""

    kind: str
    flag: str = ""  # on a command line
    off: str = ""  # the flag of its opposite, where it has one
    choices: tuple[Any, ...] = ()
    nullable: bool = False

    @property
    def words(self) -> str:
        choices = f"one of {', '.join(map(str, self.choices))}" if self.choices else KINDS[self.kind][0]
        return f"{choices} or null" if self.nullable else choices

    def takes(self, value: Any) -> bool:
        if value is None:
            return self.nullable
        types = KINDS[self.kind][1]
        is_right = isinstance(value, types) and (bool in types or not isinstance(value, bool))
        return is_right and (not self.choices or value in self.choices) and (self.kind != "switch" or value is True)


Options = Mapping[str, Option]


@dataclass(frozen=True)
class Known:
    """The options of one version of an engine, by section; none for a version that was not recorded."""

    version: str
    source: str
    sections: Mapping[str, Options]


@cache
def known_of(engine: str, version: str = "") -> Known:
    """What was recorded of this version, "" = of the newest recorded one."""
    files = sorted(KNOWN.glob(f"{engine}-{version or '*'}.json"))
    if not files:
        return Known(version, "", {})
    told = json.loads(files[-1].read_text(encoding="utf-8"))
    sections = {
        section: {
            name: Option(**{**option, "choices": tuple(option.get("choices", ()))}) for name, option in options.items()
        }
        for section, options in told["sections"].items()
    }
    return Known(told["version"], told["source"], sections)


def option_rules(section: str, args: Mapping[str, Any], ours: Mapping[str, str], options: Options) -> Iterator[Rule]:
    """That `args` holds only what the engine knows (everything, when nothing was recorded) and no field of ours sets."""
    for name, value in args.items():
        option, near = options.get(name), ", ".join(get_close_matches(name, options, 3)) or "none that is alike"
        yield name not in ours, f"`{section}.{name}` must be left to SpecSweep: use {ours.get(name)}."
        yield (
            option is not None or not options,
            f"`{section}` must hold options that the engine has: got {name!r}. Alike: {near}. Take it out, or correct it.",
        )
        yield (
            option is None or option.takes(value),
            f"`{section}.{name}` must be {option.words if option else ''}: got {value!r}.",
        )


def words_of(name: str, value: Any, options: Options) -> Iterator[str]:
    """One option in the words of a command line; none for a switch that is off."""
    option = options.get(name) or Option("any")
    flag = option.flag or f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        if value or option.off:
            yield flag if value else option.off
    elif option.kind == "list" and isinstance(value, list):
        yield from (flag, *map(str, value))
    elif isinstance(value, (dict, list)):
        yield from (flag, json.dumps(value))
    else:
        yield from (flag, str(value))
