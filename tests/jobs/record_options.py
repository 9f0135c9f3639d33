"""Records engines' own options from their sources and imports no engine. As a script, it writes `jobs/engines/known/`.

python tests/jobs/record_options.py sglang-0.5.23-....whl
python tests/jobs/record_options.py llama.cpp-SOURCES/common/arg.cpp 11434
"""

from __future__ import annotations

import ast
import json
import re
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

KNOWN = Path(__file__).resolve().parents[2] / "jobs/engines/known"
FIELDS = "sglang/srt/arg_groups/fields/"
SCALARS = {"int": "int", "float": "float", "str": "str", "bool": "switch"}


def sglang_options(wheel: Path) -> dict[str, dict[str, Any]]:
    """Field of `ServerArgs` → option, as `add_cli_args_from_dataclass` makes them; those without a flag are left out."""
    with zipfile.ZipFile(wheel) as files:
        names = sorted(name for name in files.namelist() if name.startswith(FIELDS) and name.endswith(".py"))
        choices = named_lists(files.read("sglang/srt/arg_groups/choices.py").decode())
        found = dict(field for name in names for field in sglang_fields(files.read(name).decode(), choices))
    return dict(sorted(found.items()))


def named_lists(source: str) -> dict[str, list[Any]]:
    """NAME = [literals] of a module."""
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.List) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = ast.literal_eval(node.value)
    return found


def sglang_fields(source: str, choices: Mapping[str, list[Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for cls in ast.parse(source).body:
        for node in cls.body if isinstance(cls, ast.ClassDef) else ():
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                option = sglang_option(node.target.id, node.annotation, choices)
                if option:
                    yield node.target.id, option


def sglang_option(name: str, annotation: ast.expr, choices: Mapping[str, list[Any]]) -> dict[str, Any] | None:
    """One `name: A[type, "help" or Arg(...)]`; None when it has no flag."""
    if not isinstance(annotation, ast.Subscript) or ast.unparse(annotation.value) != "A":
        return None
    kind, *metadata = annotation.slice.elts  # type: ignore[attr-defined]
    arg = {word.arg: word.value for item in metadata if isinstance(item, ast.Call) for word in item.keywords if word.arg}
    if "no_cli" in arg:
        return None
    flag = ast.literal_eval(arg["cli_name"]) if "cli_name" in arg else f"--{name.replace('_', '-')}"
    option: dict[str, Any] = {"kind": sglang_kind(ast.unparse(kind), arg), "flag": flag}
    if option["kind"] == "bool":
        option["off"] = flag.replace("--", "--no-", 1)
    if known := choices_of(kind, arg, choices):
        option["choices"] = known
    return option


def sglang_kind(annotation: str, arg: Mapping[str, ast.expr]) -> str:
    if "action" in arg:
        return "bool" if "BooleanOptionalAction" in ast.unparse(arg["action"]) else "list"
    if "type_parser" in arg:
        return "any"
    annotation = re.sub(r"^Optional\[(.*)\]$", r"\1", annotation)
    if annotation.startswith("Literal"):
        return "int" if re.match(r"Literal\[\d", annotation) else "str"
    return "list" if re.match(r"[Ll]ist\b", annotation) else SCALARS.get(annotation, "any")


def choices_of(kind: ast.expr, arg: Mapping[str, ast.expr], choices: Mapping[str, list[Any]]) -> list[Any]:
    told = arg.get("choices")
    if isinstance(told, ast.Name):
        return choices.get(told.id, [])
    if isinstance(told, ast.List):
        return [value for value in ast.literal_eval(told) if value is not None]
    literal = next(
        (node for node in ast.walk(kind) if isinstance(node, ast.Subscript) and "Literal" in ast.unparse(node.value)), None
    )
    return list(ast.literal_eval(literal.slice)) if literal and isinstance(literal.slice, ast.Tuple) else []


NAMES = re.compile(r"\{([^{}]*)\}")
HANDLER = re.compile(r"\]\s*\(\s*common_params\s*&\s*\w*\s*(?:,\s*(?:const\s+)?(std::string|int|bool)\b[^)]*)?\)")


def llama_options(source: str) -> dict[str, dict[str, Any]]:
    """Long name of a flag (without dashes in front, `-` as `_`) → option of llama-server, as `common/arg.cpp` has them."""
    found: dict[str, dict[str, Any]] = {}
    for block in source.split("add_opt(common_arg(")[1:]:
        examples = re.search(r"set_examples\(\{([^}]*)\}", block)
        handler = HANDLER.search(block)
        if handler is None or "argument has been removed" in block:
            continue
        if examples and "LLAMA_EXAMPLE_SERVER" not in examples[1] and "LLAMA_EXAMPLE_COMMON" not in examples[1]:
            continue
        on, off = names_of(block[: handler.start()])
        kind = {"std::string": "any", "int": "int", "bool": "bool"}.get(handler[1] or "", "switch")
        option = {"kind": kind, "flag": on, **({"off": off} if off else {})}
        found.setdefault(on.lstrip("-").replace("-", "_"), option)
    return dict(sorted(found.items()))


def names_of(head: str) -> tuple[str, str]:
    """The first long spelling of a flag, and that of its opposite ("" = it has none)."""
    groups = [re.findall(r'"(--[^"]*)"', group) for group in NAMES.findall(head)[:2]]
    first = [group[0] for group in groups if group]
    return first[0], first[1] if len(first) > 1 else ""


def text_of(version: str, source: str, sections: Mapping[str, Any]) -> str:
    """A file of `known/`: an option a line."""
    told = []
    for section, options in sections.items():
        lines = ",\n".join(f"   {json.dumps(name)}: {json.dumps(option)}" for name, option in options.items())
        told.append(f"  {json.dumps(section)}: {{\n{lines}\n  }}")
    head = f'{{\n "version": {json.dumps(version)},\n "source": {json.dumps(source)},\n "sections": {{\n'
    return head + ",\n".join(told) + "\n }\n}\n"


def main(source: Path, version: str = "") -> None:
    if source.suffix == ".whl":
        version, name = source.name.split("-")[1], "sglang"
        where, options = f"wheel sglang {version} of PyPI, {FIELDS}*.py", sglang_options(source)
    else:
        name, where = "llama_cpp", f"ggml-org/llama.cpp b{version}, common/arg.cpp"
        options = llama_options(source.read_text())
    (KNOWN / f"{name}-{version}.json").write_text(text_of(version, where, {"server": options}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
