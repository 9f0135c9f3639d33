"""The adapter of llama.cpp: what it refuses and why, and the command line that it makes. Nothing is started."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from jobs.engines.base import Launch, Site
from jobs.engines.llama_cpp import METHODS, LlamaCppEngine
from jobs.engines.options import known_of
from jobs.engines.own_host import PROJECT
from jobs.errors import BadInput, Unsupported
from jobs.spec import Cell, Deployment, Draft, Engine, Load, Model, Sampling, Workload

SITE = Site(4711, "nonce-1", Path("/models/tiny"), None, Path("/scratch"), ("0", "1"))
HEAD = {"k": 3, "model": "draft.gguf"}
GOOD = {
    "none": Draft(),
    "ngram": Draft(method="ngram", k=8, ngram_max=3, ngram_min=3),
    "draft_model": Draft(method="draft_model", **HEAD, confidence_threshold=0.5),
    "eagle3": Draft(method="eagle3", **HEAD),
    "mtp": Draft(method="mtp", k=1),
    "dflash": Draft(method="dflash", **HEAD, args={"spec_draft_type_k": "q8_0"}),
    "dspark": Draft(method="dspark", **HEAD),
    "synthetic": Draft(method="synthetic", drafter="draft_model", **HEAD, acceptance_length=2.5),
}
PLAIN = Engine("llama_cpp")
FULL = Engine(
    "llama_cpp", tp=2, batch=8, max_length=2048, kv_dtype="q8_0", cuda_graphs=False, device="cuda", threads=4, seed=7,
    args={"flash_attn": "on", "poll": 0, "repack": False},
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("target.gguf", "draft.gguf"):
        (tmp_path / name).touch()
    return tmp_path


def deployment(engine: Engine, draft: Draft, folder: Path | str = "models") -> Deployment:
    drafted = replace(draft, model=f"{folder}/{draft.model}") if draft.model else draft
    return Deployment(Model("tiny", f"{folder}/target.gguf"), engine, drafted)


def launch(engine: Engine, draft: Draft, folder: Path) -> Launch:
    return LlamaCppEngine().launch(deployment(engine, draft, folder), SITE)


def flags(started: Launch) -> dict[str, str]:
    """--a-b VALUE → {"a-b": VALUE}; "" for a switch."""
    pairs = [(word[2:], after) for word, after in pairwise([*started.argv, "--"]) if word.startswith("--")]
    return {name: "" if after.startswith("--") else after for name, after in pairs}


def test_it_offers_what_the_good_drafts_use() -> None:
    assert {method for method, offer in METHODS.items() if not offer.refusal} == set(GOOD)


@pytest.mark.parametrize("draft", [pytest.param(draft, id=name) for name, draft in GOOD.items()])
@pytest.mark.parametrize("engine", [pytest.param(PLAIN, id="plain"), pytest.param(FULL, id="every field")])
def test_every_flag_that_it_makes_is_one_of_llama_server(engine: Engine, draft: Draft, folder: Path) -> None:
    LlamaCppEngine().check(deployment(engine, draft, folder))
    options = known_of("llama_cpp").sections["server"].values()
    known = {option.flag[2:]: option.kind for option in options} | {
        option.off[2:]: "bool" for option in options if option.off
    }
    for name, value in flags(launch(engine, draft, folder)).items():
        assert (value == "") == (known[name] in ("switch", "bool")), name
        if known[name] == "int":
            int(value)


def test_every_field_of_the_engine_reaches_it(folder: Path) -> None:
    made = flags(launch(FULL, Draft(), folder))
    assert (made["model"], made["parallel"], made["ctx-size"]) == (f"{folder}/target.gguf", "8", "16384")
    assert (made["cache-type-k"], made["cache-type-v"], made["split-mode"]) == ("q8_0", "q8_0", "tensor")
    assert (made["threads"], made["seed"], made["gpu-layers"], made["flash-attn"]) == ("4", "7", "all", "on")
    assert {"no-cache-prompt", "no-kv-unified", "no-repack"} <= set(made)
    assert made["cache-ram"] == "0"
    assert made["spec-type"] == "none"
    started = launch(replace(FULL, prefix_cache=True), Draft(), folder)
    assert "cache-prompt" in flags(started)
    assert {"CUDA_VISIBLE_DEVICES": "0,1", "GGML_CUDA_DISABLE_GRAPHS": "1"}.items() <= started.env.items()


def test_on_a_cpu_nothing_is_offloaded(folder: Path) -> None:
    made = flags(launch(Engine("llama_cpp", device="cpu"), GOOD["draft_model"], folder))
    assert (made["device"], made["gpu-layers"], made["spec-draft-ngl"]) == ("none", "0", "0")


def test_the_session_is_told_by_name_and_key(folder: Path) -> None:
    started = launch(PLAIN, Draft(), folder)
    made = flags(started)
    assert (made["port"], made["slot-save-path"]) == ("4711", "/scratch")
    assert {"LLAMA_ARG_ALIAS": "nonce-1", "LLAMA_API_KEY": "nonce-1"}.items() <= started.env.items()
    assert "nonce-1" not in " ".join(started.argv), "other users of the node can read it"
    assert started.argv[0] == "llama-server"
    own = launch(replace(PLAIN, python="bin/llama-server"), Draft(), folder)
    assert own.argv[0] == str(PROJECT / "bin/llama-server")


@pytest.mark.parametrize(
    ("draft", "made"),
    [
        pytest.param(
            GOOD["ngram"],
            {"spec-type": "ngram-simple", "spec-ngram-simple-size-n": "3", "spec-ngram-simple-size-m": "8"},
            id="n-grams of one length",
        ),
        pytest.param(
            GOOD["draft_model"],
            {"spec-type": "draft-simple", "spec-draft-n-max": "3", "spec-draft-p-min": "0.5"},
            id="draft model",
        ),
        pytest.param(GOOD["eagle3"], {"spec-type": "draft-eagle3", "spec-draft-n-max": "3"}, id="EAGLE-3"),
        pytest.param(GOOD["dflash"], {"spec-type": "draft-dflash", "spec-draft-type-k": "q8_0"}, id="an option of its own"),
        pytest.param(GOOD["synthetic"], {"spec-type": "draft-simple", "spec-synth-len": "2.5"}, id="pretended length"),
        pytest.param(
            replace(GOOD["synthetic"], acceptance_length=0.0, acceptance_rates=[0.8, 0.5, 0.5]),
            {"spec-synth-rates": "0.8,0.4,0.2"},
            id="rates given what came before become rates of prefixes",
        ),
    ],
)
def test_the_draft_in_llama_servers_terms(draft: Draft, made: dict[str, str], folder: Path) -> None:
    assert made.items() <= flags(launch(PLAIN, draft, folder)).items()


def test_a_draft_on_one_device_beside_a_target_on_several(folder: Path) -> None:
    assert flags(launch(FULL, replace(GOOD["draft_model"], tp=1), folder))["spec-draft-device"] == "CUDA0"
    assert "spec-draft-device" not in flags(launch(FULL, GOOD["draft_model"], folder))


@pytest.mark.parametrize(
    ("engine", "draft", "message"),
    [
        pytest.param({}, Draft(method="suffix", k=3), "no suffix decoding", id="method"),
        pytest.param({"pp": 2}, Draft(), r"`engine\.pp` must be 1 for llama_cpp", id="pipeline"),
        pytest.param(
            {"dtype": "float32"}, Draft(), r"`engine\.dtype` must be 'auto' for llama_cpp", id="dtype is the file's"
        ),
        pytest.param(
            {}, replace(GOOD["ngram"], ngram_min=1), r"must equal `draft\.ngram_max`.*got 1 and 3", id="shorter n-grams"
        ),
        pytest.param({"tp": 4}, replace(GOOD["eagle3"], tp=2), r"`draft\.tp` must be 0, 1 or engine\.tp", id="draft TP"),
        pytest.param(
            {}, replace(GOOD["eagle3"], schedule="acceptance"), r"whose k is fixed: got 'acceptance'", id="schedule"
        ),
    ],
)
def test_what_llama_cpp_does_not_offer_is_unsupported(engine: dict[str, Any], draft: Draft, message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        LlamaCppEngine().check(deployment(replace(PLAIN, **engine), draft))


@pytest.mark.parametrize(
    ("model", "draft", "name"),
    [
        pytest.param("org/model", "", "model.path", id="target of the hub"),
        pytest.param("a.gguf", "org/draft", "draft.model", id="draft of the hub"),
    ],
)
def test_only_gguf_files_are_served(model: str, draft: str, name: str) -> None:
    drafted = Draft(method="draft_model", k=3, model=draft) if draft else Draft()
    with pytest.raises(Unsupported, match=rf"`{name}` must be a GGUF file for llama_cpp: got 'org/"):
        LlamaCppEngine().check(Deployment(Model("m", model), PLAIN, drafted))


@pytest.mark.parametrize(
    ("engine", "draft", "message"),
    [
        pytest.param(
            {"batch": 4}, Draft(), r"`engine\.max_length` must be given for llama_cpp with a batch above 1", id="slots"
        ),
        pytest.param({"kv_dtype": "fp8"}, Draft(), r"`engine\.kv_dtype` must be known: got 'fp8'", id="KV dtype"),
        pytest.param({"args": {"flash": 1}}, Draft(), r"must hold options .*got 'flash'", id="unknown flag"),
        pytest.param({"args": {"parallel": 1}}, Draft(), r"use engine\.batch\.", id="a flag of ours"),
        pytest.param({"args": {"spec_draft_n_min": 1}}, Draft(), r"give it as draft\.args", id="a draft's flag"),
        pytest.param({}, replace(GOOD["eagle3"], args={"poll": 1}), r"give it as engine\.args", id="an engine's flag"),
        pytest.param({}, replace(GOOD["eagle3"], args={"spec_draft_n_max": 9}), r"use draft\.k\.", id="the length is ours"),
        pytest.param(
            {},
            replace(GOOD["synthetic"], acceptance_length=0.0, acceptance_rates=[0.5]),
            "must be draft.k = 3 rates",
            id="rates",
        ),
        pytest.param({}, replace(GOOD["synthetic"], drafter="medusa"), "must be a method that llama_cpp has", id="drafter"),
    ],
)
def test_values_that_mean_nothing_are_bad_input(engine: dict[str, Any], draft: Draft, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        LlamaCppEngine().check(deployment(replace(PLAIN, **engine), draft))


def test_a_schema_and_pretended_acceptance_exclude_each_other() -> None:
    cell = Cell(deployment(PLAIN, GOOD["synthetic"]), Workload(json_schema="s.json"), Sampling(), Load())
    with pytest.raises(Unsupported, match=r"`workload\.json_schema` must be empty with synthetic"):
        LlamaCppEngine().check_cell(cell)
    LlamaCppEngine().check_cell(cell.with_draft(GOOD["eagle3"]))
