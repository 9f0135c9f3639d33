"""Owns the local copies of runs in buckets, which DuckDB reads. Does not own which files of a run count.

A recorded file hardly ever changes, so what was fetched once is kept in the user's cache and fetched again only when its
size or time differs. A view mentions a file many times: a copy makes of many slow reads one.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pyarrow.fs import FileInfo

from storage.errors import BadRun
from storage.files import make_folder, write_whole
from storage.parts import parts_of
from storage.places import BucketPath, Place

CACHE = "SPECSWEEP_CACHE"
"""Variable that says where copies are kept, else `~/.cache/specsweep`."""

_STREAMS, _TRIES = 16, 5


def local_files(folder: Place, kinds: Sequence[str]) -> Mapping[str, tuple[Path, ...]]:
    """The files of a run that count, by kind, as files of this machine. Raises `BadRun` when the bucket cannot be read."""
    if isinstance(folder, Path):
        here = folder.resolve()
        return {kind: tuple(Path(path) for path in files) for kind, files in parts_of(here, kinds).files.items()}  # type: ignore[arg-type]
    for _ in range(_TRIES):
        try:
            return _fetched(folder, kinds)
        except FileNotFoundError:  # compacted meanwhile: what counts now is in other files
            continue
        except OSError as error:
            raise BadRun(
                f"A run must be readable: got {error.strerror} at {error.filename or folder}. Check the bucket."
            ) from error
    raise BadRun(f"A run must hold still to be read: files of {folder} went while they were fetched. Read it later.")


def copy_of(folder: BucketPath) -> Path:
    """Where the copies of a run are."""
    base = os.environ.get(CACHE) or os.environ.get("XDG_CACHE_HOME", "~/.cache") + "/specsweep"
    home = Path(os.path.expanduser(base))  # noqa: PTH111 (pathlib's raises)
    return home / "runs" / hashlib.sha256(str(folder).encode()).hexdigest()[:16] / folder.name


def _fetched(folder: BucketPath, kinds: Sequence[str]) -> Mapping[str, tuple[Path, ...]]:
    copy = copy_of(folder)
    found: dict[str, tuple[Path, ...]] = {}
    for kind, files in parts_of(folder, kinds).files.items():
        names = [path.name for path in files]
        make_folder(copy / kind)
        _fetch(folder / kind, names, copy / kind)
        found[kind] = tuple(copy / kind / name for name in names)
    return found


def _fetch(source: BucketPath, names: Sequence[str], target: Path) -> None:
    """Bring the copies up to date, several at a time. Raises `FileNotFoundError` for a file that is gone."""
    facts = source.listing() if names else {}
    with ThreadPoolExecutor(_STREAMS) as streams:
        for _ in streams.map(lambda name: _fetch_one(source / name, facts.get(name), target / name), names):
            pass


def _fetch_one(source: BucketPath, facts: FileInfo | None, copy: Path) -> None:
    if facts is None:
        raise FileNotFoundError(errno.ENOENT, "no such object", str(source))
    with contextlib.suppress(FileNotFoundError):
        have = copy.stat()
        if (have.st_size, have.st_mtime_ns) == (facts.size, facts.mtime_ns):
            return
    write_whole(copy, source.read_bytes(), is_durable=False)
    os.utime(copy, ns=(facts.mtime_ns, facts.mtime_ns))
