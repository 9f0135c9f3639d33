"""The dialects of vLLM, SGLang and llama.cpp: requests as bytes, events as answers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobs.engines.base import Answer, Ask, Dialect, Endpoint
from jobs.engines.dialect_llama import LlamaDialect
from jobs.engines.dialect_openai import OpenAIDialect
from jobs.engines.dialect_sglang import SGLangDialect
from jobs.spec import Sampling

ENDPOINT = Endpoint("127.0.0.1", 8123, "nonce", {"Authorization": "Bearer x"})
ASK = Ask([5, 6, 7], 64, Sampling(temperature=0.5, top_p=0.9, top_k=40), ignore_eos=True, seed=11)
DIALECTS = [
    pytest.param(OpenAIDialect(), id="openai"),
    pytest.param(SGLangDialect(), id="sglang"),
    pytest.param(LlamaDialect(), id="llama"),
]
DONE = b"[DONE]"
NAMES = """
meta_info choices token_ids usage completion_tokens metrics per_step_drafted per_step_accepted output_ids
finish_reason type spec_verify_ct spec_correct_drafts_histogram tokens stop timings draft_n draft_n_accepted
speculative_decoding stop_type error
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
