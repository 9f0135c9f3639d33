"""What a valid answer is: JSON by its schema, SQL over known tables, a tool call; and the prompts that ask for them."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from jobs.spec import Workload
from jobs.workloads import load_prompts
from jobs.workloads.validity import KINDS, expects_schema, fault_of, is_valid

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name"],
    "additionalProperties": False,
}
PERSON = expects_schema(json.dumps(SCHEMA))
QUERY = json.dumps({"kind": "sql", "tables": "CREATE TABLE t (a INTEGER, b TEXT); CREATE TABLE u (a INTEGER);"})
TREE = expects_schema('{"type": "array", "items": {"$ref": "#"}}')
CENTS = expects_schema('{"type": "number", "multipleOf": 0.01}')
CALL = json.dumps({"kind": "tool_call", "tools": [{"name": "greet", "description": "", "parameters": SCHEMA}]})
STRUCTURED = load_prompts(Workload(name="structured"))
CREATIVE = load_prompts(Workload(name="creative"))


@pytest.mark.parametrize(
    ("expects", "answer", "valid"),
    [
        pytest.param(PERSON, '{"name": "Ada", "age": 36}', True, id="an object of the schema"),
        pytest.param(PERSON, '\n```json\n{"name": "Ada"}\n```\nHere it is.', True, id="in the only fenced block"),
        pytest.param(PERSON, '```\n{"name": "A"}\n```\n```\n{}\n```', False, id="in one of two fenced blocks"),
        pytest.param(PERSON, 'Sure! {"name": "Ada"}', False, id="words before it"),
        pytest.param(PERSON, '{"name": "Ada", "age": -1}', False, id="a value that the schema forbids"),
        pytest.param(PERSON, '{"age": 36}', False, id="a field missing"),
        pytest.param(PERSON, '{"name": "Ada", "age": 3', False, id="cut"),
        pytest.param(PERSON, '{"name": NaN}', False, id="what only Python calls JSON"),
        pytest.param(PERSON, "[" * 100_000, False, id="nested beyond any parser"),
        pytest.param(PERSON, "", False, id="nothing"),
        pytest.param(TREE, "[[], [[]]]", True, id="nested as a schema refers to itself"),
        pytest.param(TREE, "[" * 400 + "]" * 400, False, id="nested deeper than a schema can be followed"),
        pytest.param(CENTS, "0.5", True, id="a number"),
        pytest.param(CENTS, "1e400", False, id="a number beyond any"),
        pytest.param(QUERY, "SELECT t.a, count(*) FROM t JOIN u USING (a) GROUP BY 1;", True, id="a query"),
        pytest.param(
            QUERY,
            "```sql\nWITH RECURSIVE x(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM x) SELECT n FROM x\n```",
            True,
            id="one without end: it is not run",
        ),
        pytest.param(QUERY, "SELECT c FROM t", False, id="a column that does not exist"),
        pytest.param(QUERY, "SELECT a FROM other", False, id="a table that does not exist"),
        pytest.param(QUERY, "SELECT a FRM t", False, id="a slip"),
        pytest.param(QUERY, "SELECT a FROM t; SELECT a FROM u", False, id="two queries"),
        pytest.param(QUERY, "DELETE FROM t", False, id="a statement that writes"),
        pytest.param(QUERY, "ATTACH 'file.db' AS x", False, id="a statement that opens a file"),
        pytest.param(QUERY, "PRAGMA user_version", False, id="a pragma"),
        pytest.param(QUERY, "QUERY PLAN SELECT a FROM t", False, id="the end of an explanation"),
        pytest.param(QUERY, "SELECT '\ud800' FROM t", False, id="half a character"),
        pytest.param(QUERY, "SELECT a\0 FROM t", False, id="a zero byte"),
        pytest.param(QUERY, "", False, id="no query"),
        pytest.param(CALL, '{"name": "greet", "arguments": {"name": "Ada"}}', True, id="a call"),
        pytest.param(
            CALL,
            '<tool_call>\n{"name": "greet", "arguments": {"name": "Ada"}}\n</tool_call>',
            True,
            id="a call between marks",
        ),
        pytest.param(CALL, '{"name": "greet", "arguments": {"age": 1}}', False, id="arguments that the schema forbids"),
        pytest.param(CALL, '{"name": "greet", "arguments": "{}"}', False, id="arguments as text"),
        pytest.param(CALL, '{"name": "shout", "arguments": {"name": "Ada"}}', False, id="a tool that does not exist"),
        pytest.param(CALL, '{"name": ["greet"], "arguments": {}}', False, id="a name that is none"),
        pytest.param(CALL, '{"greet": {"name": "Ada"}}', False, id="another shape"),
    ],
)
def test_an_answer_is_valid_if_it_is_what_was_asked_for(expects: str, answer: str, valid: bool) -> None:
    assert is_valid(expects, answer) is valid


@pytest.mark.parametrize(
    ("schema", "answer"),
    [
        pytest.param(
            {"$id": "https://x.y/s.json", "$defs": {"a": {"type": "string"}}, "items": {"$ref": "s.json#/$defs/a"}},
            '["x"]',
            id="by the schema's own name",
        ),
        pytest.param(
            {"$defs": {"a": {"$id": "https://x.y/a", "$defs": {"b": {}}, "$ref": "#/$defs/b"}}, "$ref": "#/$defs/a"},
            "1",
            id="inside a part with a name of its own",
        ),
        pytest.param({"$ref": "https://json-schema.org/draft/2020-12/schema"}, "{}", id="the draft's own schema"),
        pytest.param({"$ref": "#/x/a", "x": {"a": {"$ref": "#/x/b"}, "b": True}}, "1", id="parts kept anywhere"),
        pytest.param({"$dynamicRef": "#a", "$defs": {"a": {"$dynamicAnchor": "a"}}}, "1", id="a dynamic one"),
        pytest.param({"enum": [{"$ref": "#/no"}]}, '{"$ref": "#/no"}', id="a value that looks like one"),
        pytest.param({"properties": {"$ref": {}, "$id": {}}}, '{"$ref": "#/no"}', id="a property of that name"),
    ],
)
def test_a_reference_that_leads_to_a_schema_is_no_fault(schema: dict[str, Any], answer: str) -> None:
    assert fault_of(schema) == ""
    assert is_valid(expects_schema(json.dumps(schema)), answer)


@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        pytest.param({"$dynamicRef": "#no"}, "it refers to #no, which is not in it", id="dynamic"),
        pytest.param(
            {"$ref": "#/x/a", "x": {"a": {"$ref": "#/no"}}},
            "it refers to #/no, which is not in it",
            id="in what is referred to",
        ),
        pytest.param(
            {"$ref": "#/minimum/0", "minimum": 4}, "it refers to #/minimum/0, which is not in it", id="into a number"
        ),
        pytest.param({"$ref": "#/enum/a", "enum": [1]}, "it refers to #/enum/a, which is not in it", id="a word of a list"),
        pytest.param({"$ref": "#/title", "title": "a"}, "it refers to #/title, which is no schema", id="to a text"),
        pytest.param({"$ref": "#/x", "x": {"type": 5}}, "it refers to #/x, which is no schema", id="to no schema"),
    ],
)
def test_a_reference_that_leads_to_no_schema_is_a_fault(schema: dict[str, Any], fault: str) -> None:
    assert fault_of(schema) == fault


def test_an_answer_is_invalid_by_a_schema_that_refers_elsewhere_and_nothing_is_fetched() -> None:
    assert not is_valid(expects_schema('{"$dynamicRef": "http://127.0.0.1:1/schema"}'), "1")
    assert not is_valid(expects_schema('{"$dynamicRef": "#no"}'), "1")


def test_structured_has_three_kinds_and_creative_none() -> None:
    kinds = Counter(json.loads(prompt.expects)["kind"] for prompt in STRUCTURED)
    assert set(kinds) == set(KINDS)
    assert min(kinds.values()) >= 8
    assert {prompt.category for prompt in STRUCTURED} == set(KINDS)
    assert {prompt.expects for prompt in CREATIVE} == {""}
    assert min(Counter(prompt.category for prompt in CREATIVE).values()) >= 6
    both = [prompt.question_id for prompt in (*STRUCTURED, *CREATIVE)]
    assert len(both) == len(set(both))


@pytest.mark.parametrize("prompt", [pytest.param(prompt, id=prompt.src_id) for prompt in STRUCTURED])
def test_what_a_prompt_expects_can_be_judged_and_is_in_its_text(prompt: Any) -> None:
    expected = json.loads(prompt.expects)
    schemas = [expected["schema"]] if "schema" in expected else [tool["parameters"] for tool in expected.get("tools", ())]
    for schema in schemas:
        Draft202012Validator.check_schema(schema)
        assert set(schema["properties"]) <= {word.strip('":,') for word in prompt.turns[0].split()}
    if "tables" in expected:
        assert expected["tables"] in prompt.turns[0]
        assert is_valid(prompt.expects, "SELECT 1")
    assert not is_valid(prompt.expects, "I am not sure what you mean.")
