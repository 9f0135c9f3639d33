"""A session over several nodes takes a seat on each at once, or has those reserved that will have room first."""

from __future__ import annotations

import re

import pytest
from grids import cell
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.spec import SessionSpec
from orchestrator.ledger import Ledger, Node, Seats, Waiting
from orchestrator.pack import lower_bound_s, simulate
from orchestrator.shortage import shortage


def nodes(n: int, gpus: int = 8, **has: str) -> list[Node]:
    kind = has.get("gpu_type", "")
    return [Node(f"{kind}{number}", f"{kind}{number}", cpus=64, gpus=gpus, gpu_type=kind) for number in range(n)]


MIXED = [*nodes(2, gpu_type="H100"), *nodes(2, gpu_type="A100")]


def session(name: str, expected_s: float, tp: int = 1, over: int = 1) -> SessionSpec:
    return SessionSpec(name, "now", cell(device="cuda", tp=tp, nodes=over).deployment, (), expected_s)


def started(ledger: Ledger, waiting: Waiting, now_s: float) -> dict[str, Seats]:
    return {spec.session_id: seats for spec, seats in iter(lambda: ledger.next(waiting, now_s), None)}


def test_it_takes_as_much_of_each_of_its_nodes_and_gives_all_back() -> None:
    ledger = Ledger(nodes(3))
    seats = ledger.admit(session("a", 1.0, tp=8, over=2).deployment)
    assert [(seat.gpus, seat.cpus) for seat in seats] == [(4, 32), (4, 32)]
    assert len({seat.node for seat in seats}) == 2
    assert not ledger.admit(session("b", 1.0, tp=24, over=3).deployment)
    ledger.release(seats)
    assert len(ledger.admit(session("b", 1.0, tp=24, over=3).deployment)) == 3


def test_a_node_that_has_gone_takes_its_seat_along_and_leaves_the_others() -> None:
    first, second, third = nodes(3)
    ledger = Ledger([first, second, third])
    seats = ledger.admit(session("a", 1.0, tp=16, over=2).deployment)
    gone, kept = (seat.node for seat in seats)
    ledger.refresh({first, second, third} - {gone})
    assert not ledger.admit(session("b", 1.0, tp=16, over=2).deployment)
    ledger.release(seats)
    assert {seat.node for seat in ledger.admit(session("b", 1.0, tp=16, over=2).deployment)} == {first, second, third} - {
        gone
    }
    assert kept in ledger.nodes


def test_a_wide_one_is_not_starved_by_small_ones_that_would_fill_each_gap() -> None:
    ledger = Ledger(nodes(3))
    running = started(ledger, Waiting([session(f"s{n}", 100.0 + n) for n in range(24)]), 0.0)
    waiting = Waiting([session("wide", 500.0, tp=16, over=2), *(session(f"more{n}", 900.0) for n in range(50))])
    order: list[str] = []
    for seats in sorted(running.values(), key=lambda item: item[0].until_s):
        ledger.release(seats)
        order += started(ledger, waiting, seats[0].until_s)
    assert "wide" in order
    assert len(order) == 1 + 8, "the third node went to the others, and no more than that"


@pytest.mark.parametrize(
    ("small_s", "tp", "starts"),
    [
        pytest.param(90.0, 8, True, id="one that is gone before the last of its nodes is free"),
        pytest.param(150.0, 8, False, id="one that would keep it waiting on a node that is free already"),
        pytest.param(9e9, 4, True, id="one that leaves room enough on the node that is kept"),
    ],
)
def test_what_may_pass_one_that_waits_for_its_last_node(small_s: float, tp: int, starts: bool) -> None:
    """One node is free, one until 100 s: both are kept until then."""
    ledger = Ledger(nodes(2))
    started(ledger, Waiting([session("running", 100.0, tp=8)]), 0.0)
    waiting = Waiting([session("wide", 50.0, tp=8, over=2), session("small", small_s, tp=tp)])
    assert list(started(ledger, waiting, 0.0)) == (["small"] if starts else [])


def test_those_of_the_same_shape_may_still_pass_where_they_fit_into_the_gap() -> None:
    ledger = Ledger(nodes(3))
    started(ledger, Waiting([session("running", 100.0, tp=8)]), 0.0)
    waiting = Waiting(
        [session("all", 50.0, tp=24, over=3), session("long", 500.0, tp=16, over=2), session("short", 99.0, tp=16, over=2)]
    )
    assert list(started(ledger, waiting, 0.0)) == ["short"]


