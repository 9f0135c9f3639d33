"""Owns the files of sources: from the hub at a commit, from the web, or local ones in their place, with their hashes.

Does not own what is made of them. What cannot be had is `Missing`, and that is remembered: one time-out, not one a row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx

from jobs.errors import BadInput
from jobs.models import HUB_FAILURES, reason_of, sha256_of
from jobs.workloads import files
from jobs.workloads.hub import fetched
from jobs.workloads.rows import READERS
from storage import datasets
from storage.files import make_folder, write_whole

HOSTS = ("huggingface.co", "raw.githubusercontent.com", "github.com")
"""Where SPEED-Bench's sources are. A row that names another host is not followed."""
PATIENCE_S = 30.0
Values = Mapping[str, Any]
T = TypeVar("T")


class Missing(Exception):
    """Why a row has no text: its source is gated, unreachable, not installed, or has no such row."""


class Library:
    """The files of all sources. `local`: source → the file or folder to use instead; `scratch` keeps what the web gave."""

    def __init__(self, local: Mapping[str, Path], scratch: Path) -> None:
        self.local, self.scratch = local, scratch
        self.hashes: dict[str, dict[str, str]] = {}  # source → file → SHA-256 of what was read
        self._kept: dict[object, Any] = {}

    def once(self, key: object, make: Callable[[], T]) -> T:
        """What `make` gives, or the `Missing` that it raised, from the first time on."""
        if key not in self._kept:
            try:
                self._kept[key] = make()
            except Missing as missing:
                self._kept[key] = missing
        kept: T = self._kept[key]
        if isinstance(kept, Missing):
            raise kept
        return kept

    def forget(self) -> None:
        """Let what is kept in memory go."""
        self._kept.clear()

    def of_hub(self, source: str, revision: str, pattern: str, columns: Sequence[str] = ()) -> list[Values]:
        """The rows of the files that match, in the order of their names."""
        return self.once((source, pattern), lambda: self._rows(source, self._hub_files(source, revision, pattern), columns))

    def of_web(self, source: str, url: str) -> list[Values]:
        """The rows of the file at an address."""
        return self.once((source, url), lambda: self._rows(source, [self._web_file(source, url)]))

    def text_of_web(self, source: str, url: str) -> str:
        """The text at an address."""
        return self.once((source, url), lambda: self._noted(source, self._web_file(source, url)).read_text(encoding="utf-8"))

    def _rows(self, source: str, paths: Sequence[Path], columns: Sequence[str] = ()) -> list[Values]:
        rows: list[Values] = []
        for path in paths:
            self._noted(source, path)
            try:
                if path.suffix == ".parquet":
                    rows += datasets.read_rows(path, columns)
                else:
                    rows += [_narrowed(row.values, columns) for row in READERS[path.suffix](path)]
            except (BadInput, KeyError) as error:
                raise Missing(f"{path.name} is not readable: {error}") from None
        return rows

    def _hub_files(self, source: str, revision: str, pattern: str) -> list[Path]:
        place = self.local.get(source)
        try:
            if place and place.is_file():
                return [place]
            return files.matching(place or fetched(source, revision, [pattern]), [pattern])
        except HUB_FAILURES as failure:
            raise Missing(f"the hub does not give it ({reason_of(failure)})") from None
        except BadInput as error:
            raise Missing(str(error)) from None

    def _web_file(self, source: str, url: str) -> Path:
        if place := self.local.get(source):
            return _within(place, url)
        parts = urlsplit(url)
        if parts.scheme != "https" or parts.hostname not in HOSTS:
            raise Missing(f"its address is not at {', '.join(HOSTS)}: {url}")
        kept = self.scratch / f"{hashlib.sha256(url.encode()).hexdigest()[:16]}-{PurePosixPath(parts.path).name}"
        if not kept.is_file():
            make_folder(self.scratch)
            write_whole(kept, _downloaded(url))
        return kept

    def _noted(self, source: str, path: Path) -> Path:
        self.hashes.setdefault(source, {})[path.name] = sha256_of(path)
        return path


def _narrowed(values: Values, columns: Sequence[str]) -> Values:
    """Only these columns ([] = all): some sources have gigabytes in others."""
    return {name: values[name] for name in columns if name in values} if columns else values


def _within(place: Path, url: str) -> Path:
    """The file itself, or the one in a folder whose path ends the address."""
    if place.is_file():
        return place
    steps = PurePosixPath(urlsplit(url).path).parts[1:]
    for n in range(len(steps)):
        if (found := place.joinpath(*steps[n:])).is_file():
            return found
    raise Missing(f"{place} has no {'/'.join(steps[-3:])}")


def _downloaded(url: str) -> bytes:
    try:
        with httpx.Client(follow_redirects=True, timeout=PATIENCE_S, transport=httpx.HTTPTransport(retries=2)) as client:
            return client.get(url).raise_for_status().content
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as failure:
        raise Missing(f"{urlsplit(url).hostname} does not give it ({reason_of(failure)})") from None
