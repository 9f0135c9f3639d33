"""The house is a chain: a package imports only to its right, and what is heavy or foreign is known in one room only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CHAIN = ("sweep", "orchestrator", "jobs", "storage")
STANDALONE = "jobs/submit/"  # sends a command line; imports nothing of the rest
ENGINES = {"vllm", "sglang", "tensorrt_llm", "llama_cpp"}
OWNERS = {
    "hydra": ("orchestrator/config.py",),
    "omegaconf": ("orchestrator/config.py",),
    "ray": ("orchestrator/schedule/", "jobs/submit/"),
    "pyarrow": ("storage/",),
    "duckdb": ("storage/",),
    "torch": ("jobs/engines/host/",),
}
"""Foreign package → the only places that may import it."""

FILES = [ROOT / "sweep.py", *(path for name in CHAIN[1:] for path in sorted((ROOT / name).rglob("*.py")))]


def place(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module(path: Path) -> str:
    return place(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imports(path: Path, *, lazy: bool = True) -> Iterator[str]:
    """The modules that a file imports; with `lazy=False` only those at its import."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = ast.walk(tree) if lazy else _eager(tree)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{place(path)}: a relative import hides where it leads"
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _eager(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not _is_type_checking(node):
            yield node
            yield from _eager(node)


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


EVERY_FILE = pytest.mark.parametrize("path", [pytest.param(path, id=place(path)) for path in FILES])


@EVERY_FILE
def test_a_package_imports_only_to_its_right(path: Path) -> None:
    own = CHAIN.index(module(path).split(".")[0])
    ours = {name.split(".")[0] for name in imports(path)} & set(CHAIN)
    assert {name for name in ours if CHAIN.index(name) < own} == set()


@EVERY_FILE
def test_what_is_foreign_is_known_in_one_room_only(path: Path) -> None:
    for name in {name.split(".")[0] for name in imports(path)}:
        if name in OWNERS:
            assert place(path).startswith(OWNERS[name]), f"{name} belongs to {OWNERS[name]}"


@EVERY_FILE
def test_no_engine_is_imported(path: Path) -> None:
    assert {name.split(".")[0] for name in imports(path)} & ENGINES == set()


PLAIN = ("jobs.errors", "storage.errors", "storage.command")
"""What needs nothing but the standard library."""


def test_the_submitter_imports_nothing_of_the_rest() -> None:
    for path in FILES:
        if place(path).startswith(STANDALONE):
            ours = {name for name in imports(path) if name.split(".")[0] in CHAIN}
            assert {name for name in ours if not name.startswith(("jobs.submit", *PLAIN))} == set(), place(path)


def test_no_module_is_in_a_cycle() -> None:
    known = {module(path): path for path in FILES}
    graph = {
        name: {found for found in imports(path, lazy=False) if found in known and found != name}
        for name, path in known.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as cycle:
        pytest.fail(" → ".join(cycle.args[1]))
