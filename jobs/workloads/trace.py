"""Owns the workload `trace`: requests of a recorded service, of which the times and lengths are known and the texts are not.

Does not own the texts that stand in for them (`synthetic`), or sending at those times (`load=replay`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import lru_cache

from jobs.errors import BadInput
from jobs.spec import Workload
from jobs.workloads.base import Prompt, Template, question_id_of, refuse_meaningless
from jobs.workloads.files import chosen
from jobs.workloads.jsonl import names_of, structured, unique
from jobs.workloads.rows import Row, number_of, require, rows_of
from jobs.workloads.synthetic import CATEGORIES, PLACES, TASKS, Task, pieces

FILES = ("*.csv", "*.jsonl", "*.parquet", "*.json")
COLUMNS = ("timestamp", "input_tokens", "output_tokens", "hash_ids", "category")
NEEDED = COLUMNS[:3]
CATEGORY = "trace"
BLOCKS = (512, 16, 32, 64, 128, 256, 1024)
"""Tokens that one of `hash_ids` may stand for: Mooncake's, Bailian's, and those of engines and other tools."""
TOO_FINE = re.compile(r"(\.\d{6})\d+")  # digits of a second that Python cannot read


@dataclass(frozen=True)
class Dialect:
    """What a public trace calls COLUMNS, and how many seconds its unit of time has."""

    name: str
    columns: Mapping[str, str]
    unit_s: float = 1.0
    mark: str = ""  # a column that tells it from another dialect with the same columns


LENGTHS = {
    "timestamp": "timestamp",
    "input_tokens": "input_length",
    "output_tokens": "output_length",
    "hash_ids": "hash_ids",
}
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
    Dialect("Bailian", {**LENGTHS, "category": "type"}, mark="parent_chat_id"),
    Dialect("Mooncake", LENGTHS, unit_s=1e-3),
    Dialect("your own", {name: name for name in NEEDED}),
)

MEANINGLESS = {"isl": "each of its requests has a length of its own"}


@dataclass(frozen=True)
class Request:
    """A request as the trace tells it; `blocks`: a hash for each block of its prompt."""

    arrival_s: float
    tokens: int
    limit: int
    category: str
    blocks: tuple[str, ...]


@dataclass(frozen=True)
class TraceText:
    """The recipe: a text of `isl` tokens. Texts are equal as far as their `blocks` are, for a prefix cache to find."""

    isl: int
    task: Task
    place: str
    salt: str
    blocks: tuple[str, ...] = ()
    block_tokens: int = 0  # of each of them

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
        body = [id_ for block in self.blocks for id_ in _text_ids(self.task.text, block, self.block_tokens, template)]
        return [*body, *_text_ids(self.task.text, self.salt, max(count - len(body), 0), template)][:count]


def read_prompts(workload: Workload) -> list[Prompt]:
    """The requests of a trace, but for those that failed in it (without a token in or out)."""
    refuse_meaningless(workload, MEANINGLESS)
    rows = rows_of(chosen(workload, FILES))
    dialect = _dialect(rows[0], workload.columns)
    require(rows, [dialect.columns[name] for name in NEEDED])
    times = [_time_s(row, dialect.columns["timestamp"]) * dialect.unit_s for row in rows]
    start = min(times)
    told = [_told(row, time - start, dialect.columns) for row, time in zip(rows, times, strict=True)]
    asked = [request for request in told if request.tokens and request.limit]
    size = _block_tokens(asked, workload.path)
    kept = [_prompt(request, size, workload) for request in asked]
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
        needed = [dialect.columns[name] for name in NEEDED] + [dialect.mark] * bool(dialect.mark)
        if all(name in row.values for name in needed):
            return dialect
    known = "; ".join(f"{', '.join(item.columns[name] for name in NEEDED)} ({item.name})" for item in DIALECTS)
    raise BadInput(
        f"a trace must have times and lengths: {row.place} has {', '.join(map(str, row.values))}. Known: {known}. Map "
        "the columns: 'workload.columns={timestamp: ..., input_tokens: ..., output_tokens: ...}'."
    )


def _told(row: Row, arrival_s: float, names: Mapping[str, str]) -> Request:
    tokens, limit = row.count(names["input_tokens"]), row.count(names["output_tokens"])
    blocks = structured(row, names["hash_ids"]) or [] if "hash_ids" in names else []
    if not isinstance(blocks, list):
        raise row.wrong(f"`{names['hash_ids']}` must be a list of hashes", blocks, "Write [1, 2], or leave the column out.")
    category = row.text(names["category"]) if "category" in names else ""
    return Request(arrival_s, tokens, limit, category or CATEGORY, tuple(map(str, blocks)))


def _block_tokens(requests: Sequence[Request], path: str) -> int:
    """For how many tokens each hash stands, which the lengths tell; `BadInput` where no size fits them all."""
    for size in BLOCKS:
        if all(
            (len(item.blocks) - 1) * size < item.tokens <= (len(item.blocks) + 1) * size for item in requests if item.blocks
        ):
            return size
    raise BadInput(
        f"`hash_ids` must be one for each block of a prompt, of {', '.join(map(str, sorted(BLOCKS)))} tokens: no size "
        f"fits all requests of {path}. Correct the rows, or take the column out."
    )


def _prompt(told: Request, block_tokens: int, workload: Workload) -> Prompt:
    question_id = question_id_of("trace", f"{told.arrival_s:.6f}", told.tokens, told.limit, f"seed={workload.seed}")
    blocks = tuple(f"{workload.seed}/{block}" for block in told.blocks)
    chance = int(question_id_of(blocks[0]) if blocks else question_id, 16)  # what begins alike is of one kind
    tier = workload.entropy or list(TASKS)[chance % len(TASKS)]
    task = list(TASKS[tier].values())[chance // len(TASKS) % len(TASKS[tier])]
    return Prompt(
        question_id,
        told.category,
        turns=(f"a text of {told.tokens} tokens",),
        sub_category=CATEGORIES[tier],
        source="trace",
        recipe=TraceText(told.tokens, task, PLACES[chance % len(PLACES)], question_id, blocks, block_tokens),
        output_limit=told.limit,
        arrival_s=told.arrival_s,
    )


def _time_s(row: Row, column: str) -> float:
    """A number, or a date and time (in UTC where it names no zone)."""
    value = row.get(column)
    if (number := number_of(value)) is not None:
        return number
    try:
        moment = datetime.fromisoformat(TOO_FINE.sub(r"\1", str(value).strip().replace("Z", "+00:00")))
    except ValueError:
        raise row.wrong(
            f"`{column}` must be a time: a number, or a date and time", value, "Write 2024-05-10 00:00:01.5."
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()


def _text_ids(kind: str, salt: str, count: int, template: Template) -> list[int]:
    """`count` tokens of the texts, from a token of chance on, so that hardly two salts begin alike; none comes twice."""
    own, others = _ids_of_texts(kind, template)
    if count > (most := len(own) + len(others)):
        raise BadInput(
            f"a request of a trace must not be longer than the texts that SpecSweep has, {most} tokens of this model: got "
            f"{count}. Leave longer ones out of the file."
        )
    start = int(question_id_of(salt), 16) % len(own)
    ids = own[start : start + count]
    ids += own[: min(start, count - len(ids))]
    return ids + others[: count - len(ids)]


@lru_cache(maxsize=len(TASKS))  # the texts are long
def _ids_of_texts(kind: str, template: Template) -> tuple[list[int], list[int]]:
    """The texts of a kind, and those that it goes on with where they end."""
    other = "prose" if kind == "code" else "code"
    own, others = (template.plain_ids("\n\n".join(pieces(name))) for name in (kind, other))
    return own, others
