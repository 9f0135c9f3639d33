"""The adapter of transformers: what it refuses and why, and the command line that it makes. Nothing is started."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from jobs.engines.base import Launch, Site
from jobs.engines.own_host import PROJECT
from jobs.engines.transformers import METHODS, TransformersEngine
from jobs.errors import BadInput, Unsupported
from jobs.spec import DRAFT_FIELDS, Deployment, Draft, Engine, Model

MODEL = Model("tiny", "models/tiny")
GOOD = {
    "none": Draft(),
    "ngram": Draft(method="ngram", k=3),
    "draft_model": Draft(method="draft_model", k=3, model="models/draft", schedule="heuristic", confidence_threshold=0.4),
    "early_exit": Draft(method="early_exit", k=3, exit_layer=2, schedule="heuristic_transient"),
    "medusa": Draft(method="medusa", k=3, model="models/heads"),
    "mtp": Draft(method="mtp", k=1),
    "dflash": Draft(method="dflash", k=7, model="models/dflash"),
}
SITE = Site(4711, "nonce-1", Path("/models/tiny"), Path("/models/draft"), Path("/scratch"))


def check(engine: Engine, draft: Draft) -> None:
    TransformersEngine().check(Deployment(MODEL, engine, draft))


@pytest.mark.parametrize("method", sorted(GOOD))
def test_every_method_that_it_offers_is_accepted(method: str) -> None:
    check(Engine(), GOOD[method])


def test_it_offers_methods_whose_fields_are_in_the_vocabulary() -> None:
    assert set(METHODS) == set(DRAFT_FIELDS)
    assert {method for method, offer in METHODS.items() if not offer.refusal} == set(GOOD)


@pytest.mark.parametrize(
    ("engine", "draft", "message"),
    [
        pytest.param(
            {"batch": 8}, Draft(), r"`engine\.batch` must be 1 .*one request at a time: got 8\. Use another", id="batch"
        ),
        pytest.param({"tp": 2}, Draft(), r"`engine\.tp` must be 1 .*one device here: got 2\.", id="target over GPUs"),
        pytest.param({}, replace(GOOD["draft_model"], tp=2), r"`draft\.tp` must be 1 .*got 2\.", id="draft over GPUs"),
        pytest.param({"prefix_cache": True}, Draft(), r"`engine\.prefix_cache` must be false", id="prefix cache"),
        pytest.param(
            {},
            replace(GOOD["mtp"], model="m"),
            r"`draft\.model` must be empty for mtp .*got 'm'\.",
            id="MTP layers elsewhere",
        ),
        pytest.param({}, replace(GOOD["medusa"], vocab_size=9), r"`draft\.vocab_size` must be 0", id="pruned here"),
        pytest.param({}, Draft(method="eagle3", k=3), r"got 'eagle3' \(it has no EAGLE heads\)\. Offered by: ", id="method"),
        pytest.param(
            {}, Draft(method="ngram", k=3, ngram_min=2), r"`draft\.ngram_min` must be 1 .*got 2\.", id="shortest n-gram"
        ),
    ],
)
def test_what_transformers_does_not_offer_is_unsupported(engine: dict[str, object], draft: Draft, message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        check(replace(Engine(), **engine), draft)


@pytest.mark.parametrize(
    ("engine", "draft", "message"),
    [
        pytest.param({"dtype": "fp8"}, Draft(), r"got 'fp8'\. Known: auto, float32, bfloat16, float16\.", id="dtype"),
        pytest.param({"device": "tpu"}, Draft(), r"got 'tpu'\. Known: auto, cpu, cuda\.", id="device"),
        pytest.param({"threads": -1}, Draft(), r"`engine\.threads` must be at least 0: got -1\.", id="threads"),
        pytest.param({"max_length": -5}, Draft(), r"`engine\.max_length` must be at least 0: got -5\.", id="length"),
        pytest.param(
            {"args": {"atn": 1}}, Draft(), r"`engine\.args` .*got 'atn'\. Known: attn_implementation\.", id="argument"
        ),
        pytest.param(
            {"args": {"attn_implementation": "fast"}},
            Draft(),
            r"attn_implementation` .*got 'fast'\. Known: eager, sdpa",
            id="value",
        ),
        pytest.param(
            {}, replace(GOOD["ngram"], args={"tree": 1}), r"`draft\.args` must be empty .*got tree\.", id="draft argument"
        ),
        *(
            pytest.param(
                {}, replace(GOOD[method], k=0), rf"`draft\.k` must be at least 1 for {method}: got 0\.", id=f"{method}, k"
            )
            for method in sorted(set(GOOD) - {"none"})
        ),
        pytest.param(
            {}, replace(GOOD["ngram"], ngram_max=0), r"`draft\.ngram_max` must be at least 1: got 0\.", id="n-gram of 0"
        ),
        *(
            pytest.param(
                {},
                replace(GOOD[method], model=""),
                rf"`draft\.model` must name a model for {method}",
                id=f"{method} of none",
            )
            for method in ("draft_model", "medusa", "dflash")
        ),
        *(
            pytest.param(
                {},
                replace(GOOD[method], schedule="heuristic"),
                r"got 'heuristic'\. Known: constant\.",
                id=f"{method}, schedule",
            )
            for method in ("ngram", "medusa", "mtp", "dflash")
        ),
        pytest.param(
            {},
            replace(GOOD["draft_model"], schedule="adaptive"),
            r"got 'adaptive'\. Known: constant, heuristic, heuristic_transient\.",
            id="schedule",
        ),
        pytest.param(
            {},
            replace(GOOD["early_exit"], confidence_threshold=1.0),
            r"to below 1: got 1\.0\.",
            id="a threshold that stops always",
        ),
        pytest.param(
            {},
            replace(GOOD["early_exit"], exit_layer=0),
            r"`draft\.exit_layer` must be at least 1 for early_exit",
            id="exit layer",
        ),
    ],
)
def test_a_wrong_value_is_refused_in_one_line(engine: dict[str, object], draft: Draft, message: str) -> None:
    with pytest.raises(BadInput, match=message) as refused:
        check(replace(Engine(), **engine), draft)
    assert "\n" not in str(refused.value)


def test_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPECSWEEP_TRANSFORMERS_PYTHON", raising=False)
    deployment = Deployment(MODEL, Engine(dtype="float32", device="cpu"), GOOD["draft_model"])
    launch = TransformersEngine().launch(deployment, SITE)
    config = launch.argv[-1]
    assert launch == Launch(
        argv=(
            f"{PROJECT}/.venvs/transformers/bin/python",
            *("-m", "jobs.engines.host", "--backend", "transformers", "--port", "4711"),
            *("--config", config),
        ),
        env={
            "PYTHONPATH": str(PROJECT),
            "SPECSWEEP_HOST_NAME": "nonce-1",
            "OMP_WAIT_POLICY": "PASSIVE",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        },
        health_path="/health",
    )
    told = json.loads(config)
    assert (told["model_dir"], told["draft_dir"]) == ("/models/tiny", "/models/draft")
    assert told["draft"]["schedule"] == "heuristic"
    assert told["engine"]["dtype"] == "float32"


@pytest.mark.parametrize(
    ("python", "found"),
    [
        pytest.param("venvs/mine/bin/python", f"{PROJECT}/venvs/mine/bin/python", id="relative to the project"),
        pytest.param("/opt/venv/bin/python", "/opt/venv/bin/python", id="absolute"),
        pytest.param("", "/node/python", id="the node's"),
    ],
)
def test_the_interpreter(python: str, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECSWEEP_TRANSFORMERS_PYTHON", "/node/python")
    launch = TransformersEngine().launch(Deployment(MODEL, Engine(python=python), Draft()), SITE)
    assert launch.argv[0] == found


def test_the_adapter_imports_no_engine() -> None:
    source = (PROJECT / "jobs/engines/transformers.py").read_text(encoding="utf-8")
    assert not re.search(r"^\s*(import|from) (torch|transformers)\b", source, re.MULTILINE)
