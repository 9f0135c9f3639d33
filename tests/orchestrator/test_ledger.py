"""Sessions are admitted in order onto nodes that can hold them; what none could ever hold is refused."""

from __future__ import annotations

import re

import pytest
from grids import cell

from jobs.errors import BadInput
from jobs.spec import Deployment, SessionSpec
from orchestrator.ledger import Ledger, Node, Seats, Waiting, seat_on
from orchestrator.shortage import demand_of, mixed_types, shortage

BOX = Node("box", "box", cpus=4, gpus=0)
BIG, SMALL = Node("big", "big", cpus=64, gpus=8), Node("small", "small", cpus=16, gpus=2)


def on_gpus(tp: int, **engine: object) -> Deployment:
    return cell(device="cuda", tp=tp, **engine).deployment


@pytest.mark.parametrize(
    ("node", "deployment", "cpus", "gpus"),
    [
        pytest.param(BOX, cell().deployment, 4, 0, id="an engine on the CPU has the node for itself"),
        pytest.param(BOX, cell(cpus=1.5).deployment, 1.5, 0, id="or what it says"),
        pytest.param(BIG, on_gpus(2), 16, 2, id="a quarter of the GPUs takes a quarter of the CPUs"),
        pytest.param(BIG, on_gpus(8), 64, 8, id="all of the GPUs take all of them"),
    ],
)
def test_what_a_session_takes(node: Node, deployment: Deployment, cpus: float, gpus: int) -> None:
    seat = seat_on(node, demand_of(deployment))
    assert (seat.cpus, seat.gpus) == (cpus, gpus)


def test_sessions_on_a_cpu_box_run_one_at_a_time() -> None:
    ledger = Ledger([BOX])
    first = ledger.admit(cell().deployment)
    assert first
    assert not ledger.admit(cell(k=3).deployment)
    ledger.release(first)
    assert ledger.admit(cell(k=3).deployment)


def test_small_sessions_fill_the_fullest_node_so_that_whole_nodes_stay_whole() -> None:
    ledger = Ledger([BIG, SMALL])
    seats = [ledger.admit(on_gpus(1)) for _ in range(3)]
    assert [seat.node.name for (seat,) in seats] == ["small", "small", "big"]
    assert not ledger.admit(on_gpus(8))


@pytest.mark.parametrize(
    ("nodes", "deployment", "message"),
    [
        pytest.param(
            [BIG, SMALL],
            on_gpus(16),
            r"tp=16 takes 16 GPUs, and the largest node has 8 \(of 2 nodes\). Lower engine.tp",
            id="tp",
        ),
        pytest.param([BOX], on_gpus(1), "largest node has 0 .*engine.device=cpu", id="no GPU at all"),
        pytest.param([BOX], cell(cpus=9).deployment, "engine.cpus=9, and the largest node has 4 CPUs", id="CPUs"),
        pytest.param([], cell().deployment, "must fit on one node", id="no node at all"),
    ],
)
def test_the_impossible_is_refused(nodes: list[Node], deployment: Deployment, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        Ledger(nodes).refuse_impossible([deployment])


def test_the_possible_is_not_refused_because_it_must_wait() -> None:
    ledger = Ledger([BOX])
    ledger.admit(cell().deployment)
    ledger.refuse_impossible([cell(k=3).deployment])


@pytest.mark.parametrize(
    ("now", "tp", "expected"),
    [
        pytest.param([BIG, SMALL], 1, "small", id="nothing changed: the seats that are taken stay taken"),
        pytest.param([BIG], 1, "big", id="a node that has gone gets no session"),
        pytest.param([SMALL], 2, None, id="the seat on a living node is still taken"),
        pytest.param([SMALL, Node("new", "new", cpus=8, gpus=2)], 2, "new", id="a new node is used, whole"),
        pytest.param([], 1, None, id="no node is left: wait"),
    ],
)
def test_the_ledger_follows_the_cluster(now: list[Node], tp: int, expected: str | None) -> None:
    ledger = Ledger([BIG, SMALL])
    assert ledger.admit(on_gpus(1))[0].node == SMALL
    ledger.refresh(now)
    assert [seat.node.name for seat in ledger.admit(on_gpus(tp))] == ([expected] if expected else [])


def test_a_session_that_ends_after_its_node_has_gone_frees_nothing() -> None:
    ledger = Ledger([BOX, SMALL])
    seats = ledger.admit(on_gpus(2))
    assert seats
    ledger.refresh([BOX])
    ledger.release(seats)
    assert not ledger.admit(on_gpus(1))
    ledger.refresh([BOX, SMALL])  # back again, empty
    assert ledger.admit(on_gpus(2))


# ---------------------------------------------------------------------------------------------------- pools and GPU types

H100 = Node("h", "h", cpus=64, gpus=8, gpu_type="H100", engines=frozenset({"vllm", "sglang"}))
A100 = Node("a", "a", cpus=64, gpus=4, gpu_type="A100", engines=frozenset({"vllm"}))
HEAD = Node("head", "head", cpus=8, gpus=0, engines=frozenset())


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        pytest.param({"name": "sglang", "tp": 8}, "", id="the one node of its pool"),
        pytest.param({"name": "vllm", "gpu_type": "a100", "tp": 4}, "", id="the type in small letters"),
        pytest.param(
            {"name": "llama_cpp"},
            r"engine.name=llama_cpp, and no node is marked for it; marked are sglang on 1, vllm on 2 \(of 3 nodes\). "
            "Start a node with the resource engine_llama_cpp",
            id="a pool without nodes",
        ),
        pytest.param(
            {"name": "vllm", "gpu_type": "B200"},
            "engine.gpu_type=B200, and the GPUs of the cluster are: 4 A100, 8 H100 .*Name one of these types",
            id="a type that is not there",
        ),
        pytest.param(
            {"name": "sglang", "gpu_type": "A100"}, "engine.gpu_type=A100, and .*: 8 H100", id="a type that its pool has not"
        ),
        pytest.param(
            {"name": "vllm", "gpu_type": "A100", "tp": 4, "pp": 2},
            "engine.tp=4 engine.pp=2 takes 8 GPUs, and the largest node has 4 A100.*not that many over several nodes either",
            id="too many for that type",
        ),
        pytest.param({"name": "vllm", "device": "cpu", "gpu_type": "B200"}, "", id="no GPU, no type"),
        pytest.param({"name": "attached", "url": "http://host:1"}, "", id="an engine elsewhere is in no pool"),
    ],
)
def test_what_a_pool_lacks_is_said(engine: dict, message: str) -> None:
    said = shortage(cell(**{"device": "cuda", **engine}).deployment, [HEAD, A100, H100])
    assert re.search(message, said) if message else said == ""


