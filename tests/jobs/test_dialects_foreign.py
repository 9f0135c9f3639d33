"""The dialects of vLLM, SGLang and llama.cpp: requests as bytes, events as answers."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobs.engines.base import Answer, Ask, Dialect, Endpoint
from jobs.engines.dialect_llama import LlamaDialect
from jobs.engines.dialect_openai import OpenAIDialect
from jobs.engines.dialect_sglang import SGLangDialect, in_order_of
from jobs.engines.dialect_trtllm import TrtllmDialect
from jobs.spec import Sampling

ENDPOINT = Endpoint("127.0.0.1", 8123, "nonce", {"Authorization": "Bearer x"})
ASK = Ask([5, 6, 7], 64, Sampling(temperature=0.5, top_p=0.9, top_k=40), ignore_eos=True, seed=11)
DIALECTS = [
    pytest.param(OpenAIDialect(), id="openai"),
    pytest.param(SGLangDialect(), id="sglang"),
    pytest.param(LlamaDialect(), id="llama"),
    pytest.param(TrtllmDialect(), id="trtllm"),
]
DONE = b"[DONE]"
NAMES = """
meta_info choices token_ids usage completion_tokens metrics per_step_drafted per_step_accepted output_ids
finish_reason type spec_verify_ct spec_correct_drafts_histogram tokens stop timings draft_n draft_n_accepted
speculative_decoding stop_type error logprobs token_logprobs output_token_logprobs completion_probabilities logprob
"""
SHAPES = st.sampled_from([None, True, -1, 0, 2, "x", [], [1, 2], [None], {}])
FIELDS = st.dictionaries(st.sampled_from(NAMES.split()), SHAPES, max_size=5)


def event(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def facts(answer: Answer) -> tuple[object, ...]:
    return (answer.chunk_events, answer.chunk_tokens, answer.output_ids, answer.finish_reason, answer.error)


@pytest.mark.parametrize(
    ("dialect", "path", "fields"),
    [
        pytest.param(
            OpenAIDialect(),
            "/v1/completions",
            {
                "model": "nonce",
                "prompt": [5, 6, 7],
                "max_tokens": 64,
                "top_k": 40,
                "ignore_eos": True,
                "return_token_ids": True,
            },
            id="openai",
        ),
        pytest.param(SGLangDialect(), "/generate", {"input_ids": [5, 6, 7]}, id="sglang"),
        pytest.param(
            TrtllmDialect(),
            "/v1/completions",
            {"model": "nonce", "prompt": [5, 6, 7], "max_tokens": 64, "top_k": 40, "detokenize": False},
            id="trtllm",
        ),
        pytest.param(
            LlamaDialect(), "/completion", {"prompt": [5, 6, 7], "n_predict": 64, "return_tokens": True}, id="llama"
        ),
    ],
)
def test_a_request_is_one_whole_http_message(dialect: Dialect, path: str, fields: dict[str, Any]) -> None:
    head, _, body = dialect.request(ASK, ENDPOINT).partition(b"\r\n\r\n")
    assert head.startswith(f"POST {path} HTTP/1.1\r\n".encode())
    assert f"Content-Length: {len(body)}".encode() in head
    assert b"Authorization: Bearer x" in head
    sent = json.loads(body)
    assert sent["stream"] is True
    assert {name: sent[name] for name in fields} == fields


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    "events",
    [
        pytest.param([], id="nothing"),
        pytest.param([b"{"], id="not JSON"),
        pytest.param([b"[1]"], id="not an object"),
        pytest.param([b"\xff\xfe"], id="not text"),
        pytest.param([DONE], id="only the end"),
        pytest.param([event(error={"message": "CUDA\nout of memory"})], id="an error"),
    ],
)
def test_what_is_no_answer_is_an_error_and_never_raises(dialect: Dialect, events: list[bytes]) -> None:
    answer = dialect.answer(events)
    assert answer.error
    assert "\n" not in answer.error
    assert list(answer.chunk_tokens) == []


@pytest.mark.parametrize("dialect", DIALECTS)
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    events=st.lists(
        st.dictionaries(st.sampled_from(NAMES.split()), SHAPES | FIELDS | st.lists(FIELDS, max_size=2)), max_size=4
    )
)
def test_no_json_makes_a_dialect_raise(dialect: Dialect, events: list[dict[str, Any]]) -> None:
    answer = dialect.answer([json.dumps(fields).encode() for fields in events])
    assert len(answer.chunk_events) == len(answer.chunk_tokens)
    assert sum(answer.chunk_tokens) == len(answer.output_ids)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_error_event_says_what_the_engine_said(dialect: Dialect) -> None:
    assert (
        dialect.answer([event(error={"message": "CUDA\nout of memory"})]).error == "the engine gave up: CUDA out of memory"
    )


def choice(ids: list[int], finish: str | None = None) -> bytes:
    return event(choices=[{"index": 0, "text": "x" * len(ids), "token_ids": ids, "finish_reason": finish}])


def usage(tokens: int, **spec: Any) -> bytes:
    metrics = {"metrics": {"speculative_decoding": spec}} if spec else {}
    return event(choices=[], usage={"completion_tokens": tokens}, **metrics)


def test_openai_events_become_chunks() -> None:
    answer = OpenAIDialect().answer([choice([1]), choice([2, 3, 4]), choice([], "stop"), usage(4), DONE])
    assert facts(answer) == ([0, 1], [1, 3], [1, 2, 3, 4], "stop", "")


@pytest.mark.parametrize(
    ("tokens", "drafted", "accepted", "steps", "is_cut"),
    [
        pytest.param(
            6, [3], [2], ([0, 0, 0, 3], [0, 0, 0, 2]), False, id="steps without a draft are counted from the tokens"
        ),
        pytest.param(4, [3], [2], ([0, 3], [0, 2]), False, id="the prefill and one step"),
        pytest.param(3, [3], [2], ([0, 3], [0, 2]), True, id="accepted tokens that a stop cut off"),
    ],
)
def test_openai_steps_are_those_of_the_engine_and_the_ones_it_leaves_out(
    tokens: int, drafted: list[int], accepted: list[int], steps: tuple[list[int], list[int]], is_cut: bool
) -> None:
    spec = {"per_step_drafted": drafted, "per_step_accepted": accepted, "mean_acceptance_length": 3.0}
    answer = OpenAIDialect().answer([choice(list(range(tokens)), "length"), usage(tokens, **spec), DONE])
    assert (answer.step_drafted, answer.step_accepted) == steps
    assert (answer.first_step_is_prefill, answer.last_step_is_cut, answer.engine_al) == (True, is_cut, 3.0)


@pytest.mark.parametrize(
    ("events", "error"),
    [
        pytest.param([choice([1], "stop")], r"must end with \[DONE\]", id="DONE is missing"),
        pytest.param([choice([1]), DONE], "no finish reason came", id="no finish reason"),
        pytest.param([choice([1], "stop"), usage(2), DONE], "got 2 for 1", id="the usage counts more"),
        pytest.param([choice([1], "stop"), DONE, choice([2])], "nothing may follow", id="events after the end"),
        pytest.param([event(choices=[{"text": "hi"}])], "it has text only", id="a server that does not tell ids"),
        pytest.param(
            [event(choices=[{"token_ids": ["a"]}])], "`token_ids` must be a list of numbers", id="ids that are none"
        ),
    ],
)
def test_openai_streams_that_break_their_promise(events: list[bytes], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        raise ValueError(OpenAIDialect().answer(events).error)


def sglang(ids: list[int], total: int, finish: dict[str, Any] | None = None, **meta: Any) -> bytes:
    return event(text="", output_ids=ids, meta_info={"completion_tokens": total, "finish_reason": finish, **meta})


@pytest.mark.parametrize(
    "events",
    [
        pytest.param(
            [sglang([1], 1), sglang([1, 2, 3], 3), sglang([1, 2, 3, 4], 4, {"type": "length"}), DONE], id="ids so far"
        ),
        pytest.param([sglang([1], 1), sglang([2, 3], 3), sglang([4], 4, {"type": "length"}), DONE], id="new ids"),
    ],
)
def test_sglang_events_become_chunks(events: list[bytes]) -> None:
    answer = SGLangDialect().answer(events)
    assert facts(answer) == ([0, 1, 2], [1, 2, 1], [1, 2, 3, 4], "length", "")


def test_sglang_steps_come_from_the_histogram() -> None:
    spec = {
        "spec_verify_ct": 3,
        "spec_correct_drafts_histogram": [1, 0, 2],
        "spec_num_proposed_drafts": 9,
        "spec_accept_length": 2.33,
    }
    answer = SGLangDialect().answer([sglang([1], 1), sglang(list(range(1, 9)), 8, {"type": "stop"}, **spec), DONE])
    assert (answer.step_drafted, answer.step_accepted) == ([0, 3, 3, 3], [0, 0, 2, 2])
    assert (answer.first_step_is_prefill, answer.last_step_is_cut, answer.engine_al) == (True, False, 2.33)


@pytest.mark.parametrize(
    ("events", "error"),
    [
        pytest.param([sglang([1], 1, {"type": "stop"})], r"must end with \[DONE\]", id="DONE is missing"),
        pytest.param([sglang([1, 2], 5)], "got 2, 5 in all after 0", id="ids that do not add up"),
        pytest.param(
            [sglang([], 0, {"type": "abort", "message": "too long"})], "the engine gave up: too long", id="aborted"
        ),
    ],
)
def test_sglang_streams_that_break_their_promise(events: list[bytes], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        raise ValueError(SGLangDialect().answer(events).error)


def llama(token: int, drafted: int = 0, accepted: int = 0) -> bytes:
    timings = {"predicted_n": 1, **({"draft_n": drafted, "draft_n_accepted": accepted} if drafted else {})}
    return event(index=0, tokens=[token], stop=False, timings=timings)


def llama_end(stop_type: str) -> bytes:
    return event(index=0, tokens=[], stop=True, stop_type=stop_type)


def test_llama_tokens_become_steps_where_the_counters_jump() -> None:
    """Prefill; 3 drafted of which 2 hold; a step that drafts nothing; 2 drafted of which none holds."""
    events = [llama(1), llama(2, 3, 2), llama(3, 3, 2), llama(4, 3, 2), llama(5, 3, 2), llama(6, 5, 2), llama_end("limit")]
    answer = LlamaDialect().answer(events)
    assert (answer.chunk_tokens, answer.chunk_events) == ([1, 3, 1, 1], [0, 3, 4, 5])
    assert (answer.step_drafted, answer.step_accepted) == ([0, 3, 0, 2], [0, 2, 0, 0])
    assert (answer.output_ids, answer.finish_reason, answer.error) == ([1, 2, 3, 4, 5, 6], "length", "")
    assert (answer.first_step_is_prefill, answer.last_step_is_cut) == (True, False)


def test_a_llama_step_that_a_stop_cut_short_says_so() -> None:
    answer = LlamaDialect().answer([llama(1), llama(2, 4, 4), llama(3, 4, 4), llama_end("eos")])
    assert (answer.chunk_tokens, answer.last_step_is_cut, answer.finish_reason) == ([1, 2], True, "stop")


def test_a_llama_stream_without_an_end_is_an_error() -> None:
    assert LlamaDialect().answer([llama(1)]).error.endswith("no finish reason came.")


@pytest.mark.parametrize(
    ("dialect", "path", "told"),
    [
        pytest.param(SGLangDialect(), ("sampling_params", "json_schema"), '{"type": "object"}', id="sglang: as text"),
        pytest.param(TrtllmDialect(), ("response_format",), {"type": "json", "schema": {"type": "object"}}, id="trtllm"),
        pytest.param(LlamaDialect(), ("json_schema",), {"type": "object"}, id="llama: as JSON"),
    ],
)
def test_a_schema_is_told_in_the_engines_way_and_only_when_there_is_one(
    dialect: Dialect, path: tuple[str, ...], told: object
) -> None:
    bodies = [body_of(dialect, replace(ASK, json_schema=schema)) for schema in ('{"type": "object"}', "")]
    *outer, name = path
    inner = [body[outer[0]] if outer else body for body in bodies]
    assert inner[0][name] == told
    assert name not in inner[1]


@pytest.mark.parametrize(
    ("dialect", "field"),
    [
        pytest.param(SGLangDialect(), "return_logprob", id="sglang"),
        pytest.param(TrtllmDialect(), "logprobs", id="trtllm"),
        pytest.param(LlamaDialect(), "n_probs", id="llama"),
    ],
)
def test_log_probabilities_are_asked_for_only_when_they_are_wanted(dialect: Dialect, field: str) -> None:
    assert body_of(dialect, replace(ASK, wants_logprobs=True))[field]
    assert field not in body_of(dialect, ASK)


def body_of(dialect: Dialect, ask: Ask) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(dialect.request(ask, ENDPOINT).partition(b"\r\n\r\n")[2])
    return body


def trtllm(ids: list[int], finish: str | None = None, **choice: Any) -> bytes:
    return event(choices=[{"index": 0, "text": "", "token_ids": ids, "finish_reason": finish, **choice}], usage=None)


def test_trtllm_events_become_chunks() -> None:
    events = [
        trtllm([1]),
        trtllm([2, 3, 4], avg_decoded_tokens_per_iter=2.0),
        trtllm([5], "length", avg_decoded_tokens_per_iter=5 / 3),
    ]
    answer = TrtllmDialect().answer([*events, usage(5), DONE])
    assert facts(answer) == ([0, 1, 2], [1, 3, 1], [1, 2, 3, 4, 5], "length", "")
    assert (answer.engine_al, list(answer.step_drafted)) == (5 / 3, [])


@pytest.mark.parametrize(
    ("events", "error"),
    [
        pytest.param([trtllm([1], "stop")], r"must end with \[DONE\]", id="DONE is missing"),
        pytest.param([trtllm([1], "stop"), usage(2), DONE], "got 2 for 1", id="the usage counts more"),
        pytest.param([event(choices=[{"text": "hi"}])], "The server must know `detokenize`", id="text only"),
        pytest.param([trtllm([1, 2], logprobs={"token_logprobs": [-1.0]})], "got 1 for 2", id="too few log-probabilities"),
    ],
)
def test_trtllm_streams_that_break_their_promise(events: list[bytes], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        raise ValueError(TrtllmDialect().answer(events).error)


def test_log_probabilities_come_with_the_ids() -> None:
    told = [sglang([1], 1, output_token_logprobs=[[-0.5, 1, None]])]
    told += [sglang([1, 2], 2, {"type": "stop"}, output_token_logprobs=[[-0.5, 1, None], [-1.5, 2, None]]), DONE]
    assert SGLangDialect().answer(told).logprobs == [-0.5, -1.5]
    told = [trtllm([1, 2], "stop", logprobs={"token_logprobs": [-0.5, -1.5]}), usage(2), DONE]
    assert TrtllmDialect().answer(told).logprobs == [-0.5, -1.5]


def test_llama_has_log_probabilities_of_all_tokens_or_of_none() -> None:
    scored = [event(tokens=[n], stop=False, completion_probabilities=[{"id": n, "logprob": -float(n)}]) for n in (1, 2)]
    assert LlamaDialect().answer([*scored, llama_end("eos")]).logprobs == [-1.0, -2.0]
    assert list(LlamaDialect().answer([*scored, llama(3), llama_end("eos")]).logprobs) == []


@pytest.mark.parametrize(
    ("chunks", "accepted", "placed"),
    [
        pytest.param([3, 1, 2], [0, 1, 2], [2, 0, 1], id="every chunk is a step"),
        pytest.param([3, 1, 2], [0, 2, 3], [2, 0, 3], id="a stop cut the last"),
        pytest.param([3, 3], [0, 1, 2], [0, 1, 2], id="chunks were merged"),
        pytest.param([3, 1, 2], [0, 0, 2], [0, 0, 2], id="the last brought more than it accepted"),
        pytest.param([], [], [], id="nothing"),
    ],
)
def test_sglang_steps_are_put_in_the_order_of_the_chunks(chunks: list[int], accepted: list[int], placed: list[int]) -> None:
    assert in_order_of(chunks, accepted) == placed
