"""Owns rows out of files of prompts. Does not own where the files are, or what rows mean.

JSON lines, JSON, CSV and Parquet give the same rows. Everything that is wrong with a file is said with its name and line.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from jobs.errors import BadInput
from storage import datasets

csv.field_size_limit(2**31 - 1)  # a prompt is often longer than the 128 KiB that csv takes for a mistake
KEPT = 6  # files of a grid's workloads, so that planning many cells reads each once
HALF = re.compile(r"\\u[dD][89a-fA-F]")  # of a character above U+FFFF; it may have its other half


@dataclass(frozen=True)
class Row:
    """One row, and where it is: "line 7 of prompts.jsonl"."""

    place: str
    values: Mapping[str, Any]

    def get(self, name: str) -> Any:
        """The value of a column; `a.b` is b in the object a. None = it is not there, or null."""
        value: Any = self.values
        if name in self.values:
            return self.values[name]
        for step in name.split("."):
            value = value.get(step) if isinstance(value, Mapping) else None
        return value

    def wrong(self, rule: str, got: object, remedy: str) -> BadInput:
        """The exception that says what is wrong with this row."""
        return BadInput(f"{rule}: got {_short(got)} in {self.place}. {remedy}")

    def text(self, name: str, default: str = "") -> str:
        """A column that must be text; numbers are fine as text, as many question ids are."""
        value = self.get(name)
        if value is None:
            return default
        if isinstance(value, (str, int)) and not isinstance(value, bool):
            return str(value)
        raise self.wrong(f"`{name}` must be text", value, "Write it as text.")

    def count(self, name: str) -> int:
        """A column that must be a whole number of at least 0; 0 where it is not there."""
        value = self.get(name)
        number = number_of(value or 0)
        if number is None or number < 0 or number != int(number):
            raise self.wrong(f"`{name}` must be a number of tokens", value, "Write a whole number.")
        return int(number)


def rows_of(files: Sequence[Path]) -> list[Row]:
    """The rows of some files, one after the other; `BadInput` where there are none."""
    rows = [row for file in files for row in read(file)]
    if not rows:
        raise BadInput(f"a workload must have prompts: {', '.join(map(str, files))} has no row. Name another file.")
    return rows


def require(rows: Sequence[Row], columns: Sequence[str], hint: str = "") -> None:
    """`BadInput` where all rows lack a column, with the columns that exist, or some of them, with the first that does."""
    for column in columns:
        lacking = [row for row in rows if row.get(column) is None]
        if len(lacking) == len(rows):
            raise BadInput(
                f"{_file_of(rows[0])} must have a column `{column}`: it has {', '.join(sorted(rows[0].values)) or 'none'}. "
                f"{hint or 'Name another column, or another file.'}"
            )
        if lacking:
            raise BadInput(
                f"Every row must have `{column}`: {lacking[0].place} has none, and {len(lacking)} rows in all. Fill "
                "them in, or leave those rows out."
            )


def read(path: Path) -> tuple[Row, ...]:
    """All rows of a file; `BadInput` for a file that is not what its name says."""
    if path.suffix not in READERS:
        known = ", ".join(sorted(READERS))
        raise BadInput(
            f"a file of prompts must be one of {known}: got {path.name}. Convert it, or give it the right suffix."
        )
    state = path.stat()
    return _read(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=KEPT)
def _read(path: Path, _mtime_ns: int, _size: int) -> tuple[Row, ...]:
    """Kept until the file changes. A folder with more files than KEPT is read anew each time."""
    try:
        return tuple(READERS[path.suffix](path))
    except OSError as failure:
        raise BadInput(f"a file of prompts must be readable: {path} is not ({failure.strerror}). Change its mode.") from None


def _json_lines(path: Path) -> Iterator[Row]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield _object(line, f"line {number} of {path.name}")


def _json(path: Path) -> Iterator[Row]:
    """A list of objects, one object, or (as many files on the hub, whatever they are called) an object a line."""
    try:
        content = loaded(path.read_bytes(), path.name)
    except json.JSONDecodeError as error:
        if error.msg != "Extra data":
            raise BadInput(
                f"a .json file must be JSON: {path} is not ({error.msg}, line {error.lineno} column {error.colno}). Correct "
                "it."
            ) from None
        yield from _json_lines(path)
        return
    for number, item in enumerate(content if isinstance(content, list) else [content], 1):
        if not isinstance(item, dict):
            raise BadInput(
                f"each item of a .json file must be an object: item {number} of {path.name} is {_short(item)}. Write "
                '{"text": ...}.'
            )
        yield Row(f"item {number} of {path.name}", item)


def _csv(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        try:
            reader = csv.DictReader(file, strict=True)
            _refuse_twins(reader.fieldnames or (), path)
            for item in reader:
                if None in item or None in item.values():
                    raise BadInput(
                        f"each line of a .csv file must have as many fields as its header, {len(reader.fieldnames or ())}: "
                        f"line {reader.line_num} of {path.name} has not. Quote fields that hold commas."
                    )
                yield Row(f"line {reader.line_num} of {path.name}", item)
        except (csv.Error, UnicodeDecodeError) as error:
            raise BadInput(f"a .csv file must be CSV in UTF-8: {path} is not ({error}). Convert it.") from None


def _parquet(path: Path) -> Iterator[Row]:
    for number, item in enumerate(datasets.read_rows(path), 1):
        yield Row(f"row {number} of {path.name}", item)


READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json,
    ".csv": _csv,
    ".parquet": _parquet,
}
"""Suffix → its reader."""


def loaded(text: bytes | str, place: str) -> Any:
    """What a JSON text says. Raises `JSONDecodeError`, and `BadInput` for JSON that cannot be a prompt's."""
    try:
        plain = text.decode("utf-8-sig") if isinstance(text, bytes) else text
        value = json.loads(plain)
        if HALF.search(plain):
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError:
        raise
    except UnicodeDecodeError:
        raise BadInput(f"a file of prompts must be UTF-8: {place} is not. Convert it.") from None
    except UnicodeEncodeError as error:
        half = f"{ord(error.object[error.start]):x}"
        raise BadInput(f"text must be of whole characters: {place} has half a one, \\u{half}. Take it out.") from None
    except (RecursionError, ValueError):  # the latter for a number of thousands of digits
        raise BadInput(
            f"JSON must not be nested a thousand deep, or hold longer numbers: {place} does. Take it out."
        ) from None
    return value


def _object(line: bytes, place: str) -> Row:
    try:
        item = loaded(line, place)
    except json.JSONDecodeError as error:
        raise BadInput(
            f"each line must be a JSON object: {place} is not ({error.msg}, column {error.colno}). Correct it, or "
            "take it out."
        ) from None
    if not isinstance(item, dict):
        raise BadInput(f'each line must be a JSON object: {place} is {_short(item)}. Write {{"text": ...}}.')
    return Row(place, item)


def _refuse_twins(header: Sequence[str], path: Path) -> None:
    if twins := sorted(name for name, count in Counter(header).items() if count > 1):
        raise BadInput(f"the columns of a .csv file must differ: {path.name} has {', '.join(twins)} twice. Rename one.")


def _file_of(row: Row) -> str:
    return row.place.partition(" of ")[2]


def number_of(value: object) -> float | None:
    """The number that a value is, or says; None where it is none that is finite."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
