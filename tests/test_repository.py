"""The repository itself: what lies in it, what its locks and pages say, and what its Makefile does."""

from __future__ import annotations

import ast
import re
import shutil
import statistics
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from storage.rows import CellResult
from storage.runs import RunStore
from storage.views import open_runs
from tests.storage.recorded import create_cell, create_request, create_row

ROOT = Path(__file__).resolve().parent.parent
TOP_LEVEL = {
    *("pyproject.toml", "sweep.py", "orchestrator", "conf", "jobs", "storage", "tests", "docker", "README.md", "Makefile"),
    *("LICENSE", "CONTRIBUTING.md", "docs", "benchmarks", ".ci", ".github", ".gitignore", ".pre-commit-config.yaml"),
}
HEAD = ROOT / "docker/head/requirements.lock"
DEV = ROOT / "docker/dev.lock"
ENGINE = ROOT / "docker/transformers/requirements.lock"
EXTRAS = ROOT / "docker/extras/requirements.lock"
LOCK_LINE = re.compile(r"[a-z0-9._-]+==[\w.+!-]+( ; .+)?")
LINK = re.compile(r"\]\(([^)\s]+)\)")
FOREIGN = re.compile(  # written so that this file does not match itself
    r"pypi[.]org|pythonhosted[.]org|registry[.]npmjs|deb[.]debian[.]org|download[.]pytorch[.]org|"
    r"/wor[k]/|/roo[t]/|/opt/(?:wheel[s]|pyp[i])|[.]librar[y]/"
)


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


def pages() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_top_level_holds_only_what_the_map_names() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in tracked()} <= TOP_LEVEL


def test_no_tracked_file_names_a_registry_or_a_path_of_one_machine() -> None:
    found = []
    for path in tracked():
        text = path.read_bytes().decode(errors="replace")
        found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in FOREIGN.finditer(text)]
    assert found == []


@pytest.mark.parametrize("lock", [HEAD, DEV, ENGINE, EXTRAS], ids=lambda lock: str(lock.relative_to(ROOT)))
def test_a_lock_is_exact_versions_and_no_addresses(lock: Path) -> None:
    assert [line for line in lock.read_text().splitlines() if not LOCK_LINE.fullmatch(line)] == []


def test_the_head_image_has_the_environment_that_the_tests_ran_in() -> None:
    assert set(HEAD.read_text().splitlines()) <= set(DEV.read_text().splitlines())


def test_both_environments_have_the_same_version_of_what_they_share() -> None:
    """The tokenizer of the load client and the one of the engine must not drift apart."""
    head, engine = locked(HEAD), locked(ENGINE)
    shared = set(head) & set(engine)
    assert {"transformers", "tokenizers", "numpy", "starlette"} <= shared
    assert {name: engine[name] for name in shared} == {name: head[name] for name in shared}


def locked(lock: Path) -> dict[str, set[str]]:
    """Name → its lines (one a Python, where versions differ), without the markers' other conditions."""
    found: dict[str, set[str]] = {}
    for line in lock.read_text().splitlines():
        found.setdefault(line.partition("==")[0], set()).add(line.partition(" ;")[0])
    return found


def asked(lock: Path) -> list[str]:
    project: Any = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli").loads(
        (ROOT / "pyproject.toml").read_text()
    )
    if lock in (ENGINE, EXTRAS):
        lines = (line.partition("#")[0].strip() for line in lock.with_suffix(".in").read_text().splitlines())
        return [line for line in lines if line]
    extra = project["project"]["optional-dependencies"]["dev"] if lock == DEV else []
    return [*project["project"]["dependencies"], *extra]


@pytest.mark.parametrize("lock", [HEAD, DEV, ENGINE, EXTRAS], ids=lambda lock: str(lock.relative_to(ROOT)))
def test_a_lock_satisfies_what_was_asked_for(lock: Path) -> None:
    versions = locked(lock)
    for requirement in map(Requirement, asked(lock)):
        lines = versions.get(requirement.name.lower(), set())
        assert lines, f"{requirement.name} is not locked: run `make lock`"
        assert all(requirement.specifier.contains(line.partition("==")[2]) for line in lines), (requirement, lines)


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_resolves(page: Path) -> None:
    targets = [link.partition("#")[0] for link in LINK.findall(page.read_text()) if "://" not in link]
    assert [target for target in targets if target and not (page.parent / target).exists()] == []


def test_every_file_and_command_that_the_readme_names_exists() -> None:
    text = (ROOT / "README.md").read_text()
    tree = [line.split("  ")[0].strip() for line in re.search(r"```text\n(.*?)```", text, re.DOTALL)[1].splitlines()]  # type: ignore[index]
    files = [word for name in tree for word in name.split() if not word.startswith("results")]
    assert [name for name in files if not (ROOT / name).exists()] == []
    modules = [module.replace(".", "/") for module in re.findall(r"python -m ([\w.]+)", text)]
    assert [name for name in modules if not ((ROOT / name).is_dir() or (ROOT / f"{name}.py").is_file())] == []
    targets = set(re.findall(r"\bmake ([a-z-]+)", text))
    assert targets <= set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_the_workflow_runs_the_same_script_as_every_other_ci() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    assert "bash .ci/run" in [step.get("run") for step in workflow["jobs"]["whole"]["steps"]]
    subprocess.run(["bash", "-n", str(ROOT / ".ci/run")], check=True)


