"""Owns the preparing of one configuration: masked rows in, whole rows and a manifest out, source by source.

Does not own how a row's turns are made (turns). What was made before, of the same files, is kept: a run that is repeated
makes what is still missing.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobs.errors import BadInput
from jobs.models import sha256_of
from jobs.workloads import files
from jobs.workloads.prepare import words
from jobs.workloads.prepare.library import Library, Missing
from jobs.workloads.prepare.turns import REVISIONS, SOURCES, Kit
from jobs.workloads.rows import Row, rows_of
from jobs.workloads.speed_bench import dialogue_in, is_masked
from storage import datasets
from storage.files import make_folder, write_whole

FILE = "test.parquet"
UNLIKE = (KeyError, IndexError, ValueError, TypeError, AttributeError)
"""What a source of another shape than expected leads to."""
Texts = dict[str, list[str]]  # question_id → turns
Tell = Callable[[str, int, int], None]  # source, rows that are done, rows in all


@dataclass
class Outcome:
    """How far one source got."""

    source: str
    rows: int = 0  # masked rows that need it
    kept: int = 0  # of which were made before
    made: int = 0
    missing: Counter[str] = field(default_factory=Counter)  # why → rows


@dataclass(frozen=True)
class Base:
    """A configuration as it is given: the files it comes from, their rows, and the revision that is known of them."""

    config: str
    paths: Sequence[Path]
    revision: str

    @property
    def hashes(self) -> dict[str, str]:
        return {path.name: sha256_of(path) for path in self.paths}

    def rows(self) -> list[dict[str, Any]]:
        """All rows, with `turns`, whichever of the two columns the files have."""
        return [_with_turns(row) for row in rows_of(self.paths)]


def prepare(base: Base, folder: Path, library: Library, tell: Tell) -> list[Outcome]:
    """Make what can be made and write it; one outcome for each source that masked rows need.

    A source that fails takes no other with it.
    """
    make_folder(folder)
    rows, hashes = base.rows(), base.hashes
    wanted: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        if is_masked(row["turns"]):
            wanted[source_of(row)].append(row)
    texts = _made_before(folder, hashes, {source: origin(source, library) for source in wanted})
    outcomes = [_begun(source, wanted[source], texts) for source in sorted(wanted)]
    for outcome in outcomes:
        _resolve(outcome, wanted[outcome.source], texts, Kit(library, base.config), tell)
        library.forget()
        _write(folder, base, hashes, rows, texts, outcomes, library)
    if not outcomes:
        _write(folder, base, hashes, rows, texts, outcomes, library)
    return outcomes


def source_of(row: Mapping[str, Any]) -> str:
    """The name of a row's source; the whole of what it says where no source of that name is known."""
    return next((name for name in SOURCES if name in row["source"]), row["source"])


def origin(source: str, library: Library) -> str:
    """Where a source's files come from, as the manifest says it; rows that were made from elsewhere are made again."""
    if source in library.local:
        return f"local {library.local[source]}"
    return f"hub {source}@{REVISIONS[source]}" if source in REVISIONS else "the addresses that its rows name"


def _begun(source: str, rows: Sequence[Mapping[str, Any]], texts: Texts) -> Outcome:
    return Outcome(source, len(rows), kept=sum(row["question_id"] in texts for row in rows))


def _resolve(outcome: Outcome, rows: Sequence[Mapping[str, Any]], texts: Texts, kit: Kit, tell: Tell) -> None:
    for done, row in enumerate(rows, 1):
        if row["question_id"] not in texts:
            try:
                texts[row["question_id"]] = _turns(outcome.source, row, kit)
                outcome.made += 1
            except Missing as missing:
                outcome.missing[str(missing)] += 1
        tell(outcome.source, done, len(rows))


def _turns(source: str, row: Mapping[str, Any], kit: Kit) -> list[str]:
    if source not in SOURCES:
        raise Missing("it is no source that SpecSweep knows; this is a newer SPEED-Bench than it")
    try:
        turns = SOURCES[source](row, kit)
    except UNLIKE as error:
        raise Missing(f"it is not of the shape that it had ({type(error).__name__}: {error})") from None
    if not turns or not all(isinstance(turn, str) and turn for turn in turns):
        raise Missing("what its source has for it is empty")
    return turns


def _with_turns(row: Row) -> dict[str, Any]:
    dialogue = dialogue_in(row)
    if dialogue.opening or dialogue.recorded:
        roles = [message["role"] for message in row.get("messages")]
        raise row.wrong("`messages` of SPEED-Bench must be a user's only", roles, "Name the hub's files.")
    values = {**row.values, "turns": list(dialogue.turns)}
    values.pop("messages", None)
    if missing := [name for name in ("question_id", "source", "src_id") if not isinstance(values.get(name), str)]:
        raise BadInput(
            f"a row of SPEED-Bench must have {', '.join(missing)}: {row.place} has {', '.join(sorted(row.values))}. "
            "Name the hub's files, or a copy that has its columns."
        )
    return values


def _made_before(folder: Path, hashes: Mapping[str, str], origins: Mapping[str, str]) -> Texts:
    """The turns of masked rows that an earlier run made, of the same files and from where they would be made now."""
    path, manifest = folder / FILE, _manifest(folder)
    if not path.is_file() or manifest.get("input") != hashes:
        return {}
    same = {name for name, item in manifest.get("sources", {}).items() if item["from"] == origins.get(name)}
    rows = datasets.read_rows(path, ("question_id", "source", "turns"))
    return {row["question_id"]: row["turns"] for row in rows if source_of(row) in same and not is_masked(row["turns"])}


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / files.MANIFEST
    try:
        found: dict[str, Any] = json.loads(path.read_bytes()) if path.is_file() else {}
    except ValueError:
        raise BadInput(f"{path} must be JSON, as this command writes it. Remove it and the data beside it.") from None
    return found


def _write(
    folder: Path,
    base: Base,
    hashes: Mapping[str, str],
    rows: Iterable[Mapping[str, Any]],
    texts: Texts,
    outcomes: Sequence[Outcome],
    library: Library,
) -> None:
    """The data first: a manifest never speaks of what is not there."""
    whole = [{**row, "turns": texts.get(row["question_id"], row["turns"])} for row in rows]
    datasets.write_rows(folder / FILE, whole)
    manifest = {
        "data_set": "nvidia/SPEED-Bench",
        "revision": base.revision,
        "config": base.config,
        "input": dict(hashes),
        "output": {FILE: sha256_of(folder / FILE)},
        "turns": hashlib.sha256(json.dumps([row["turns"] for row in whole]).encode()).hexdigest(),
        "rows": len(whole),
        "masked": sum(is_masked(row["turns"]) for row in whole),
        "words": f"{words.SOURCE}@{words.COMMIT}",
        "differs": "few-shot examples of cais/hle are drawn by each row's id, not by one stream in the order of rows",
        "sources": {item.source: _told(item, library) for item in outcomes},
    }
    write_whole(folder / files.MANIFEST, json.dumps(manifest, indent=2).encode())


def _told(outcome: Outcome, library: Library) -> dict[str, Any]:
    return {
        "from": origin(outcome.source, library),
        "rows": outcome.rows,
        "whole": outcome.kept + outcome.made,
        "missing": dict(outcome.missing),
        "read": dict(sorted(library.hashes.get(outcome.source, {}).items())),
    }
