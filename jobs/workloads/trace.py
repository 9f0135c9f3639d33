"""Owns the workload `trace`: requests of a recorded service, of which the times and lengths are known and the texts are not.

Does not own the texts that stand in for them (`synthetic`), or sending at those times (`load=replay`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from jobs.errors import BadInput
from jobs.spec import Workload
from jobs.workloads.base import Prompt, Template, question_id_of, refuse_meaningless
from jobs.workloads.files import chosen
from jobs.workloads.jsonl import names_of, unique
from jobs.workloads.rows import Row, require, rows_of
from jobs.workloads.synthetic import CATEGORIES, PLACES, TASKS, Task, pieces

FILES = ("*.csv", "*.jsonl", "*.parquet", "*.json")
COLUMNS = ("timestamp", "input_tokens", "output_tokens", "hash_ids", "category")
NEEDED = COLUMNS[:3]
CATEGORY = "trace"
BLOCK_TOKENS = 512  # that one of `hash_ids` stands for
CHARACTERS_A_TOKEN = 8  # more than a tokenizer needs for prose, so that one encoding is enough
TOO_FINE = re.compile(r"(\.\d{6})\d+")  # digits of a second that Python cannot read


@dataclass(frozen=True)
class Dialect:
    """What a public trace calls COLUMNS, and how many seconds its unit of time has."""

    name: str
    columns: Mapping[str, str]
    unit_s: float = 1.0


DIALECTS = (
    Dialect("Azure", {"timestamp": "TIMESTAMP", "input_tokens": "ContextTokens", "output_tokens": "GeneratedTokens"}),
    Dialect(
        "BurstGPT",
        {
            "timestamp": "Timestamp",
            "input_tokens": "Request tokens",
            "output_tokens": "Response tokens",
            "category": "Log Type",
        },
    ),
    Dialect(
        "Mooncake",
        {"timestamp": "timestamp", "input_tokens": "input_length", "output_tokens": "output_length", "hash_ids": "hash_ids"},
        unit_s=1e-3,
    ),
    Dialect("your own", {name: name for name in NEEDED}),
)

MEANINGLESS = {"isl": "each of its requests has a length of its own"}


@dataclass(frozen=True)
class TraceText:
    """The recipe: a text of `isl` tokens. Texts are equal as far as their `blocks` are, for a prefix cache to find."""

    isl: int
    task: Task
    place: str
    salt: str
    blocks: tuple[str, ...] = ()

    def made(self, template: Template) -> tuple[str, list[int]]:
        """No shorter than the chat template and a token, which some requests of a trace are."""
        before, after = template.around()
        room = max(self.isl - len(before) - len(after), 1)
        order = template.plain_ids(f"\n\n{self.task.order.format(place=self.place)}")
        order = order if 2 * len(order) < room else []
        return f"a text of {room} tokens", [*before, *self._body(room - len(order), template), *order, *after]

    def _body(self, count: int, template: Template) -> list[int]:
        if not self.blocks:
            return _text_ids(self.task.text, self.salt, count, template)
        body = [id_ for block in self.blocks for id_ in _text_ids(self.task.text, block, BLOCK_TOKENS, template)]
        return [*body, *_text_ids(self.task.text, self.salt, max(count - len(body), 0), template)][:count]


def read_prompts(workload: Workload) -> list[Prompt]:
    """The requests of a trace, but for those that failed in it (without a token in or out)."""
    refuse_meaningless(workload, MEANINGLESS)
    rows = rows_of(chosen(workload, FILES))
    dialect = _dialect(rows[0], workload.columns)
    require(rows, [dialect.columns[name] for name in NEEDED])
    times = [_time_s(row, dialect.columns["timestamp"]) * dialect.unit_s for row in rows]
    start = min(times)
    prompts = [_prompt(row, time - start, dialect.columns, workload) for row, time in zip(rows, times, strict=True)]
    kept = [prompt for prompt in prompts if prompt]
    if not kept:
        raise BadInput(
            f"a trace must have requests with tokens: none of the {len(rows)} in {workload.path} has. Name another."
        )
    return unique(kept, has_ids=False)


def _dialect(row: Row, columns: Mapping[str, str]) -> Dialect:
    """The one whose columns the file has, or your own."""
    if columns:
        return Dialect("your own", names_of(columns, COLUMNS))
    for dialect in DIALECTS:
        if all(dialect.columns[name] in row.values for name in NEEDED):
            return dialect
    known = "; ".join(f"{', '.join(item.columns[name] for name in NEEDED)} ({item.name})" for item in DIALECTS)
    raise BadInput(
        f"a trace must have times and lengths: {row.place} has {', '.join(map(str, row.values))}. Known: {known}. Map "
        "the columns: 'workload.columns={timestamp: ..., input_tokens: ..., output_tokens: ...}'."
    )


def _prompt(row: Row, arrival_s: float, names: Mapping[str, str], workload: Workload) -> Prompt | None:
    tokens, limit = row.count(names["input_tokens"]), row.count(names["output_tokens"])
    if not tokens or not limit:
        return None
    question_id = question_id_of("trace", f"{arrival_s:.6f}", tokens, limit, f"seed={workload.seed}")
    blocks = tuple(f"{workload.seed}/{block}" for block in (row.get(names["hash_ids"]) or ())) if "hash_ids" in names else ()
    chance = int(question_id_of(blocks[0]) if blocks else question_id, 16)  # what begins alike is of one kind
    tier = workload.entropy or list(TASKS)[chance % len(TASKS)]
    task = list(TASKS[tier].values())[chance // len(TASKS) % len(TASKS[tier])]
    category = row.text(names["category"]) if "category" in names else ""
    return Prompt(
        question_id,
        category or CATEGORY,
        turns=(f"a text of {tokens} tokens",),
        sub_category=CATEGORIES[tier],
        source="trace",
        recipe=TraceText(tokens, task, PLACES[chance % len(PLACES)], question_id, blocks),
        output_limit=limit,
        arrival_s=arrival_s,
    )


def _time_s(row: Row, column: str) -> float:
    """A number, or a date and time (in UTC where it names no zone)."""
    value = row.get(column)
    try:
        return float(value)
    except (TypeError, ValueError):
        pass
    try:
        moment = datetime.fromisoformat(TOO_FINE.sub(r"\1", str(value).strip().replace("Z", "+00:00")))
    except ValueError:
        raise row.wrong(
            f"`{column}` must be a time: a number, or a date and time", value, "Write 2024-05-10 00:00:01.5."
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()


def _text_ids(kind: str, salt: str, count: int, template: Template) -> list[int]:
    """`count` tokens of the texts, from a piece of chance on; where the kind ends it goes on with the other, none twice."""
    if not count:
        return []
    own = pieces(kind)
    start = int(question_id_of(salt), 16) % len(own)
    others = [piece for other in ("prose", "code") if other != kind for piece in pieces(other)]
    ids = template.plain_ids(_joined([*own[start:], *own[:start], *others], count * CHARACTERS_A_TOKEN))
    if len(ids) < count:
        raise BadInput(
            f"a request of a trace must not be longer than the texts that SpecSweep has, {len(ids)} tokens of this model: "
            f"got {count}. Leave longer ones out of the file."
        )
    return ids[:count]


def _joined(texts: Sequence[str], n_characters: int) -> str:
    """The first texts, a blank line between them, cut where there are enough characters."""
    kept, length = [], 0
    for text in texts:
        kept.append(text)
        length += len(text) + 2
        if length >= n_characters:
            break
    return "\n\n".join(kept)[:n_characters]
