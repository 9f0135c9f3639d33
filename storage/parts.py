"""Owns which files of a run count: those of recorded tries, each once, compacted or not. Does not own what is in them.

Compaction merges many files into few. `compacted.json` says, in one file that appears whole, which merged files count and
which tries and sessions they hold; files of those that are still there count no more. So a reader sees either the old files
or the new ones, whatever a compaction got to.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from storage.errors import BadRun
from storage.places import Place
from storage.tables import SCHEMAS

MANIFEST = "compacted.json"
MANIFEST_VERSION = 1
_COMPACTED = re.compile(r"compacted\.[0-9a-f]+\.parquet")
_OF_A_TRY = re.compile(r"(?P<name>[^-]+-\d+)(-\d+)?\.parquet")
_MOST_LOOKS = 20


@dataclass(frozen=True)
class Manifest:
    """What is compacted of a run."""

    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """kind → names of merged files that count."""
    tries: frozenset[str] = frozenset()
    """`<cell_id>-<attempt>` of each try that they hold."""
    sessions: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Parts:
    """The files of a run that count, by kind, and the tries that are recorded in them."""

    files: Mapping[str, tuple[Place, ...]]
    tries: frozenset[str]
    sessions: frozenset[str]
    manifest: Manifest


def name_of_try(file_name: str) -> str | None:
    """`<cell_id>-<attempt>` of a file with rows of a try, or of a part of it; None for other files."""
    found = _OF_A_TRY.fullmatch(file_name)
    return found["name"] if found else None


def is_compacted(file_name: str) -> bool:
    return bool(_COMPACTED.fullmatch(file_name))


def parts_of(folder: Place, kinds: Iterable[str] = tuple(SCHEMAS)) -> Parts:
    """What counts now of these kinds. Looks again when a compaction was committed meanwhile."""
    before = read_manifest(folder)
    for _ in range(_MOST_LOOKS):
        try:
            parts = _look(folder, kinds, before)
        except OSError as error:
            raise _unreadable(error, folder) from error
        after = read_manifest(folder)
        if after == before:
            return parts
        before = after
    raise BadRun(f"A run must hold still to be read: {folder} was compacted {_MOST_LOOKS} times meanwhile. Read it later.")


def _look(folder: Place, kinds: Iterable[str], manifest: Manifest) -> Parts:
    """Cells first: a try whose row is there has all of its other files."""
    loose = {path.stem for path in _loose(folder, "cells")}
    tries = manifest.tries | loose
    files: dict[str, tuple[Place, ...]] = {}
    for kind in kinds:
        merged = tuple(folder / kind / name for name in manifest.files.get(kind, ()))
        files[kind] = merged + tuple(path for path in _loose(folder, kind) if _counts(kind, path, manifest, tries))
    sessions = manifest.sessions | {path.stem for path in files.get("sessions", ()) if not is_compacted(path.name)}
    return Parts(files, tries, sessions, manifest)


def _loose(folder: Place, kind: str) -> list[Place]:
    return sorted(path for path in (folder / kind).glob("*.parquet") if not is_compacted(path.name))


def _counts(kind: str, path: Place, manifest: Manifest, tries: frozenset[str]) -> bool:
    """A file that is named as none of ours counts too: whoever put it there is told when it cannot be read."""
    if kind == "sessions":
        return path.stem not in manifest.sessions
    name = name_of_try(path.name)
    return name is None or (name in tries and name not in manifest.tries)


def read_manifest(folder: Place) -> Manifest:
    """What is compacted; nothing where there is no manifest. Raises `BadRun` for one that this version cannot read."""
    path = folder / MANIFEST
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        if told["version"] > MANIFEST_VERSION:
            raise BadRun(
                f"A run's {MANIFEST} must be of a known version: got {told['version']} at {path}. Update SpecSweep."
            )
        files = {kind: tuple(names) for kind, names in told["files"].items()}
        return Manifest(files, frozenset(told["tries"]), frozenset(told["sessions"]))
    except FileNotFoundError:
        return Manifest()
    except OSError as error:
        raise _unreadable(error, path) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadRun(f"A run's {MANIFEST} must be as it was written: got something else at {path}. Restore it.") from error


def _unreadable(error: OSError, place: Place) -> BadRun:
    return BadRun(f"A run must be a readable folder: got {error.strerror} at {place}. Check its permissions.")


def manifest_bytes(manifest: Manifest) -> bytes:
    told = {
        "version": MANIFEST_VERSION,
        "files": {kind: list(names) for kind, names in manifest.files.items()},
        "tries": sorted(manifest.tries),
        "sessions": sorted(manifest.sessions),
    }
    return json.dumps(told, indent=0).encode()