SHAPES = st.tuples(st.integers(1, 3), st.sampled_from([1, 2, 4, 8]), st.floats(1.0, 300.0))


@settings(max_examples=60, deadline=None)
@given(n_nodes=st.integers(3, 5), shapes=st.lists(SHAPES, min_size=1, max_size=24))
def test_whatever_the_plan_no_node_is_overfull_and_the_first_in_it_waits_no_longer_than_without_the_others(
    n_nodes: int, shapes: list[tuple[int, int, float]]
) -> None:
    plan = [session(f"s{n}", length, tp=gpus * over, over=over) for n, (over, gpus, length) in enumerate(shapes)]
    ledger, waiting = Ledger(nodes(n_nodes)), Waiting(plan)
    running: list[tuple[float, str, Seats]] = []
    begun: dict[str, float] = {}
    now_s, first, due_s = 0.0, "", 0.0
    while len(waiting) or running:
        for name, seats in started(ledger, waiting, now_s).items():
            assert len({seat.node for seat in seats}) == len(seats)
            begun[name] = now_s
            running.append((seats[0].until_s, name, seats))
        for node in ledger.nodes:
            assert sum(seat.gpus for _, _, seats in running for seat in seats if seat.node == node) <= node.gpus
        left = [spec for spec in plan if spec.session_id not in begun]
        if left and left[0].session_id != first:  # the head of those that wait: from now on nobody may delay it
            first, due_s = left[0].session_id, earliest_s(left[0], n_nodes, running, now_s)
        now_s, _, seats = min(running, key=lambda item: item[0])
        running = [item for item in running if item[2] is not seats]
        ledger.release(seats)
        assert not left or first in begun or now_s <= due_s + 1e-6
    assert len(begun) == len(plan)
    assert simulate(plan, nodes(n_nodes)) >= lower_bound_s(plan, nodes(n_nodes)) - 1e-6


def earliest_s(spec: SessionSpec, n_nodes: int, running: list[tuple[float, str, Seats]], now_s: float) -> float:
    """When it could start if nobody else came."""
    for at_s in sorted({now_s, *(until_s for until_s, _, _ in running)}):
        used = {node: 0 for node in nodes(n_nodes)}
        for until_s, _, seats in running:
            for seat in seats:
                used[seat.node] += seat.gpus if until_s > at_s else 0
        if sum(8 - gpus >= spec.deployment.gpus_a_node for gpus in used.values()) >= spec.deployment.engine.nodes:
            return at_s
    raise AssertionError("it fits on an empty cluster")


@pytest.mark.parametrize(
    ("engine", "cluster", "message"),
    [
        pytest.param({"tp": 16, "nodes": 2}, nodes(2), "", id="it fits"),
        pytest.param({"tp": 16}, nodes(2), r"takes 16 GPUs, and .* 8 \(of 2 nodes\)\. Set engine\.nodes=2,", id="two"),
        pytest.param({"tp": 16, "nodes": 2}, nodes(5, gpus=4), r"8 GPUs of each node, .* Set engine\.nodes=4,", id="more"),
        pytest.param({"tp": 16}, nodes(1), "this one has not that many over several nodes either", id="nowhere"),
        pytest.param({"name": "llama_cpp", "tp": 16}, nodes(2), "llama_cpp is not started over several", id="it cannot"),
        pytest.param(
            {"tp": 32, "nodes": 4},
            nodes(3),
            r"fit on its 4 nodes: got engine\.nodes=4 with 8 GPUs each, and such nodes are 3 \(of 3 nodes\)\. Lower engine",
            id="too few nodes",
        ),
        pytest.param({"tp": 16, "nodes": 2}, MIXED, "types A100, H100 .*Name one, as engine.gpu_type=TYPE", id="two types"),
        pytest.param({"tp": 16, "nodes": 2, "gpu_type": "A100"}, MIXED, "", id="one type"),
    ],
)
def test_what_a_cluster_lacks_for_several_nodes_is_said(engine: dict, cluster: list[Node], message: str) -> None:
    said = shortage(cell(**{"device": "cuda", **engine}).deployment, cluster)
    assert re.search(message, said) if message else said == ""


def test_the_bound_counts_all_nodes_of_a_session() -> None:
    plan = [session(f"s{n}", 100.0, tp=16, over=2) for n in range(3)]
    assert lower_bound_s(plan, nodes(2)) == 300.0 == simulate(plan, nodes(2))
    assert lower_bound_s([*plan, session("nowhere", 1.0, tp=24, over=3)], nodes(2)) == 300.0
