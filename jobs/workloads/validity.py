"""Owns whether an answer is what its prompt asked for: JSON that keeps a schema, SQL over known tables, a tool call.

Does not own prompts, or how an answer becomes text. Nothing that a model wrote is ever run: SQLite only prepares a query, on
an empty database of its own, and may do nothing but read.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any

from jsonschema import Draft202012Validator, SchemaError
from jsonschema_specifications import REGISTRY
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

FENCED = re.compile(r"```[\w+-]*[ \t]*\n(.*?)```", re.DOTALL)
TOOL_CALL = re.compile(r"\s*<tool_call>(.*)</tool_call>\s*", re.DOTALL)
READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
REFERENCES = ("$ref", "$dynamicRef")
IS_SCHEMA = Draft202012Validator(Draft202012Validator.META_SCHEMA)


def is_valid(expects: str, answer: str) -> bool:
    """Whether the answer's only fenced block, or the whole answer, is what was expected (JSON, as `Prompt.expects`)."""
    expected = json.loads(expects)
    return KINDS[expected["kind"]](expected, _bare(answer))


def expects_schema(schema: str) -> str:
    """The `expects` of a prompt whose answer must keep this JSON schema."""
    return json.dumps({"kind": "json_schema", "schema": json.loads(schema)})


def fault_of(schema: Mapping[str, Any]) -> str:
    """Why no answer could be judged by this JSON schema; "" = all can be."""
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        return f"at {error.json_path}: {error.message}"
    return next(_faults(schema, REGISTRY.resolver_with_root(DRAFT202012.create_resource(schema)), set()), "")


def _faults(schema: Any, resolver: Any, seen: set[int]) -> Iterator[str]:
    """What is wrong with what the schema refers to, at any depth, each part once."""
    if not isinstance(schema, Mapping) or id(schema) in seen:
        return
    seen.add(id(schema))
    for name in (schema[key] for key in REFERENCES if key in schema):
        try:
            found = resolver.lookup(name)
        except (Unresolvable, ValueError, TypeError):  # it may point into a number, or at a word of a list
            yield f"it refers to {name}, which is not in it"
            return
        if not IS_SCHEMA.is_valid(found.contents):
            yield f"it refers to {name}, which is no schema"
        yield from _faults(found.contents, found.resolver, seen)
    for part in DRAFT202012.create_resource(schema).subresources():
        yield from _faults(part.contents, resolver.in_subresource(part), seen)


def keeps_schema(expected: Mapping[str, Any], text: str) -> bool:
    """`schema`: JSON, nothing before or after it, that the schema allows."""
    value, is_json = _json(text)
    return is_json and _allows(expected["schema"], value)


def is_query(expected: Mapping[str, Any], text: str) -> bool:
    """`tables`: one query in SQLite's SQL, of tables and columns that exist."""
    with closing(sqlite3.connect(":memory:")) as database:
        database.executescript(expected["tables"])
        database.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in READING else sqlite3.SQLITE_DENY)
        try:
            database.execute(f"EXPLAIN {text}")
        except (sqlite3.Error, sqlite3.Warning, ValueError):
            return False
    return not re.match(r"\s*(explain|query\s+plan)\b", text, re.IGNORECASE)


def is_tool_call(expected: Mapping[str, Any], text: str) -> bool:
    """`tools`: an object with the name of one of them, and arguments that its schema allows."""
    marked = TOOL_CALL.fullmatch(text)
    call, is_json = _json(marked[1] if marked else text)
    if not is_json or not isinstance(call, dict) or set(call) != {"name", "arguments"}:
        return False
    schemas = {tool["name"]: tool["parameters"] for tool in expected["tools"]}
    name = call["name"]
    return isinstance(name, str) and name in schemas and _allows(schemas[name], call["arguments"])


KINDS: Mapping[str, Callable[[Mapping[str, Any], str], bool]] = {
    "json_schema": keeps_schema,
    "sql": is_query,
    "tool_call": is_tool_call,
}


def _allows(schema: Mapping[str, Any], value: Any) -> bool:
    """False also for what cannot be judged: nested deeper than a schema can be followed, a number beyond any, or by a schema
    that refers to what is not in it, nor of its draft: nothing is fetched."""
    try:
        return bool(Draft202012Validator(schema, registry=REGISTRY).is_valid(value))
    except (RecursionError, OverflowError, Unresolvable):
        return False


def _bare(answer: str) -> str:
    blocks = FENCED.findall(answer)
    return blocks[0] if len(blocks) == 1 else answer


def _json(text: str) -> tuple[Any, bool]:
    try:
        return json.loads(text, parse_constant=_refuse_constant), True
    except (ValueError, RecursionError):
        return None, False


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
