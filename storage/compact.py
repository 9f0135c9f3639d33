"""Owns `python -m storage.compact`: many small files of a run become few. Does not own which files count (`storage.parts`).

Rows are copied as they are, those of an older schema into files of their own. First the merged files appear, which nothing
mentions yet; then `compacted.json`, which makes them count and the small ones not; then the small ones go. Killed at any
point, a run has every row once, and the next compaction or driver removes what is left over.
"""

from __future__ import annotations

import argparse
import io
import secrets
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from storage.command import OneLineParser, run_command
from storage.errors import BadInput, BadRun
from storage.files import write_whole
from storage.lock import lock_run
from storage.mirror import local_files
from storage.parts import MANIFEST, Manifest, Parts, is_compacted, manifest_bytes, name_of_try, parts_of
from storage.places import Place, place_of
from storage.runs import remove_leftovers
from storage.tables import SCHEMAS, parquet_writer
from storage.views import require_run

GRACE_S = 30.0
"""Time that readers who began before have to end, since the files that they read are removed then."""

_ROW_GROUP_BYTES, _FILE_BYTES = 16 << 20, 128 << 20


@dataclass(frozen=True)
class Outcome:
    """How many files of rows a run had, and has now."""

    n_before: int
    n_after: int


def compact(folder: Place | str, *, grace_s: float = GRACE_S) -> Outcome:
    """Merge what is recorded of a run.

    Raises `BadRun` when there is none, or another process writes it, and `StorageFailed` when the disk refuses.
    """
    folder = require_run(place_of(folder))
    lock = lock_run(folder)
    try:
        parts = parts_of(folder)
        remove_leftovers(folder, parts)
        n_before = sum(map(len, parts.files.values()))
        if not any(len(_to_merge(parts, kind)) > 1 for kind in SCHEMAS):
            return Outcome(n_before, n_before)
        manifest = _merge(folder, parts)
        lock.require()
        write_whole(folder / MANIFEST, manifest_bytes(manifest))
        time.sleep(grace_s)
        parts = parts_of(folder)
        remove_leftovers(folder, parts)
        return Outcome(n_before, sum(map(len, parts.files.values())))
    finally:
        lock.release()


def _to_merge(parts: Parts, kind: str) -> list[Place]:
    """Files of ours that are not merged yet; somebody's own files stay as they are."""
    return [
        path
        for path in parts.files[kind]
        if not is_compacted(path.name) and (kind == "sessions" or name_of_try(path.name) is not None)
    ]


def _merge(folder: Place, parts: Parts) -> Manifest:
    """Write the merged files; what will count once this is committed."""
    old, here = parts.manifest, local_files(folder, tuple(SCHEMAS))
    files = {kind: [*old.files.get(kind, ())] for kind in SCHEMAS}
    for kind, names in files.items():
        merging = {path.name for path in _to_merge(parts, kind)}
        for content in merged_files([path for path in here[kind] if path.name in merging]):
            names.append(f"compacted.{secrets.token_hex(8)}.parquet")
            write_whole(folder / kind / names[-1], content)
    tries = {name for path in _to_merge(parts, "cells") if (name := name_of_try(path.name))}
    sessions = {path.stem for path in _to_merge(parts, "sessions")}
    return Manifest({kind: tuple(names) for kind, names in files.items()}, old.tries | tries, old.sessions | sessions)


def merged_files(paths: Sequence[Path]) -> Iterator[memoryview]:
    """The rows of the files, in their order, as few files: at least one a schema, of at most some 128 MiB each."""
    schemas: dict[str, list[Path]] = {}
    for path in paths:
        schemas.setdefault(str(_opened(path).schema_arrow), []).append(path)
    for alike in schemas.values():
        groups = _row_groups(alike)
        while (first := next(groups, None)) is not None:
            yield _one_file(first, groups)


def _one_file(first: pa.Table, more: Iterator[pa.Table]) -> memoryview:
    sink = pa.BufferOutputStream()
    with parquet_writer(sink, first.schema) as writer:
        writer.write_table(first, row_group_size=first.num_rows)
        while sink.tell() < _FILE_BYTES and (table := next(more, None)) is not None:
            writer.write_table(table, row_group_size=table.num_rows)
    return memoryview(sink.getvalue())


def _row_groups(paths: Iterable[Path]) -> Iterator[pa.Table]:
    """Tables that are large enough to be read well, and small enough to be skipped when a query needs other cells."""
    waiting: list[pa.Table] = []
    for path in paths:
        waiting.append(_opened(path).read())
        if sum(table.nbytes for table in waiting) >= _ROW_GROUP_BYTES:
            yield pa.concat_tables(waiting).combine_chunks()
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting).combine_chunks()


def _opened(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(io.BytesIO(path.read_bytes()))  # no descriptor stays open
    except (OSError, pa.ArrowException) as error:
        said = str(error).partition("\n")[0]
        raise BadRun(f"Every file of a run must be readable Parquet: got {said} at {path}. Move that file away.") from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; its exit code: 0 compacted, or nothing to do; 1 the disk refused; 2 bad input."""
    parser = OneLineParser(prog="python -m storage.compact", description="Merge the many small files of runs into few.")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run's folder, here or in a bucket")
    parser.add_argument(
        "--grace-s", type=float, default=GRACE_S, help="wait so long for readers before the small files go (%(default)g)"
    )
    return run_command(lambda: _compact_all(parser.parse_args(arguments)))


def _compact_all(options: argparse.Namespace) -> int:
    if not options.grace_s >= 0:
        raise BadInput(f"--grace-s must be 0 or more: got {options.grace_s:g}.")
    for run in options.runs:
        outcome = compact(run, grace_s=options.grace_s)
        sys.stdout.write(f"{run}: {outcome.n_before} files of rows, now {outcome.n_after}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
