"""What a configuration could be made to do: name code, which is refused, or reach a shell, which the product never does."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.errors import BadInput
from jobs.spec import Cell
from orchestrator import config
from orchestrator.config import compose
from orchestrator.grid import expand

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = [
    ROOT / "sweep.py",
    *(path for name in ("orchestrator", "jobs", "storage") for path in (ROOT / name).rglob("*.py")),
]
MAKE_CODE = {"eval", "exec", "compile", "pickle.load", "pickle.loads", "os.system", "os.popen", "subprocess.getoutput"}
MAKE_CODE_ANYWHERE = {"instantiate", "get_class", "get_method", "unsafe_load", "full_load", "load_module"}


@pytest.mark.parametrize(
    "override",
    [
        pytest.param("+_target_=os.system", id="at the top"),
        pytest.param("+model._target_=os.system", id="in a part"),
        pytest.param("+cluster._target_=os.system", id="in what surrounds the cells"),
        pytest.param("+engine.args._target_=os.system", id="among an engine's own options"),
    ],
)
def test_a_target_on_the_command_line_is_refused(override: str) -> None:
    with pytest.raises(BadInput, match="_target_"):
        cells_of(override)


def cells_of(override: str) -> list[Cell]:
    sweep = compose(["engine=simulated", override])
    assert sweep is not None
    return expand(sweep.points, sweep.grid)


def test_a_target_in_a_file_of_conf_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in sorted(config.CONF.rglob("*.yaml")):
        copy = tmp_path / path.relative_to(config.CONF)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    (tmp_path / "model" / "mine.yaml").write_text("_target_: os.system\ncommand: touch owned\n")
    monkeypatch.setattr(config, "CONF", tmp_path)
    with pytest.raises(BadInput, match=r"_target_|command"):
        compose(["engine=simulated", "model=mine"])


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    """What is called, as it is written."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


@pytest.mark.parametrize("path", PRODUCT, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_nothing_in_the_product_makes_code_of_text_or_reaches_a_shell(path: Path) -> None:
    for name, call in calls(path):
        assert name not in MAKE_CODE
        assert name.rpartition(".")[2] not in MAKE_CODE_ANYWHERE
        assert "shell" not in {key.arg for key in call.keywords}, "lists of words, never a shell"
