"""What becomes of a node on which sessions fail: it must not eat the queue, and must not be given up."""

from __future__ import annotations

from heapq import heappop, heappush

import pytest
from grids import cell

from jobs.spec import SessionSpec
from orchestrator.doubts import MOST_DOUBLINGS, REST_S, Doubts
from orchestrator.ledger import Ledger, Node, Seats, Waiting

HOUR_S = 3600.0


def boxes(n: int) -> list[Node]:
    return [Node(f"box-{number}", f"box-{number}", cpus=8, gpus=8) for number in range(n)]


def spec(name: str) -> SessionSpec:
    """Of a deployment of its own."""
    return SessionSpec(name, "now", cell(device="cuda", tp=8, args={"name": name}).deployment, (), HOUR_S)


def failures_on(bad: set[str], nodes: list[Node], n_sessions: int) -> list[str]:
    """The sessions that failed, when each takes an hour on a node that is well, and fails within 30 s on a bad one."""
    ledger, doubts = Ledger(nodes), Doubts()
    waiting = Waiting(spec(str(number)) for number in range(n_sessions))
    running: list[tuple[float, int, SessionSpec, Seats]] = []
    failed: list[str] = []
    now_s = started = 0
    while len(waiting) or running:
        ledger.refresh(nodes, doubts.at(now_s))
        while found := ledger.next(waiting, now_s):
            started += 1
            takes_s = 30 if found[1][0].node.id in bad else HOUR_S
            heappush(running, (now_s + takes_s, started, *found))
        now_s = now_s + 10
        while running and running[0][0] <= now_s:
            _, _, ended, seats = heappop(running)
            ledger.release(seats)
            at = [seat.node for seat in seats]
            if at[0].id in bad:
                doubts.fail(at, ended.deployment.id, now_s)
                failed.append(ended.session_id)
            else:
                doubts.trust(at)
    return failed


def test_a_node_that_fails_whatever_it_gets_does_not_eat_the_queue() -> None:
    assert len(failures_on({"box-0"}, boxes(10), 100)) < 15, "and 91 without doubts"


def test_who_failed_on_a_bad_node_gets_another_one_the_next_time() -> None:
    nodes, doubts = boxes(3), Doubts()
    doubts.fail(nodes[:1], "a", now_s=0.0)
    ledger = Ledger(nodes)
    ledger.refresh(nodes, doubts.at(2 * REST_S))  # it rests no more, and is the last to be chosen
    order = []
    while seats := ledger.admit(spec("s").deployment):
        order.append(seats[0].node.id)
    assert order == ["box-1", "box-2", "box-0"]


def test_a_node_rests_twice_as_long_after_each_deployment_that_fails_in_a_row_and_never_for_good() -> None:
    (node,), doubts = boxes(1), Doubts()
    rests = []
    for number in range(MOST_DOUBLINGS + 3):
        doubts.fail([node], f"deployment {number}", now_s=0.0)
        rests.append(next(s for s in range(1, 20_000) if not doubts.at(s)[node.id]))
    assert rests[:3] == [REST_S, 2 * REST_S, 4 * REST_S]
    assert rests[-1] == rests[-2] == REST_S * 2**MOST_DOUBLINGS
    doubts.trust([node])
    assert doubts.at(0.0) == {}


def test_to_wait_is_not_to_fail_and_shortens_no_rest() -> None:
    nodes, doubts = boxes(2), Doubts()
    for minute in range(60):
        doubts.hold(nodes, minute * REST_S)
    assert doubts.fail(nodes[:1], "a", HOUR_S) == "", "its first failure"
    assert doubts.at(HOUR_S + REST_S / 2) == {"box-0": True, "box-1": False}
    for deployment in "bc":
        doubts.fail(nodes[:1], deployment, HOUR_S)
    doubts.hold(nodes[:1], HOUR_S)
    assert doubts.at(HOUR_S + 3.5 * REST_S)["box-0"]


@pytest.mark.parametrize(
    ("n", "n_bad", "where"),
    [
        pytest.param(1, 1, {"box-0"}, id="the only one"),
        pytest.param(2, 1, {"box-1"}, id="one of two"),
        pytest.param(3, 2, {"box-0", "box-1", "box-2"}, id="most of them: what fails everywhere is no fault of a node"),
    ],
)
def test_what_rests_is_passed_over_only_while_most_do_not(n: int, n_bad: int, where: set[str]) -> None:
    nodes, doubts = boxes(n), Doubts()
    doubts.fail(nodes[:n_bad], "a", now_s=0.0)
    ledger = Ledger(nodes)
    ledger.refresh(nodes, doubts.at(1.0))
    found = set()
    while seats := ledger.admit(spec("s").deployment):
        found.add(seats[0].node.id)
    assert found == where


def test_it_is_told_when_deployments_fail_in_a_row() -> None:
    nodes, doubts = boxes(2), Doubts()
    assert doubts.fail(nodes, "a", 0.0) == ""
    doubts.trust(nodes[1:])
    told = "2 deployments in a row failed on box-0: for a while, other nodes are preferred."
    assert doubts.fail(nodes, "b", 0.0) == told


def test_a_deployment_that_fails_everywhere_counts_once_a_node_and_renews_its_rest() -> None:
    nodes, doubts = boxes(1), Doubts()
    assert [doubts.fail(nodes, "too big", try_ * REST_S) for try_ in range(9)] == [""] * 9
    assert doubts.at(8.5 * REST_S) == {"box-0": True}
    assert doubts.at(9 * REST_S) == {"box-0": False}
