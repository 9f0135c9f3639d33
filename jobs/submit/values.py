"""Owns which values of the command line a cluster can take: numbers, names, times. Does not own what they are for.

Each check is a `type=` of argparse: it returns the value, or raises `BadInput`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from jobs.errors import BadInput

LABEL = re.compile(r"(?=.{1,63}$)[a-z0-9]([a-z0-9-]*[a-z0-9])?")
SUBDOMAIN = re.compile(r"(?=.{1,253}$)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
QUANTITY = re.compile(r"(?=.*[1-9])\d+(\.\d+)?([KMGTPE]i|[kMGTPE])?", re.ASCII)
SLURM_TIME = re.compile(r"(?=.*[1-9])(\d+(:[0-5]\d){0,2}|\d+-\d{1,2}(:[0-5]\d){0,2})", re.ASCII)
LONGEST_LINE = 300


def at_least(least: int, option: str) -> Callable[[str], int]:
    """A whole number from `least` on."""

    def check(text: str) -> int:
        if not re.fullmatch(r"\d{1,6}", text, re.ASCII) or int(text) < least:
            raise BadInput(f"`{option}` must be a whole number from {least} on: got {text!r}.")
        return int(text)

    return check


def matching(pattern: re.Pattern[str], rule: str, option: str) -> Callable[[str], str]:
    """A text of that pattern; "" stands for what is not given."""

    def check(text: str) -> str:
        if text and not pattern.fullmatch(text):
            raise BadInput(f"`{option}` must be {rule}: got {text!r}.")
        return text

    return check


def kubernetes_label(option: str) -> Callable[[str], str]:
    return matching(LABEL, "a name of at most 63 small letters, digits and `-`", option)


def kubernetes_name(option: str) -> Callable[[str], str]:
    return matching(SUBDOMAIN, "a name of small letters, digits, `-` and `.`, as Kubernetes has it", option)


def quantity(option: str) -> Callable[[str], str]:
    return matching(QUANTITY, "a quantity of Kubernetes, as 64Gi", option)


def slurm_time(option: str) -> Callable[[str], str]:
    return matching(SLURM_TIME, "minutes, HH:MM:SS or D-HH:MM:SS, as sbatch takes it", option)


def first_line(said: str) -> str:
    """The first line of what a program or a server said, and not all of a long one."""
    lines = said.strip().splitlines() or ["it said nothing"]
    return lines[0][:LONGEST_LINE]
