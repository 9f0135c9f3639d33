"""Events of a body, and when they came, however the bytes were cut."""

from __future__ import annotations

import re
from array import array
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.load.clock import TIMESPEC
from jobs.load.sse import events_of
from jobs.load.stream import Stream, stream_of
from jobs.load.wire import Reply
from tests.jobs.scripted_server import END, HEAD, chunk, event


def reply_of(reads: list[bytes], error: str = "", offset: int = -1, kernel: list[tuple[int, int]] | None = None) -> Reply:
    """Reads that came at 1000, 2000, ..."""
    return Reply(
        conversation=0,
        turn=0,
        t_due=0,
        t_sent=500,
        error=error,
        clock_offset=offset,
        read_at=array("q", [1000 * (i + 1) for i in range(len(reads))]).tobytes(),
        kernel_at=b"".join(TIMESPEC.pack(*stamp) for stamp in kernel or [(0, 0)] * len(reads)),
        sizes=array("q", [len(read) for read in reads]).tobytes(),
        data=b"".join(reads),
    )


def stream_from(*reads: bytes) -> Stream:
    return stream_of(reply_of(list(reads)))


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = [0, *sorted({place % (len(data) + 1) for place in places}), len(data)]
    return [data[a:b] for a, b in pairwise(ends) if a < b]