def test_the_house_style_of_sizes_holds() -> None:
    sources = [path for path in tracked() if path.suffix == ".py" and "tests" not in path.parts]
    lengths = {f"{path.relative_to(ROOT)}:{name}": lines for path in sources for name, lines in functions(path)}
    ordered = sorted(lengths.values())
    assert statistics.median(ordered) <= 10
    assert ordered[len(ordered) * 9 // 10] <= 30
    assert {name: lines for name, lines in lengths.items() if lines > 60} == {}
    assert {str(path): lines for path in sources if (lines := len(path.read_text().splitlines())) > 300} == {}


def functions(path: Path) -> list[tuple[str, int]]:
    found = [
        node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    return [(node.name, (node.end_lineno or 0) - node.lineno + 1) for node in found]


@pytest.mark.parametrize("path", [path for path in tracked() if path.suffix == ".py" and "tests" not in path.parts], ids=str)
def test_every_module_says_what_it_owns(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert not tree.body or ast.get_docstring(tree), f"{path.name} has code and no docstring"


PYTHON_STAND_IN = """\
#!/bin/sh
# Stands in for python: notes its calls, makes "environments" of itself, and fails to install while `offline` exists.
echo "$@" >> {folder}/calls
case "$1 $2" in
    "-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
    "-m pip") test ! -e {folder}/offline ;;
    *) exec {python} -c 'import sys; sys.version_info = {version}; exec(sys.argv[2])' "$@" ;;
esac
"""


class Clone:
    """A folder with the Makefile, its locks and a stand-in for Python."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copy(ROOT / "Makefile", folder)
        for lock in (HEAD, DEV, ENGINE):
            target = folder / lock.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(lock, target)
        self.with_python((3, 11, 0))

    def with_python(self, version: tuple[int, int, int]) -> None:
        python = self.folder / "python"
        python.write_text(PYTHON_STAND_IN.format(folder=self.folder, python=sys.executable, version=version))
        python.chmod(0o755)

    def make_env(self) -> subprocess.CompletedProcess[str]:
        (self.folder / "calls").write_text("")
        command = ["make", "-s", "env", f"PYTHON={self.folder / 'python'}"]
        return subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)

    @property
    def made(self) -> list[str]:
        """The environments that the last `make env` made."""
        lines = (self.folder / "calls").read_text().splitlines()
        return [line.split()[2] for line in lines if line.startswith("-m venv")]


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


def test_make_env_makes_both_environments_once(clone: Clone) -> None:
    assert clone.make_env().returncode == 0
    assert clone.made == [".venv", ".venvs/transformers"]
    assert clone.make_env().returncode == 0
    assert clone.made == []


def test_a_half_made_environment_is_made_anew(clone: Clone) -> None:
    (clone.folder / "offline").touch()
    assert clone.make_env().returncode != 0
    (clone.folder / ".venv/leftover").touch()
    (clone.folder / "offline").unlink()
    assert clone.make_env().returncode == 0
    assert clone.made == [".venv", ".venvs/transformers"]
    assert not (clone.folder / ".venv/leftover").exists()


def test_a_changed_lock_makes_its_environment_anew_and_a_new_date_does_not(clone: Clone) -> None:
    clone.make_env()
    lock = clone.folder / "docker/dev.lock"
    lock.touch()
    clone.make_env()
    assert clone.made == []
    lock.write_text(lock.read_text() + "more==1\n")
    clone.make_env()
    assert clone.made == [".venv"]


def test_pytorch_can_come_from_another_index_and_goes_first(clone: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_INDEX_URL", "https://wheels.example/cpu")
    clone.make_env()
    lines = (clone.folder / "calls").read_text().splitlines()
    torch, rest = [line for line in lines if "pip" in line and "docker/transformers" in line]
    assert torch.endswith("--extra-index-url https://wheels.example/cpu -c docker/transformers/requirements.lock torch")
    assert rest.endswith("install --no-deps --use-pep517 -r docker/transformers/requirements.lock")


@pytest.mark.parametrize("version", [pytest.param((3, 9, 18), id="too old"), pytest.param((3, 14, 0), id="too new")])
def test_a_python_that_does_not_fit_is_one_clear_line(clone: Clone, version: tuple[int, int, int]) -> None:
    clone.with_python(version)
    done = clone.make_env()
    assert done.returncode != 0
    assert f"SpecSweep needs Python 3.10 to 3.13: got {version[0]}.{version[1]}." in done.stderr
    assert "Traceback" not in done.stderr
    assert not (clone.folder / ".venv").exists()


README_SQL = re.findall(r'python -m storage\.query \S+ "(.+?)"', (ROOT / "README.md").read_text())


@pytest.mark.parametrize("sql", README_SQL)
def test_the_sql_of_the_readme_finds_what_it_promises(sql: str, tmp_path: Path) -> None:
    with RunStore.create(tmp_path / "run", "") as store:
        for method, k in (("none", 0), ("ngram", 3)):
            row = create_row(create_cell(method, k))
            drafting = {"tokens": (1, 4), "drafted": (0, 3), "accepted": (0, 3)} if k else {}
            gaps_ms = (100.0, 10.0) if k else (100.0, 10.0, 10.0, 10.0, 10.0)
            requests = [create_request(row, index, gaps_ms=gaps_ms, **drafting) for index in range(8)]
            store.write(CellResult(row, requests))
    with open_runs([tmp_path / "run"]) as runs:
        assert runs.execute(sql).fetchall(), sql
