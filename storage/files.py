"""Owns how a file appears: whole or not at all, by rename. Does not own what is in it.

The one place where an `OSError` of a write becomes `StorageFailed`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from storage.errors import StorageFailed

TEMPORARY = ".*.tmp"
"""The glob of files that are being written; no reader's glob matches it."""


def write_whole(path: Path, content: bytes) -> None:
    """Put the content at the path, durably; readers see the old file, then the new one, and nothing in between."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with _refusals_of(path):
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            _sync_folder(path.parent)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise


def make_folder(path: Path) -> None:
    """Make the folder and its parents; one that exists is fine."""
    with _refusals_of(path):
        path.mkdir(parents=True, exist_ok=True)


def remove_temporaries(folder: Path) -> None:
    """Remove what a dead writer left half-written. Only for the owner of the folder: a living writer's would go too."""
    remove(folder.glob(TEMPORARY))


def remove(paths: Iterable[Path]) -> None:
    """Remove the files; one that is gone already is fine."""
    for path in paths:
        with _refusals_of(path):
            path.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable; some network file systems refuse to sync a folder, and need not."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def _refusals_of(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageFailed(
            f"Results must be writable: {reason} at {path}. What was committed before is whole. "
            "Free some space or choose another folder, then run the same command again."
        ) from error
