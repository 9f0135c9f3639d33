"""The adapter of SGLang: what it refuses and why, and the command line that it makes. Nothing is started."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobs.engines.base import Launch, Meeting, Site
from jobs.engines.options import known_of
from jobs.engines.own_host import PROJECT
from jobs.engines.sglang import METHODS, PRETENDERS, SGLangEngine
from jobs.errors import BadInput, Unsupported
from jobs.spec import Cell, Deployment, Draft, Engine, Load, Model, Sampling, Workload

MODEL = Model("tiny", "models/tiny")
SITE = Site(4711, "nonce-1", Path("/models/tiny"), Path("/models/draft"), Path("/scratch"), ("4", "5"))
HEAD = {"k": 3, "model": "heads/x"}
GOOD = {
    "none": Draft(),
    "ngram": Draft(method="ngram", k=3),
    "draft_model": Draft(method="draft_model", **HEAD),
    "eagle": Draft(method="eagle", **HEAD, vocab_size=32000, args={"speculative_token_map": "/maps/hot.pt"}),
    "eagle3": Draft(method="eagle3", **HEAD, quantization="fp8", dummy_weights=True),
    "mtp": Draft(method="mtp", k=1),
    "dflash": Draft(method="dflash", **HEAD),
    "dspark": Draft(method="dspark", **HEAD),
    "synthetic": Draft(method="synthetic", drafter="eagle3", **HEAD, acceptance_length=2.5),
}
VARIANTS = {
    **GOOD,
    "by acceptance": Draft(method="eagle3", **HEAD, schedule="acceptance"),
    "by batch size": Draft(method="mtp", k=3, schedule="batch_size", k_by_batch={1: 3, 8: 1, 32: 0}),
    "a tree": Draft(method="eagle", k=7, model="x", args={"speculative_eagle_topk": 4, "speculative_num_steps": 5}),
}
FULL = Engine(
    "sglang", tp=4, pp=2, dp=2, ep=4, batch=32, max_length=8192, kv_fraction=0.8, dtype="bfloat16", kv_dtype="fp8_e5m2",
    quantization="fp8", dummy_weights=True, cuda_graphs=False, device="cuda", threads=4, seed=7,
    args={"attention_backend": "fa3", "cuda_graph_bs_decode": [1, 2], "enable_tf32_matmul": True},
)  # fmt: skip


def check(engine: Engine, draft: Draft) -> None:
    SGLangEngine().check(Deployment(MODEL, engine, draft))


def launch(engine: Engine, draft: Draft, site: Site = SITE) -> Launch:
    return SGLangEngine().launch(Deployment(MODEL, engine, draft), site)


def flags(started: Launch) -> dict[str, str]:
    """--a-b VALUE → {"a_b": VALUE}; "" for a switch."""
    words = [*started.argv[3:], "--"]
    pairs = [(word[2:].replace("-", "_"), after) for word, after in pairwise(words) if word.startswith("--")]
    return {name: "" if after.startswith("--") else after for name, after in pairs}


def test_it_offers_what_the_good_drafts_use() -> None:
    assert {method for method, offer in METHODS.items() if not offer.refusal} == set(GOOD)


@pytest.mark.parametrize("draft", [pytest.param(draft, id=name) for name, draft in VARIANTS.items()])
@pytest.mark.parametrize("engine", [pytest.param(Engine("sglang"), id="plain"), pytest.param(FULL, id="every field")])
def test_every_flag_that_it_makes_is_an_option_of_sglang(engine: Engine, draft: Draft) -> None:
    check(engine, draft)
    options = known_of("sglang").sections["server"]
    made = flags(launch(engine, draft))
    assert made.pop("config") == "/scratch/key.yaml"
    assert set(made) <= set(options)
    for name, value in made.items():
        kind, choices = options[name].kind, options[name].choices
        assert (value == "") == (kind in ("switch", "bool")), name
        assert not choices or value in map(str, choices), name
        if kind in ("int", "float"):
            float(value)


def test_every_field_of_the_engine_reaches_it() -> None:
    made = flags(launch(FULL, Draft()))
    assert {name: made[name] for name in ("tp_size", "pp_size", "dp_size", "ep_size")} == {
        "tp_size": "4",
        "pp_size": "2",
        "dp_size": "2",
        "ep_size": "4",
    }
    assert (made["max_running_requests"], made["context_length"], made["mem_fraction_static"]) == ("32", "8192", "0.8")
    assert (made["dtype"], made["kv_cache_dtype"], made["quantization"]) == ("bfloat16", "fp8_e5m2", "fp8")
    assert (made["load_format"], made["random_seed"], made["device"]) == ("dummy", "7", "cuda")
    assert {"disable_decode_cuda_graph", "disable_prefill_cuda_graph", "disable_radix_cache"} <= set(made)
    assert made["attention_backend"] == "fa3"
    assert "disable_radix_cache" not in flags(launch(replace(FULL, prefix_cache=True), Draft()))


def test_the_session_is_told_by_name_and_key() -> None:
    started = launch(Engine("sglang"), Draft())
    made = flags(started)
    assert (made["port"], made["host"], made["config"]) == ("4711", "127.0.0.1", "/scratch/key.yaml")
    assert yaml.safe_load(started.files["key.yaml"]) == {"served-model-name": "nonce-1", "api-key": "nonce-1"}
    assert "nonce-1" not in " ".join(started.argv), "other users of the node can read it"
    assert started.argv[:3] == ("python3", "-m", "sglang.launch_server")
    assert started.env["CUDA_VISIBLE_DEVICES"] == "4,5"
    assert "CUDA_VISIBLE_DEVICES" not in launch(Engine("sglang"), Draft(), replace(SITE, gpus=())).env
    assert launch(Engine("sglang", python=".venvs/sglang/bin/python"), Draft()).argv[0] == str(
        PROJECT / ".venvs/sglang/bin/python"
    )


@pytest.mark.parametrize(
    ("variant", "made"),
    [
        pytest.param("ngram", {"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": "4"}, id="n-grams"),
        pytest.param(
            "draft_model",
            {
                "speculative_algorithm": "STANDALONE",
                "speculative_num_steps": "3",
                "speculative_eagle_topk": "1",
                "speculative_num_draft_tokens": "4",
                "speculative_draft_model_path": "/models/draft",
            },
            id="a draft model drafts a chain",
        ),
        pytest.param("eagle", {"speculative_token_map": "/maps/hot.pt"}, id="a pruned vocabulary"),
        pytest.param(
            "eagle3",
            {"speculative_draft_model_quantization": "fp8", "speculative_draft_load_format": "dummy"},
            id="the draft's own weights",
        ),
        pytest.param("mtp", {"speculative_algorithm": "NEXTN", "speculative_num_steps": "1"}, id="MTP"),
        pytest.param("dflash", {"speculative_num_draft_tokens": "4"}, id="a block is the window that is verified"),
        pytest.param("dspark", {"speculative_dspark_block_size": "3"}, id="gamma is k"),
        pytest.param(
            "a tree",
            {"speculative_num_steps": "5", "speculative_eagle_topk": "4", "speculative_num_draft_tokens": "8"},
            id="a tree of k tokens",
        ),
    ],
)
def test_the_draft_in_sglangs_terms(variant: str, made: dict[str, str]) -> None:
    assert made.items() <= flags(launch(Engine("sglang"), VARIANTS[variant])).items()


@pytest.mark.parametrize(
    ("variant", "table"),
    [
        pytest.param("by acceptance", {"1": {"candidate_steps": [1, 3]}}, id="among lengths up to k"),
        pytest.param(
            "by batch size",
            {"1": {"candidate_steps": [3]}, "8": {"candidate_steps": [1]}, "32": {"candidate_steps": [0]}},
            id="one length from each size on",
        ),
    ],
)
def test_a_varying_length_is_a_file_that_is_written_before_the_start(variant: str, table: dict[str, Any]) -> None:
    started = launch(Engine("sglang"), VARIANTS[variant])
    made = flags(started)
    assert made["speculative_adaptive"] == ""
    assert made["speculative_adaptive_config"] == "/scratch/adaptive.json"
    assert json.loads(started.files["adaptive.json"]) == table


def test_acceptance_is_pretended_by_the_environment() -> None:
    env = launch(Engine("sglang"), GOOD["synthetic"]).env
    assert env["SGLANG_SIMULATE_ACC_LEN"] == "2.5"
    assert env["SGLANG_SIMULATE_ACC_TOKEN_MODE"] == "real-draft-token"
    assert not any(name.startswith("SGLANG_SIMULATE") for name in launch(Engine("sglang"), GOOD["eagle3"]).env)


@pytest.mark.parametrize(
    ("engine", "draft", "message"),
    [
        pytest.param({}, Draft(method="suffix", k=3), r"no suffix decoding\)\. Offered by: .*vllm", id="method"),
        pytest.param({"kv_bytes": 1}, Draft(), r"`engine\.kv_bytes` must be 0 for sglang", id="bytes of the KV cache"),
        pytest.param(
            {"tp": 2}, replace(GOOD["eagle3"], tp=1), r"`draft\.tp` must be 0 or engine\.tp .*Use vllm", id="draft TP"
        ),
        pytest.param(
            {"device": "cpu"}, GOOD["dflash"], r"`engine\.device` must not be cpu for dflash", id="DFlash on a CPU"
        ),
        pytest.param({}, replace(GOOD["ngram"], ngram_max=4), r"`draft\.ngram_max` must be 2", id="length of n-grams"),
        pytest.param(
            {},
            replace(GOOD["synthetic"], drafter="ngram", model=""),
            rf"It can for {', '.join(PRETENDERS)}",
            id="dice for n-grams",
        ),
        pytest.param(
            {},
            replace(GOOD["draft_model"], schedule="acceptance"),
            r"varies only EAGLE and MTP drafts",
            id="what does not vary",
        ),
        pytest.param({}, replace(GOOD["eagle3"], schedule="heuristic"), r"got 'heuristic'", id="transformers' schedule"),
        pytest.param(
            {},
            replace(GOOD["synthetic"], acceptance_length=0.0, acceptance_rates=[0.5]),
            r"`draft\.acceptance_rates` must be \[\] for sglang",
            id="rates",
        ),
    ],
)
def test_what_sglang_does_not_offer_is_unsupported(engine: dict[str, Any], draft: Draft, message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        check(replace(Engine("sglang"), **engine), draft)


@pytest.mark.parametrize(
    ("engine", "draft", "message"),
    [
        pytest.param({"dtype": "int3"}, Draft(), r"`engine\.dtype` must be one of auto, half, .*: got 'int3'", id="dtype"),
        pytest.param({"kv_dtype": "fp7"}, Draft(), r"`engine\.kv_dtype` must be one of auto, .*: got 'fp7'", id="KV dtype"),
        pytest.param({"args": {"tp": 2}}, Draft(), r"`engine\.args` must hold options .*: got 'tp'", id="unknown option"),
        pytest.param({"args": {"tp_size": 2}}, Draft(), r"left to SpecSweep: use engine\.tp\.", id="an option of ours"),
        pytest.param({"args": {"tokenizer_worker_num": 2}}, Draft(), "only one knows the key", id="workers without the key"),
        pytest.param(
            {"args": {"attention_backnd": "fa3"}},
            Draft(),
            r"Alike: attention_backend",
            id="a slip is answered with what is alike",
        ),
        pytest.param({"args": {"speculative_ngram_capacity": 9}}, Draft(), r"give it as draft\.args", id="a draft's option"),
        pytest.param(
            {},
            replace(GOOD["ngram"], args={"log_level": "error"}),
            r"no setting of drafts: give it as engine\.args",
            id="an engine's",
        ),
        pytest.param(
            {}, replace(GOOD["ngram"], args={"speculative_num_draft_tokens": 9}), r"use draft\.k\.", id="the length is ours"
        ),
        pytest.param({"args": {"load_format": "dummy"}}, Draft(), r"use engine\.dummy_weights", id="random weights"),
        pytest.param(
            {}, replace(GOOD["eagle"], vocab_size=0), "must be given together: got 0 and '/maps", id="a map without a size"
        ),
        pytest.param(
            {}, replace(GOOD["eagle"], args={}), "must be given together: got 32000 and None", id="a size without a map"
        ),
        pytest.param(
            {},
            replace(VARIANTS["a tree"], args={"speculative_eagle_topk": 4}),
            "from 1 to draft.k = 7 with a tree: got None",
            id="tree",
        ),
        pytest.param(
            {},
            replace(VARIANTS["a tree"], args={"speculative_num_steps": 5}),
            "must be left out without a tree",
            id="levels",
        ),
        pytest.param(
            {},
            replace(GOOD["ngram"], args={"speculative_eagle_topk": 2}),
            "must be 1 for ngram: got 2",
            id="n-grams branch otherwise",
        ),
    ],
)
def test_values_that_mean_nothing_are_bad_input(engine: dict[str, Any], draft: Draft, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        check(replace(Engine("sglang"), **engine), draft)


def test_options_of_a_version_that_was_not_recorded_are_left_to_that_version() -> None:
    check(Engine("sglang", version="0.6.0", args={"brand_new": 1}), Draft())
    assert flags(launch(Engine("sglang", version="0.6.0", args={"brand_new": 1}), Draft()))["brand_new"] == "1"


def test_a_schema_and_pretended_acceptance_exclude_each_other() -> None:
    cell = Cell(Deployment(MODEL, Engine("sglang"), GOOD["synthetic"]), Workload(json_schema="s.json"), Sampling(), Load())
    with pytest.raises(Unsupported, match=r"`workload\.json_schema` must be empty with synthetic .*'s\.json'"):
        SGLangEngine().check_cell(cell)
    SGLangEngine().check_cell(cell.with_draft(GOOD["eagle3"]))


def test_over_several_nodes_each_rank_is_told_where_rank_0_is_and_who_it_is() -> None:
    engine = Engine("sglang", tp=8, pp=2, nodes=2)
    check(engine, Draft())
    meetings = [Meeting("10.0.0.1", 7000, 7001, rank, f"10.0.0.{rank + 1}") for rank in (0, 1)]
    started = [launch(engine, Draft(), replace(SITE, meeting=meeting)) for meeting in meetings]
    first, second = map(flags, started)
    assert {**first, "node_rank": "1"} == second
    assert {"nnodes": "2", "node_rank": "0", "dist_init_addr": "10.0.0.1:7000"}.items() <= first.items()
    assert set(first) - {"config"} <= set(known_of("sglang").sections["server"])
    assert [how.env["SGLANG_HOST_IP"] for how in started] == ["10.0.0.1", "10.0.0.2"]
    assert not {"nnodes", "node_rank", "dist_init_addr"} & set(flags(launch(engine, Draft())))


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        pytest.param({"dp": 2, "nodes": 2}, r"`engine\.dp` must be 1 for sglang over several nodes", id="copies"),
        pytest.param(
            {"tp": 4, "pp": 3, "nodes": 2}, "must cut no stage unevenly: got 2 nodes of 6 GPUs", id="a stage and a half"
        ),
    ],
)
def test_what_sglang_has_not_over_several_nodes(shape: dict[str, int], message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        check(Engine("sglang", **shape), Draft())
