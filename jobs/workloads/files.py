"""Owns rows out of files: where a workload's files are, and what is in them. Does not own what rows mean.

JSON lines, JSON, CSV and Parquet give the same rows. Everything that is wrong with a file is said with its name and line.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any

from jobs.errors import BadInput
from jobs.models import HUB_ID
from jobs.provenance import PROJECT_ROOT
from jobs.spec import Workload
from jobs.workloads.hub import data_set
from storage import datasets

csv.field_size_limit(2**31 - 1)  # a prompt is often longer than the 128 KiB that csv takes for a mistake
KEPT = 6  # files of a grid's workloads, so that planning many cells reads each once
MANIFEST = "manifest.json"
"""What `jobs.workloads.prepare` puts beside a data set: among other things, the revision that it is of."""


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
        number = _number(value or 0)
        if number is None or number < 0 or number != int(number):
            raise self.wrong(f"`{name}` must be a number of tokens", value, "Write a whole number.")
        return int(number)


def located(workload: Workload, patterns: Sequence[str]) -> list[Path]:
    """The files that `workload.path` means: one, those of a folder, or those of a data set of the hub at a commit.

    Of a folder, those that match the first pattern that any does, sorted: `*` also stands for folders, and a pattern is for
    files at any depth unless it begins with /. Raises `BadInput` where there are none.
    """
    if not workload.path:
        raise BadInput(
            f"`workload.path` must be given for `{workload.name}`: a file, a folder or a hub id. Add workload.path=..."
        )
    local = PROJECT_ROOT / Path(workload.path).expanduser()
    if not local.exists() and HUB_ID.fullmatch(workload.path):
        return matching(data_set(workload.path, workload.revision, patterns), patterns)
    if local.is_file():
        return [_of_revision(local, workload.revision)]
    if local.is_dir():
        return [_of_revision(file, workload.revision) for file in matching(local, patterns)]
    raise BadInput(
        f"`workload.path` must be a file, a folder or a hub id: got {workload.path!r}. There is no {local}. "
        "Name one that exists."
    )


def matching(folder: Path, patterns: Sequence[str]) -> list[Path]:
    """The files of a folder that match the first pattern that any matches, sorted; `BadInput` where none matches any."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix in READERS and path.name != MANIFEST)
    names = {file: f"/{file.relative_to(folder).as_posix()}" for file in files}
    for pattern in patterns:
        if found := [file for file in files if _matches(names[file], pattern)]:
            return found
    has = ", ".join(name[1:] for name in list(names.values())[:8]) or f"no file in {', '.join(sorted(READERS))}"
    raise BadInput(f"{folder} must hold a file that matches {' or '.join(patterns)}: it has {has}. Name another folder.")


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
                f"{hint or 'Name another file.'}"
            )
        if lacking:
            raise BadInput(f"Every row must have `{column}`: {lacking[0].place} has none, and {len(lacking)} rows in all.")


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
    return tuple(READERS[path.suffix](path))


def _json_lines(path: Path) -> Iterator[Row]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield _object(line, f"line {number} of {path.name}", path)


def _json(path: Path) -> Iterator[Row]:
    """A list of objects, one object, or (as many files on the hub, whatever they are called) an object a line."""
    try:
        content = json.loads(path.read_bytes())
    except UnicodeDecodeError:
        raise BadInput(f"a file of prompts must be UTF-8: {path} is not. Convert it.") from None
    except json.JSONDecodeError as error:
        if error.msg != "Extra data":
            raise BadInput(
                f"a .json file must be JSON: {path} is not ({error.msg}, line {error.lineno} column {error.colno})."
            ) from None
        yield from _json_lines(path)
        return
    for number, item in enumerate(content if isinstance(content, list) else [content], 1):
        if not isinstance(item, dict):
            raise BadInput(f"each item of a .json file must be an object: item {number} of {path.name} is {_short(item)}.")
        yield Row(f"item {number} of {path.name}", item)


def _csv(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        try:
            reader = csv.DictReader(file, strict=True)
            for item in reader:
                if None in item or None in item.values():
                    raise BadInput(
                        f"each line of a .csv file must have as many fields as its header, {len(reader.fieldnames or ())}: "
                        f"line {reader.line_num} of {path.name} has not. Quote fields that hold commas."
                    )
                yield Row(f"line {reader.line_num} of {path.name}", item)
        except (csv.Error, UnicodeDecodeError) as error:
            raise BadInput(f"a .csv file must be CSV in UTF-8: {path} is not ({error}).") from None


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


def _object(line: bytes, place: str, path: Path) -> Row:
    try:
        item = json.loads(line)
    except UnicodeDecodeError:
        raise BadInput(f"a file of prompts must be UTF-8: {place} is not. Convert {path}.") from None
    except json.JSONDecodeError as error:
        raise BadInput(f"each line must be a JSON object: {place} is not ({error.msg}, column {error.colno}).") from None
    if not isinstance(item, dict):
        raise BadInput(f"each line must be a JSON object: {place} is {_short(item)}.")
    return Row(place, item)


def _of_revision(file: Path, revision: str) -> Path:
    """The file, if it is of the revision that is asked for ("" = of any), as the manifest beside it says."""
    if not revision:
        return file
    manifest = file.parent / MANIFEST
    found = json.loads(manifest.read_bytes()).get("revision") if manifest.is_file() else None
    if found == revision:
        return file
    says = f"{manifest} says {found!r}" if found else f"no {MANIFEST} beside {file} says of which it is"
    raise BadInput(
        f"`workload.revision` must be that of the files: got {revision!r}, and {says}. Leave it out: workload.revision="
    )


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern if pattern.startswith("/") else f"*/{pattern}")


def _file_of(row: Row) -> str:
    return row.place.partition(" of ")[2]


def _number(value: object) -> float | None:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