@pytest.mark.parametrize(
    ("engine", "is_mixed"),
    [
        pytest.param({"name": "vllm"}, True, id="either"),
        pytest.param({"name": "vllm", "gpu_type": "A100"}, False, id="it names one"),
        pytest.param({"name": "vllm", "tp": 8}, False, id="only one is large enough"),
        pytest.param({"name": "sglang"}, False, id="its pool has one"),
        pytest.param({"name": "vllm", "device": "cpu"}, False, id="it takes none"),
    ],
)
def test_several_types_of_gpu_are_warned_of(engine: dict, is_mixed: bool) -> None:
    said = mixed_types([cell(**{"device": "cuda", **engine}).deployment], [HEAD, A100, H100])
    assert ("axes.engine.gpu_type=[A100,H100]" in said) == is_mixed == bool(said)


def test_a_session_goes_where_its_engine_and_type_are() -> None:
    ledger = Ledger([HEAD, A100, H100])
    taken = [ledger.admit(on_gpus(1, **engine)) for engine in ({"name": "vllm"}, {"name": "vllm", "gpu_type": "H100"})]
    assert [seat.node for (seat,) in taken] == [A100, H100]


# ----------------------------------------------------------------------------------------------- who waits, and for whom

TWO_NODES = [Node("n0", "n0", cpus=64, gpus=8), Node("n1", "n1", cpus=64, gpus=8)]


def session(name: str, tp: int, expected_s: float, /, **engine: object) -> SessionSpec:
    return SessionSpec(name, "now", on_gpus(tp, **engine), (), expected_s)


def started(ledger: Ledger, waiting: Waiting, now_s: float) -> dict[str, Seats]:
    return {found[0].session_id: found[1] for _ in range(99) if (found := ledger.next(waiting, now_s))}


def test_a_big_session_gets_a_node_kept_and_is_not_starved_by_small_ones() -> None:
    ledger = Ledger(TWO_NODES)
    running = started(ledger, Waiting([session(f"s{n}", 1, 100.0 + n) for n in range(16)]), 0.0)
    assert len(running) == 16
    waiting = Waiting([session("big", 8, 500.0), *(session(f"more{n}", 1, 200.0) for n in range(50))])
    order: list[str] = []
    for seats in sorted(running.values(), key=lambda item: item[0].until_s):
        ledger.release(seats)
        order += started(ledger, waiting, seats[0].until_s)
    assert order[:2] == ["big", "more0"], "it has the first node that is free as a whole, the others go to the other node"
    assert len(order) == 9


@pytest.mark.parametrize(
    ("small_s", "tp", "starts"),
    [
        pytest.param(50.0, 1, True, id="one that is gone before the big one can start"),
        pytest.param(500.0, 1, False, id="one that would keep it waiting"),
        pytest.param(500.0, 3, False, id="nor a wide one"),
    ],
)
def test_what_may_pass_a_session_that_waits(small_s: float, tp: int, starts: bool) -> None:
    ledger = Ledger(TWO_NODES[:1])
    started(ledger, Waiting([session("running", 4, 100.0)]), 0.0)
    waiting = Waiting([session("big", 8, 100.0), session("small", tp, small_s)])
    assert list(started(ledger, waiting, 0.0)) == (["small"] if starts else [])


def test_a_long_one_may_pass_where_room_enough_is_left() -> None:
    ledger = Ledger(TWO_NODES[:1])
    started(ledger, Waiting([session("running", 6, 100.0)]), 0.0)
    waiting = Waiting([session("big", 4, 100.0), session("small", 2, 900.0), session("late", 2, 900.0)])
    assert list(started(ledger, waiting, 0.0)) == ["small"]


def test_pools_do_not_wait_for_each_other() -> None:
    ledger = Ledger([H100, A100])
    started(ledger, Waiting([session("running", 1, 100.0, name="sglang")]), 0.0)
    waiting = Waiting([session("big", 8, 9.0, name="sglang"), session("other", 4, 9e9, name="vllm", gpu_type="A100")])
    assert list(started(ledger, waiting, 0.0)) == ["other"]


def test_what_is_overdue_is_expected_to_end_now() -> None:
    ledger = Ledger(TWO_NODES[:1])
    started(ledger, Waiting([session("overdue", 4, 1.0)]), 0.0)
    assert started(ledger, Waiting([session("big", 8, 9.0), session("small", 1, 2.0)]), 50.0) == {}
