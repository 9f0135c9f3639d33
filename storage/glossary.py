"""Owns what every view and column means, from `views/glossary.txt` and the comments of `thresholds`: for the shell, the
table `glossary` and `docs/sql.md`.

Does not own the views. `python -m storage.glossary > docs/sql.md` writes the page anew; a test holds both together.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import duckdb

FILE = Path(__file__).parent / "views" / "glossary.txt"
LIMITS = FILE.with_name("formulas.sql")
UNITS = {
    "_ns": "ns", "_ms": "ms", "_s": "s", "_tps": "tokens/s", "_rps": "requests/s", "_share": "share", "_bytes": "bytes",
    "_w": "W", "_j": "J", "_mhz": "MHz",
}  # fmt: skip
"""Ending of a column's name → its unit; a name that begins with `n_` is a count."""

HEAD = """# Views

Every number comes from these views over the recorded rows: `python -m storage.query RUN... "SELECT ..."`, the shell (the
same without SQL; `.views NAME` shows one), or `from storage import open_runs` in a notebook. The formulas are in
`storage/views/`. Shares are 0 to 1, times have their unit in the name, `n_` is a count. Limits are in `thresholds`:
they judge what was recorded, so that `UPDATE thresholds SET min_slo_attainment = 0.99` in a notebook judges anew, and
`python sweep.py ... thresholds.min_slo_attainment=0.99` has the run judged so wherever it is read. Limits on
latency (`load.slo_ttft_s`, `load.slo_tpot_s`) are recorded with a cell and stay with it; `FROM goodput_under(0.5, 0.05)`
asks for any others. In a notebook `verdicts` and others that build on much are quicker after
`settle_for(runs, ["verdicts"])` of `storage.views`, which keeps what they share; the command does that by itself.
This page is written by `python -m storage.glossary > docs/sql.md`.
"""


@dataclass(frozen=True)
class Word:
    name: str
    unit: str
    meaning: str


@cache
def words() -> tuple[Mapping[str, str], Mapping[str, Word]]:
    """View → what it is; name or pattern of a column → what it is."""
    views: dict[str, str] = {}
    columns: dict[str, Word] = {}
    is_view = False
    for line in FILE.read_text(encoding="utf-8").splitlines():
        if line.startswith("== "):
            is_view = line == "== views"
        elif found := re.fullmatch(r"([\w.*]+)(?: \[(.+?)\])? = (.+)", line):
            name, unit, meaning = found[1], found[2] or "", found[3]
            if is_view:
                views[name] = meaning
            else:
                columns[name] = Word(name, unit, meaning)
    return views, columns | _limits()


def _limits() -> dict[str, Word]:
    """`thresholds.NAME` → its comment in the SQL, and its usual value."""
    found = re.findall(
        r"^ +(\S+?)(?:::DOUBLE)? +AS (\w+)[,;] +-- (?:\[(.+?)\] )?(.+)$", LIMITS.read_text(encoding="utf-8"), re.M
    )
    return {
        f"thresholds.{name}": Word(
            f"thresholds.{name}", unit or _unit(name), f"{text}; usually {value.replace('confidence()', '0.95')}"
        )
        for value, name, unit, text in found
    }


def meaning_of(view: str, column: str) -> Word | None:
    """What a column of a view means: by `view.column`, by its name, else by a pattern; with its unit. None = nobody said."""
    _, columns = words()
    word = columns.get(f"{view}.{column}") or columns.get(column)
    if word is None:
        names = (f"{view}.{column}", column)
        word = next((columns[key] for key in columns if "*" in key and any(fnmatchcase(name, key) for name in names)), None)
    return word and Word(column, word.unit or _unit(column), word.meaning)


def write_glossary(runs: duckdb.DuckDBPyConnection) -> None:
    """Make the table `glossary`."""
    views, columns = words()
    rows = [(name, "", meaning) for name, meaning in views.items()]
    rows += [(word.name, word.unit, word.meaning) for word in columns.values()]
    names = ("name", "unit", "meaning")
    listed = ", ".join(f"unnest(?::VARCHAR[]) AS {name}" for name in names)
    runs.execute(f"CREATE TABLE glossary AS SELECT {listed}", [list(told) for told in zip(*rows, strict=True)]).fetchall()


def columns_of(runs: duckdb.DuckDBPyConnection) -> dict[str, list[tuple[str, str]]]:
    """View → its columns with their types, in order."""
    found: dict[str, list[tuple[str, str]]] = {}
    for view, column, kind in runs.execute(
        "SELECT table_name, column_name, data_type FROM duckdb_columns() ORDER BY table_name, column_index"
    ).fetchall():
        found.setdefault(view, []).append((column, kind))
    return found


def describe(view: str, columns: list[tuple[str, str]]) -> Iterator[str]:
    """A view in lines of plain text: what it is, then a line a column."""
    yield f"{view}: {words()[0].get(view, '')}"
    width = max(len(column) for column, _ in columns)
    for column, kind in columns:
        word = meaning_of(view, column) or Word(column, "", "")
        yield f"  {column:<{width}}  {kind.lower()}{f' [{word.unit}]' if word.unit else ''}: {word.meaning}"


def page(runs: duckdb.DuckDBPyConnection, names: tuple[str, ...]) -> str:
    """`docs/sql.md`."""
    columns = columns_of(runs)
    views, _ = words()
    lines = [HEAD, "| view | |", "| --- | --- |", *(f"| [{name}](#{name}) | {views.get(name, '')} |" for name in names)]
    for name in names:
        lines += ["", f"## {name}", "", f"{views.get(name, '')}.".replace("one row", "One row", 1), ""]
        lines += ["| column | type | unit | |", "| --- | --- | --- | --- |"]
        for column, kind in columns[name]:
            word = meaning_of(name, column) or Word(column, "", "")
            lines.append(f"| `{column}` | {kind.lower()} | {word.unit} | {word.meaning} |")
    return "\n".join(lines) + "\n"


def _unit(column: str) -> str:
    if column.startswith("n_"):
        return "count"
    return next((unit for ending, unit in UNITS.items() if column.endswith(ending)), "")


def main() -> int:
    """Write the page of the views to stdout, from a database with no rows."""
    from storage.views import PUBLIC_VIEWS, open_runs  # which reads this file

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "cells").mkdir()
        with open_runs([folder]) as runs:
            sys.stdout.write(page(runs, PUBLIC_VIEWS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
