"""How our own host is spoken to: the bytes of a request, and what the events of a stream say, whole or broken."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.engines.base import Answer, Ask, Endpoint
from jobs.engines.dialects import HostDialect
from jobs.engines.host.backend import Generate, Step
from jobs.engines.host.wire import error_event, parse_request, step_event
from jobs.spec import Sampling

DIALECT = HostDialect()
DONE = b"[DONE]"


def event(ids: list[int], drafted: int = 0, accepted: int = 0, **more: object) -> bytes:
    told = {
        "ids": ids,
        "drafted": drafted,
        "accepted": accepted,
        "prefill": False,
        "cut": False,
        "finish_reason": "",
        **more,
    }
    return json.dumps(told).encode()


PREFILL = event([7], prefill=True)
STEP = event([8, 9, 10], 3, 2)
LAST = event([11, 12], 3, 1, cut=True, finish_reason="length")


def test_a_request_is_one_http_message_that_leaves_the_connection_open() -> None:
    ask = Ask([1, 2], 5, Sampling(temperature=0.5, top_p=0.9, top_k=3), ignore_eos=True, seed=4, category="math")
    endpoint = Endpoint("127.0.0.1", 8000, "nonce", {"Authorization": "Bearer x"})
    head, _, body = DIALECT.request(ask, endpoint).partition(b"\r\n\r\n")
    assert head.split(b"\r\n") == [
        b"POST /generate HTTP/1.1",
        b"Host: 127.0.0.1:8000",
        b"Accept: text/event-stream",
        b"Content-Type: application/json",
        b"Content-Length: %d" % len(body),
        b"Authorization: Bearer x",
    ]
    assert parse_request(body, "nonce") == Generate(
        [1, 2], 5, temperature=0.5, top_p=0.9, top_k=3, seed=4, ignore_eos=True, category="math"
    )


def test_a_whole_stream_is_read_step_by_step() -> None:
    assert DIALECT.answer([PREFILL, STEP, LAST, DONE]) == Answer(
        chunk_events=[0, 1, 2],
        chunk_tokens=[1, 3, 2],
        output_ids=[7, 8, 9, 10, 11, 12],
        step_drafted=[0, 3, 3],
        step_accepted=[0, 2, 1],
        first_step_is_prefill=True,
        last_step_is_cut=True,
        finish_reason="length",
    )


def test_a_last_event_without_tokens_is_neither_a_chunk_nor_a_step() -> None:
    answer = DIALECT.answer([STEP, event([], finish_reason="stop"), DONE])
    assert (answer.chunk_events, answer.step_drafted, answer.finish_reason, answer.error) == ([0], [3], "stop", "")
    assert not answer.last_step_is_cut


@pytest.mark.parametrize(
    ("events", "error"),
    [
        pytest.param([], "the stream must end with [DONE]: it ended after 0 events.", id="nothing"),
        pytest.param([DONE], "the last step must tell why it was the last", id="only the end"),
        pytest.param([STEP, LAST], "the stream must end with [DONE]: it ended after 2 events.", id="no end"),
        pytest.param([STEP, DONE], "the last step must tell why it was the last", id="no finish reason"),
        pytest.param([STEP, LAST, DONE, STEP], "nothing may follow [DONE]: 1 events did.", id="more after the end"),
        pytest.param(
            [STEP, LAST, STEP, DONE], "nothing but [DONE] may follow the last step: event 2 did.", id="a step too many"
        ),
        pytest.param([STEP, b"<html>", DONE], "event 1 must be JSON: got b'<html>'.", id="not JSON"),
        pytest.param([STEP, b"\xff" * 500], "event 1 must be JSON: got b'\\xff", id="not text"),
        pytest.param([STEP, b"[1]", DONE], "event 1 must be a step: got b'[1]'.", id="not an object"),
        pytest.param([STEP, b"{}", DONE], "event 1 must be a step: got b'{}'.", id="no fields"),
        pytest.param([STEP, event(["8"]), DONE], "event 1 must be a step", id="a token as text"),
        pytest.param([STEP, event([True]), DONE], "event 1 must be a step", id="a token that is true"),
        pytest.param([STEP, event([-1]), DONE], "event 1 must be a step", id="a token below 0"),
        pytest.param([STEP, event([1, 2], 1, 2), DONE], "event 1 must be a step", id="more accepted than drafted"),
        pytest.param([STEP, event([1], 3, 2), DONE], "event 1 must be a step", id="more accepted than delivered"),
        pytest.param([STEP, event([1], cut=0), DONE], "event 1 must be a step", id="cut is no truth value"),
        pytest.param([STEP, event([1], finish_reason="tired"), DONE], "event 1 must be a step", id="unknown finish reason"),
        pytest.param([STEP, b'{"error":"a\\nb"}'], "the engine gave up: a b", id="the engine's own error"),
    ],
)
def test_a_broken_stream_is_an_error_in_one_line_and_keeps_what_came_before(events: list[bytes], error: str) -> None:
    answer = DIALECT.answer(events)
    assert answer.error.startswith(error)
    assert "\n" not in answer.error
    assert list(answer.output_ids[:3]) == ([8, 9, 10] if STEP in events[:1] else [])


@settings(deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=40), st.sampled_from([PREFILL, STEP, LAST, DONE])), max_size=6))
def test_nothing_makes_it_raise(events: list[bytes]) -> None:
    answer = DIALECT.answer(events)
    assert sum(answer.chunk_tokens) == len(answer.output_ids)
    assert bool(answer.error) == (answer.finish_reason == "")
    assert answer.error or events[-1] == DONE


steps = st.integers(0, 6).flatmap(
    lambda drafted: st.builds(
        lambda ids, accepted, prefill, cut: Step(ids, drafted, min(accepted, len(ids)), prefill, cut),
        st.lists(st.integers(0, 2**31), min_size=1, max_size=7),
        st.integers(0, drafted),
        st.booleans(),
        st.booleans(),
    )
)


@settings(deadline=None)
@given(st.lists(steps, min_size=1, max_size=8), st.sampled_from(["stop", "length"]))
def test_what_the_host_writes_the_dialect_reads(told: list[Step], finish_reason: str) -> None:
    written = [step_event(step) for step in told[:-1]]
    last = told[-1]
    written.append(
        step_event(Step(last.token_ids, last.drafted, last.accepted, last.is_prefill, last.is_cut, finish_reason))
    )
    answer = DIALECT.answer([line.removeprefix(b"data: ").rstrip(b"\n") for line in written] + [DONE])
    assert answer.error == ""
    assert answer.output_ids == [token for step in told for token in step.token_ids]
    assert list(answer.step_drafted) == [step.drafted for step in told]
    assert list(answer.step_accepted) == [step.accepted for step in told]
    assert answer.finish_reason == finish_reason
    assert (answer.first_step_is_prefill, answer.last_step_is_cut) == (told[0].is_prefill, last.is_cut)


def test_the_hosts_own_failure_is_read_in_one_line() -> None:
    payload = error_event(ValueError("two\nlines")).removeprefix(b"data: ").rstrip(b"\n")
    assert DIALECT.answer([STEP, payload]).error == "the engine gave up: ValueError: two lines"
