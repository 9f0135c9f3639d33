"""Owns the words of SPEED-Bench's prompts: read out of the code of its reference framework, at one commit, and never run.

Does not own what fills their holes. The words are NVIDIA's and of the papers: they are fetched like any source, and are no
part of SpecSweep.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from jobs.workloads.prepare.library import Library, Missing

SOURCE = "NVIDIA/Model-Optimizer"
COMMIT = "12d434e0775ee7bb244e705943324f06f7cbf007"
URL = f"https://raw.githubusercontent.com/{SOURCE}/{COMMIT}/examples/specdec_bench/specdec_bench/datasets/speed.py"

Words = dict[tuple[str, str], list[str]]
"""(function, variable) → the texts that are assigned or added to it, in their order; holes are written {name}."""


def words(library: Library) -> Words:
    """All texts of the framework's data set module; `Missing` where it cannot be had or is no Python."""
    return library.once("words", lambda: words_of(library.text_of_web(SOURCE, URL)))


def words_of(code: str) -> Words:
    try:
        tree = ast.parse(code)
    except SyntaxError as error:
        raise Missing(f"the words of the prompts are not in {URL}: it is not Python ({error.msg})") from None
    found: Words = defaultdict(list)
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for name, value in _assignments(function):
                if (text := _text(value)) is not None:
                    found[function.name, name].append(text)
    return dict(found)


def pick(found: Words, function: str, name: str, count: int = 1) -> list[str]:
    """The first texts of a variable; `Missing` where there are fewer."""
    texts = found.get((function, name), [])
    if len(texts) < count:
        raise Missing(f"the words of the prompts have changed: `{function}` sets `{name}` {len(texts)} times, not {count}")
    return texts[:count]


def _assignments(function: ast.FunctionDef) -> Iterator[tuple[str, ast.expr]]:
    for node in sorted(
        (item for item in ast.walk(function) if isinstance(item, ast.Assign | ast.AugAssign)), key=lambda item: item.lineno
    ):
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        if isinstance(target, ast.Name):
            yield target.id, node.value


def _text(value: ast.expr) -> str | None:
    """A text, or one with holes, of an f-string or a sum; braces that are no holes are doubled there, as `format` has it."""
    if isinstance(value, ast.Constant):
        return value.value if isinstance(value.value, str) else None
    if isinstance(value, ast.JoinedStr):
        return "".join(_part(part) for part in value.values)
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add) and _has_text(value):
        return "".join(_part(part) for part in _summands(value))
    return None


def _part(part: ast.expr) -> str:
    if isinstance(part, ast.Constant) and isinstance(part.value, str):
        return part.value.replace("{", "{{").replace("}", "}}")
    inner = part.value if isinstance(part, ast.FormattedValue) else part
    return f"{{{inner.id}}}" if isinstance(inner, ast.Name) else "{}"


def _summands(value: ast.expr) -> Iterator[ast.expr]:
    if isinstance(value, ast.BinOp):
        yield from _summands(value.left)
        yield from _summands(value.right)
    else:
        yield value


def _has_text(value: ast.expr) -> bool:
    return any(isinstance(part, ast.Constant) and isinstance(part.value, str) for part in _summands(value))
