"""The adapter of TensorRT-LLM: what it refuses and why, and the options file that it makes. Nothing is started."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobs.engines.base import Launch, Site
from jobs.engines.options import Options, known_of
from jobs.engines.own_host import PROJECT
from jobs.engines.tensorrt_llm import GUIDED, METHODS, VARIED, TensorrtLlmEngine
from jobs.engines.tensorrt_llm_options import DECODING_TYPES
from jobs.errors import BadInput, Unsupported
from jobs.spec import Cell, Deployment, Draft, Engine, Load, Model, Sampling, Workload

MODEL = Model("tiny", "models/tiny")
SITE = Site(4711, "nonce-1", Path("/models/tiny"), Path("/models/draft"), Path("/scratch"), ("4", "5"))
HEAD = {"k": 3, "model": "heads/x"}
WINDOW = {"acceptance_rate_window_size": 100, "acceptance_rate_threshold": 0.4}
GOOD = {
    "none": Draft(),
    "ngram": Draft(method="ngram", k=3, ngram_max=4),
    "suffix": Draft(method="suffix", k=8, args={"enable_global_pool": True}),
    "draft_model": Draft(method="draft_model", **HEAD, dummy_weights=True),
    "eagle3": Draft(method="eagle3", **HEAD, args={"eagle3_layers_to_capture": [1, 2], "use_rejection_sampling": True}),
    "mtp": Draft(method="mtp", k=1),
    "dflash": Draft(method="dflash", **HEAD),
    "pard": Draft(method="pard", **HEAD),
    "dspark": Draft(method="dspark", **HEAD),
    "synthetic": Draft(method="synthetic", drafter="mtp", k=3, acceptance_length=2.6),
}
VARIANTS = {
    **GOOD,
    "by acceptance": replace(GOOD["mtp"], schedule="acceptance", args=WINDOW),
    "by batch size": replace(GOOD["mtp"], k=5, schedule="batch_size", k_by_batch={1: 5, 8: 3, 32: 0}),
}
FULL = Engine(
    "tensorrt_llm", tp=4, pp=2, ep=4, batch=32, max_length=8192, kv_fraction=0.8, kv_bytes=1 << 30, dtype="bfloat16",
    kv_dtype="fp8", dummy_weights=True, cuda_graphs=False, device="cuda",
    args={"enable_chunked_prefill": True, "kv_cache_config": {"tokens_per_block": 64}},
)  # fmt: skip


def check(engine: Engine, draft: Draft) -> None:
    TensorrtLlmEngine().check(Deployment(MODEL, engine, draft))


def launch(engine: Engine, draft: Draft, site: Site = SITE) -> Launch:
    return TensorrtLlmEngine().launch(Deployment(MODEL, engine, draft), site)


def options(engine: Engine, draft: Draft) -> dict[str, Any]:
    """The options file as TensorRT-LLM reads it."""
    told: dict[str, Any] = yaml.safe_load(launch(engine, draft).files["options.yaml"])
    return told


def test_it_offers_what_the_good_drafts_use() -> None:
    assert {method for method, offer in METHODS.items() if not offer.refusal} == set(GOOD)
    assert set(DECODING_TYPES) == set(GOOD) - {"synthetic"}


def agree(told: dict[str, Any], known: Options) -> None:
    """Every key is a field, and every value is of its type: extra fields are forbidden there."""
    for name, value in told.items():
        assert name in known
        assert known[name].takes(value), (name, value)


@pytest.mark.parametrize("draft", [pytest.param(draft, id=name) for name, draft in VARIANTS.items()])
@pytest.mark.parametrize("engine", [pytest.param(Engine("tensorrt_llm"), id="plain"), pytest.param(FULL, id="every field")])
def test_every_option_that_it_makes_is_a_field_of_the_right_type(engine: Engine, draft: Draft) -> None:
    check(engine, draft)
    told, known = options(engine, draft), known_of("tensorrt_llm").sections
    agree(told, known["TorchLlmArgs"])
    agree(told["kv_cache_config"], known["KvCacheConfig"])
    speculation = told.get("speculative_config")
    assert bool(speculation) == (draft.method != "none")
    if speculation:
        agree(speculation, known[speculation["decoding_type"]])


@pytest.mark.parametrize("version", ["", "1.3.0rc13", "1.4.0", "main"])
def test_a_version_that_takes_a_name_is_no_reason(version: str) -> None:
    check(Engine("tensorrt_llm", version=version), Draft())


def test_every_field_of_the_engine_reaches_it() -> None:
    told = options(FULL, Draft())
    expected = {
        "tensor_parallel_size": 4,
        "pipeline_parallel_size": 2,
        "moe_expert_parallel_size": 4,
        "max_batch_size": 32,
        "max_seq_len": 8192,
        "dtype": "bfloat16",
        "load_format": "dummy",
        "cuda_graph_config": None,
        "enable_chunked_prefill": True,
    }
    assert {name: told[name] for name in expected} == expected
    assert told["kv_cache_config"] == {
        "dtype": "fp8",
        "enable_block_reuse": False,
        "enable_partial_reuse": False,
        "free_gpu_memory_fraction": 0.8,
        "max_gpu_total_bytes": 1 << 30,
        "tokens_per_block": 64,
    }
    plain = options(Engine("tensorrt_llm", prefix_cache=True), Draft())
    assert "cuda_graph_config" not in plain
    assert plain["kv_cache_config"]["enable_block_reuse"] is True


def test_the_session_is_told_by_name() -> None:
    started = launch(Engine("tensorrt_llm"), Draft())
    assert started.argv == (
        *("trtllm-serve", "serve", "/models/tiny", "--backend", "pytorch", "--host", "127.0.0.1", "--port", "4711"),
        *("--served_model_name", "nonce-1", "--config", "/scratch/options.yaml", "--no-telemetry"),
    )
    assert started.env["CUDA_VISIBLE_DEVICES"] == "4,5"
    own = launch(Engine("tensorrt_llm", python="envs/trt/bin/python"), Draft())
    assert own.argv[:3] == (str(PROJECT / "envs/trt/bin/python"), "-m", "tensorrt_llm.commands.serve")


@pytest.mark.parametrize(
    ("variant", "told"),
    [
        pytest.param(
            "ngram", {"decoding_type": "NGram", "max_matching_ngram_size": 4, "is_public_pool": False}, id="n-grams"
        ),
        pytest.param(
            "suffix", {"decoding_type": "SA", "max_draft_len": 8, "enable_global_pool": True}, id="suffix automaton"
        ),
        pytest.param(
            "draft_model",
            {"decoding_type": "Draft_Target", "speculative_model": "/models/draft", "load_format": "dummy"},
            id="draft model",
        ),
        pytest.param("eagle3", {"decoding_type": "Eagle3", "eagle3_layers_to_capture": [1, 2]}, id="EAGLE-3"),
        pytest.param("dspark", {"decoding_type": "DSpark", "block_size": 3, "max_draft_len": 3}, id="a block of k"),
        pytest.param("by batch size", {"max_draft_len": 5, "draft_len_schedule": {7: 5, 31: 3, 32: 0}}, id="at most a size"),
        pytest.param("by acceptance", WINDOW, id="a window of acceptance"),
    ],
)
def test_the_draft_in_tensorrt_llms_terms(variant: str, told: dict[str, Any]) -> None:
    assert told.items() <= options(Engine("tensorrt_llm", batch=16), VARIANTS[variant])["speculative_config"].items()


def test_the_last_length_holds_up_to_the_batch() -> None:
    draft = replace(GOOD["mtp"], k=5, schedule="batch_size", k_by_batch={1: 5, 8: 3})
    schedule = options(Engine("tensorrt_llm", batch=64), draft)["speculative_config"]["draft_len_schedule"]
    assert schedule == {7: 5, 64: 3}, "beyond its last size TensorRT-LLM does not draft"


def test_pretended_acceptance_counts_draft_tokens_only() -> None:
    name = "TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS"
    assert launch(Engine("tensorrt_llm"), GOOD["synthetic"]).env[name] == "1.6"
    assert name not in launch(Engine("tensorrt_llm"), GOOD["mtp"]).env


@pytest.mark.parametrize(
    ("engine", "draft", "message"),
    [
        pytest.param({}, Draft(method="eagle", **HEAD), r"takes EAGLE-3 heads only\)\. Offered by: .*vllm", id="EAGLE"),
        pytest.param({"device": "cpu"}, Draft(), r"`engine\.device` must not be cpu for tensorrt_llm", id="CPU"),
        pytest.param(
            {"version": "1.2.1"}, Draft(), r"`engine\.version` must be 1\.3 or later", id="a server without a name"
        ),
        pytest.param({"dp": 2}, Draft(), r"`engine\.dp` must be 1 for tensorrt_llm", id="data parallel"),
        pytest.param({"seed": 3}, Draft(), r"`engine\.seed` must be 0 for tensorrt_llm", id="seed of the engine"),
        pytest.param(
            {"tp": 2}, replace(GOOD["eagle3"], tp=1), r"`draft\.tp` must be 0 or engine\.tp .*Use vllm", id="draft TP"
        ),
        pytest.param(
            {}, replace(GOOD["ngram"], ngram_min=2), r"`draft\.ngram_min` must be 1 for tensorrt_llm", id="n-grams"
        ),
        pytest.param(
            {}, replace(GOOD["eagle3"], quantization="fp8"), r"`draft\.quantization` must be ''", id="the draft's weights"
        ),
        pytest.param(
            {}, replace(GOOD["synthetic"], acceptance_length=1.0), "must be above 1 for tensorrt_llm", id="none accepted"
        ),
        pytest.param(
            {}, replace(GOOD["synthetic"], drafter="ngram"), "must be one for which .*It can for", id="dice for n-grams"
        ),
        pytest.param(
            {},
            replace(GOOD["ngram"], schedule="batch_size", k_by_batch={1: 3}),
            r"`draft\.schedule` must be constant or acceptance for ngram",
            id="what does not vary",
        ),
    ],
)
def test_what_tensorrt_llm_does_not_offer_is_unsupported(engine: dict[str, Any], draft: Draft, message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        check(replace(Engine("tensorrt_llm"), **engine), draft)


@pytest.mark.parametrize(
    ("engine", "draft", "message"),
    [
        pytest.param({"dtype": "fp8"}, Draft(), r"`engine\.dtype` must be known: got 'fp8'", id="dtype"),
        pytest.param(
            {"args": {"max_batch": 1}}, Draft(), r"must hold options .*got 'max_batch'\. Alike: max_batch_size", id="slip"
        ),
        pytest.param({"args": {"max_batch_size": 1}}, Draft(), r"use engine\.batch\.", id="an option of ours"),
        pytest.param({"args": {"max_num_tokens": "many"}}, Draft(), "must be a whole number or null: got 'many'", id="type"),
        pytest.param({"args": {"kv_cache_config": 3}}, Draft(), "must be a mapping: got 3", id="no mapping"),
        pytest.param(
            {"args": {"kv_cache_config": {"enable_block_reuse": True}}},
            Draft(),
            r"use engine\.prefix_cache\.",
            id="nested and ours",
        ),
        pytest.param(
            {"args": {"kv_cache_config": {"page": 1}}},
            Draft(),
            r"`engine\.args\.kv_cache_config` must hold",
            id="nested and unknown",
        ),
        pytest.param(
            {"cuda_graphs": False, "args": {"cuda_graph_config": {}}},
            Draft(),
            "must be left out without CUDA graphs",
            id="graphs",
        ),
        pytest.param({}, replace(GOOD["mtp"], args={"max_draft_len": 2}), r"use draft\.k\.", id="the length is ours"),
        pytest.param({}, replace(GOOD["mtp"], args={"mask_token_id": 2}), "got 'mask_token_id'", id="of another method"),
        pytest.param(
            {}, replace(GOOD["mtp"], schedule="acceptance"), "must be given together: got 'acceptance' and no", id="window"
        ),
        pytest.param({}, replace(GOOD["mtp"], args=WINDOW), "must be given together: got 'constant'", id="a window alone"),
        pytest.param(
            {},
            replace(GOOD["mtp"], k=3, schedule="batch_size", k_by_batch={1: 1, 8: 3}),
            r"`draft\.k_by_batch` must begin with draft\.k = 3",
            id="a length that grows",
        ),
    ],
)
def test_values_that_mean_nothing_are_bad_input(engine: dict[str, Any], draft: Draft, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        check(replace(Engine("tensorrt_llm"), **engine), draft)


def cell(engine: Engine, draft: Draft) -> Cell:
    return Cell(Deployment(MODEL, engine, draft), Workload(json_schema="s.json"), Sampling(), Load())


def test_a_schema_needs_a_grammar_that_the_engine_knows_at_its_start() -> None:
    with pytest.raises(Unsupported, match=r"`engine\.args\.guided_decoding_backend` must be xgrammar or llguidance"):
        TensorrtLlmEngine().check_cell(cell(Engine("tensorrt_llm"), GOOD["eagle3"]))
    guided = Engine("tensorrt_llm", args={"guided_decoding_backend": "xgrammar"})
    TensorrtLlmEngine().check_cell(cell(guided, GOOD["eagle3"]))
    with pytest.raises(Unsupported, match="must be empty for dflash on tensorrt_llm"):
        TensorrtLlmEngine().check_cell(cell(guided, GOOD["dflash"]))
    assert set(GUIDED) | set(VARIED) <= set(GOOD)
