"""Sessions are admitted in order onto nodes that can hold them; what none could ever hold is refused."""

from __future__ import annotations

import pytest
from grids import cell

from jobs.errors import BadInput
from jobs.spec import Deployment
from orchestrator.ledger import Ledger, Node, seat_on

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
    seat = seat_on(node, deployment)
    assert (seat.cpus, seat.gpus) == (cpus, gpus)


def test_sessions_on_a_cpu_box_run_one_at_a_time() -> None:
    ledger = Ledger([BOX])
    first = ledger.admit(cell().deployment)
    assert first is not None
    assert ledger.admit(cell(k=3).deployment) is None
    ledger.release(first)
    assert ledger.admit(cell(k=3).deployment) is not None


def test_small_sessions_fill_the_fullest_node_so_that_whole_nodes_stay_whole() -> None:
    ledger = Ledger([BIG, SMALL])
    seats = [ledger.admit(on_gpus(1)) for _ in range(3)]
    assert [seat and seat.node.name for seat in seats] == ["small", "small", "big"]
    assert ledger.admit(on_gpus(8)) is None


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
    assert ledger.admit(on_gpus(1)).node == SMALL  # type: ignore[union-attr]
    ledger.refresh(now)
    seat = ledger.admit(on_gpus(tp))
    assert (seat and seat.node.name) == expected


def test_a_session_that_ends_after_its_node_has_gone_frees_nothing() -> None:
    ledger = Ledger([BOX, SMALL])
    seat = ledger.admit(on_gpus(2))
    assert seat is not None
    ledger.refresh([BOX])
    ledger.release(seat)
    assert ledger.admit(on_gpus(1)) is None
    ledger.refresh([BOX, SMALL])  # back again, empty
    assert ledger.admit(on_gpus(2)) is not None
