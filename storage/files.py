"""Owns how a file appears: whole or not at all, by rename, or in a bucket by one PUT. Does not own what is in it.

The one place where an `OSError` of a write becomes `StorageFailed`.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from storage.errors import BadRun, StorageFailed
from storage.places import BucketPath, Place

TEMPORARY = ".*.tmp"
"""The glob of files that are being written; no reader's glob matches it."""


def write_whole(path: Place, content: bytes | memoryview, *, is_durable: bool = True) -> None:
    """Put the content at the path, durably; readers see the old file, then the new one, and nothing in between."""
    with refusals_of(path):
        if isinstance(path, BucketPath):
            path.write_bytes(content)
        else:
            _write_and_rename(path, content, is_durable)


def _write_and_rename(path: Path, content: bytes | memoryview, is_durable: bool) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            if is_durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
        if is_durable:
            _sync_folder(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def make_folder(path: Place) -> None:
    """Make the folder and its parents; one that exists is fine. `BadRun` where a file has its name, or that of a parent."""
    with refusals_of(path):
        try:
            path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise BadRun(f"A run must be a folder: got {path}, where a file is in the way. Choose another folder.") from None


def remove_temporaries(folder: Place) -> None:
    """Remove what a dead writer left half-written. Only for the owner of the folder: a living writer's would go too."""
    remove(folder.glob(TEMPORARY))


def remove(paths: Iterable[Place]) -> None:
    """Remove the files; one that is gone already is fine."""
    for path in paths:
        with refusals_of(path):
            path.unlink(missing_ok=True)


def remove_empty(folders: Iterable[Place]) -> None:
    """Remove those that hold nothing, in this order; a bucket has no folders."""
    for folder in folders:
        if isinstance(folder, Path):
            with contextlib.suppress(OSError):
                folder.rmdir()


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable; some network file systems refuse to sync a folder, and need not."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def refusals_of(path: Place) -> Iterator[None]:
    """What a file system or an object store refuses, as `StorageFailed` in one line."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageFailed(
            f"Results must be writable: {reason} at {path}. What was committed before is whole. "
            "Free some space or choose another folder, then run the same command again."
        ) from error