@pytest.mark.parametrize(
    ("body", "payloads"),
    [
        pytest.param(b"data: a\n\ndata: b\n\n", [b"a", b"b"], id="plain"),
        pytest.param(b"data:a\n\n", [b"a"], id="no space after the colon"),
        pytest.param(b"data:  a\n\n", [b" a"], id="only one space is taken"),
        pytest.param(b": ping\n\ndata: a\n\n: keep-alive\n\n", [b"a"], id="comments"),
        pytest.param(b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"], id="CRLF"),
        pytest.param(b"data: a\r\rdata: b\r\r", [b"a", b"b"], id="CR"),
        pytest.param(b"data: a\r\n\ndata: b\n\r\n", [b"a", b"b"], id="mixed line ends"),
        pytest.param(b"data: a\ndata: b\n\n", [b"a\nb"], id="data over several lines"),
        pytest.param(b"event: token\nid: 7\nretry: 3\ndata: a\n\n", [b"a"], id="other fields"),
        pytest.param(b"data\n\ndata:\n\n", [b"", b""], id="empty data"),
        pytest.param(b"datum: x\n\ndata: a\n\n", [b"a"], id="a field that only begins alike"),
        pytest.param(b"data: a\n\ndata: b\n", [b"a"], id="unfinished last event"),
        pytest.param(b"data: a\n\ndata: b", [b"a"], id="unfinished last line"),
        pytest.param(b"\n\n\n\ndata: a\n\n\n", [b"a"], id="blank lines"),
        pytest.param(b"\xef\xbb\xbfdata: a\n\n", [b"a"], id="byte order mark"),
        pytest.param("data: é…🚀\n\n".encode(), ["é…🚀".encode()], id="UTF-8"),
        pytest.param(
            "data: a\u2028b\u0085c\n\n".encode(), ["a\u2028b\u0085c".encode()], id="Unicode line ends are not line ends"
        ),
        pytest.param(b"data: [DONE]\n\n", [b"[DONE]"], id="DONE is an event like others"),
        pytest.param(b"", [], id="nothing"),
    ],
)
def test_events_follow_the_standard(body: bytes, payloads: list[bytes]) -> None:
    assert [found.data for found in events_of(body)] == payloads


def reference_events(body: bytes) -> list[bytes]:
    """The standard's algorithm, a character at a time, written without regard to speed."""
    text = body.decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    events, data, has_data = [], "", False
    *lines, _unfinished = re.split("\r\n|\r|\n", text)
    for line in lines:
        if line == "":
            if has_data:
                events.append(data.removesuffix("\n").encode("utf-8", "surrogateescape"))
            data, has_data = "", False
            continue
        name, _, value = line.partition(":")
        if name == "data":
            data, has_data = data + value.removeprefix(" ") + "\n", True
    return events


LINES = st.sampled_from(
    [
        b"data: ",
        b"data:",
        b"data",
        b"da",
        b": ",
        b"id: ",
        b"\n",
        b"\r\n",
        b"\r",
        b"\n\n",
        b"a",
        b"{}",
        b" ",
        b":",
        "é🚀".encode(),
    ]
)


@given(st.lists(LINES, max_size=40).map(b"".join))
def test_events_equal_those_of_a_reference_parser(body: bytes) -> None:
    assert [found.data for found in events_of(body)] == reference_events(body)


@given(st.lists(LINES, max_size=30).map(b"".join), st.lists(st.integers(0, 10_000), max_size=12), st.integers(1, 50))
def test_no_cut_of_the_bytes_changes_the_events(body: bytes, places: list[int], size: int) -> None:
    pieces = [body[i : i + size] for i in range(0, len(body), size)]
    wire = HEAD + b"".join(chunk(piece) for piece in pieces) + END
    assert [bytes(data) for data in stream_from(*cut(wire, places)).events] == reference_events(body)


TWO = HEAD + event("data é".encode()) + event(b"[1, 22, 333]") + event(b"[DONE]") + END


@pytest.mark.parametrize("place", range(1, len(TWO)))
def test_a_stream_cut_in_two_at_every_byte_gives_the_same_events_at_the_right_read(place: int) -> None:
    stream = stream_from(TWO[:place], TWO[place:])
    assert stream.events == ["data é".encode(), b"[1, 22, 333]", b"[DONE]"]
    assert stream.error == ""
    for read, payload in zip(stream.reads, stream.events, strict=True):
        whole_at = TWO.index(payload) + len(payload) + 2  # with the blank line
        assert read == (0 if whole_at <= place else 1)
    assert list(stream.arrivals_ns) == [1000 * (read + 1) for read in stream.reads]


def test_a_stream_that_comes_byte_by_byte_is_whole() -> None:
    stream = stream_from(*[TWO[i : i + 1] for i in range(len(TWO))])
    assert stream.events == ["data é".encode(), b"[1, 22, 333]", b"[DONE]"]
    assert stream.ended_ns == 1000 * len(TWO)


def test_an_event_that_spans_reads_has_the_time_of_its_last_byte() -> None:
    halves = event(b"[1, 22, 333]")
    stream = stream_from(HEAD + event(b"a") + halves[:9], halves[9:], END)
    assert (stream.events, stream.arrivals_ns) == ([b"a", b"[1, 22, 333]"], [1000, 2000])


@pytest.mark.parametrize(
    ("wire", "error"),
    [
        pytest.param(
            b"HTTP/1.1 503 Busy\r\ncontent-length: 12\r\n\r\nfull\nof work",
            "HTTP 503: full",
            id="the first line of the body",
        ),
        pytest.param(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", "HTTP 404 without a body", id="no body"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\ncontent-length: zzz\r\n\r\n", "the answer is not HTTP: Invalid character", id="bad length"
        ),
        pytest.param(HEAD + b"zz\r\n", "the answer is not HTTP: Invalid character in chunk size", id="bad chunk"),
        pytest.param(b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + END, "", id="an interim response"),
    ],
)
def test_what_is_no_answer_says_why(wire: bytes, error: str) -> None:
    assert stream_from(wire).error.startswith(error)
    assert bool(stream_from(wire).error) == bool(error)


def test_a_kernel_stamp_is_believed_before_the_reading_time() -> None:
    offset = 10_000_000_000
    stream = stream_of(reply_of([HEAD, event(b"a"), event(b"b")], offset=offset, kernel=[(10, 900), (10, 1400), (10, 2500)]))
    assert stream.arrivals_ns == [1400, 2500]
    assert stream.lag_ns == 600


@pytest.mark.parametrize(
    ("kernel", "arrivals"),
    [
        pytest.param([(10, 900), (0, 0), (10, 2500)], [2000, 2500], id="missing: the reading time"),
        pytest.param([(10, 900), (10, 5000), (10, 2500)], [2000, 2500], id="in the future: the reading time"),
        pytest.param([(10, 900), (10, 1900), (10, 1400)], [1900, 1900], id="backwards: the one before"),
    ],
)
def test_kernel_stamps_that_cannot_be_are_mended(kernel: list[tuple[int, int]], arrivals: list[int]) -> None:
    stream = stream_of(reply_of([HEAD, event(b"a"), event(b"b")], offset=10_000_000_000, kernel=kernel))
    assert stream.arrivals_ns == arrivals


def test_a_request_during_which_the_wall_clock_stepped_has_reading_times() -> None:
    stream = stream_of(reply_of([HEAD, event(b"a")], offset=-1, kernel=[(10, 900), (99, 0)]))
    assert (stream.arrivals_ns, stream.lag_ns) == ([2000], 0)
