"""Owns where a workload's files are: one, those of a folder, or of a data set of the hub. Does not own what is in them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from jobs.errors import BadInput
from jobs.models import HUB_ID
from jobs.provenance import local_path
from jobs.spec import Workload
from jobs.workloads.hub import data_set
from jobs.workloads.rows import READERS

MANIFEST = "manifest.json"
"""What `jobs.workloads.prepare` puts beside a data set: among other things, the revision that it is of."""


def located(workload: Workload, patterns: Sequence[str]) -> list[Path]:
    """The files that `workload.path` means: one, those of a folder, or those of a data set of the hub at a commit.

    Of a folder, those that match the first pattern that any does, sorted: `*` also stands for folders, and a pattern is for
    files at any depth unless it begins with /. Raises `BadInput` where there are none.
    """
    if not workload.path:
        raise BadInput(
            f"`workload.path` must be given for `{workload.name}`: a file, a folder or a hub id. Add workload.path=..."
        )
    local = local_path(workload.path)
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
    names = {file: f"/{file.relative_to(folder).as_posix()}" for file in _readable(folder)}
    for pattern in patterns:
        if found := [file for file, name in names.items() if _matches(name, pattern)]:
            return found
    has = ", ".join(name[1:] for name in list(names.values())[:8]) or f"no file in {', '.join(sorted(READERS))}"
    raise BadInput(f"{folder} must hold a file that matches {' or '.join(patterns)}: it has {has}. Name another folder.")


def chosen(workload: Workload, patterns: Sequence[str]) -> list[Path]:
    """The files of one's own prompts: those that `workload.split` picks, or all, which must then be of one kind.

    Raises `BadInput` where files of another kind would be left out without a word.
    """
    folder = local_path(workload.path)
    if workload.split:
        if folder.is_file():
            raise BadInput(
                f"`workload.split` picks files of a folder: got {workload.split!r}, and {folder} is a file. Leave it out."
            )
        return located(workload, [workload.split])
    files = located(workload, patterns)
    others = [file for file in _readable(folder) if file not in files] if folder.is_dir() else []
    if others:
        raise BadInput(
            f"a folder of prompts must hold files of one kind: {folder} has {len(files)} {files[0].suffix}, and beside them "
            f"{', '.join(file.name for file in others[:4])}. Say which: workload.split='*{files[0].suffix}'."
        )
    return files


def _readable(folder: Path) -> list[Path]:
    """The files below a folder that there is a reader for, sorted."""
    try:
        found = [path for path in folder.rglob("*") if path.suffix in READERS and path.is_file() and path.name != MANIFEST]
    except OSError as failure:
        raise BadInput(
            f"a folder of prompts must be readable: {failure.filename} is not ({failure.strerror}). Name another folder."
        ) from None
    return sorted(found)


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
