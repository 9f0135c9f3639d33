"""A plan is packed onto a cluster in the order, and with the splits, that cost least GPU time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from grids import cell

from jobs.spec import CellOrder, SessionSpec, Workload
from jobs.workloads import reading_once
from orchestrator.expected import Expectation, Size
from orchestrator.ledger import Ledger, Node
from orchestrator.pack import lower_bound_s, pack, simulate, split
from orchestrator.reconcile import expectation
from orchestrator.rules import problem_of
from orchestrator.shortage import Demand
from storage.rows import History

CELL_S = 10.0
START_S = 5.0


def nodes(n: int, gpus: int = 8) -> list[Node]:
    return [Node(str(number), str(number), cpus=64, gpus=gpus) for number in range(n)]


def session(name: str, tp: int = 1, n_cells: int = 1, start_s: float = START_S, **engine: object) -> SessionSpec:
    cells = [cell(repeat=repeat, **{"device": "cuda", "tp": tp, **engine}) for repeat in range(n_cells)]
    orders = tuple(CellOrder(item, 1) for item in cells)
    return SessionSpec(name, "now", cells[0].deployment, orders, start_s + n_cells * CELL_S)


def foreseen(start_s: float = START_S) -> Expectation:
    """Ten seconds a cell."""
    ids = {cell(repeat=r, device="cuda", tp=tp).id: CELL_S for r in range(200) for tp in (1, 4, 8)}
    return Expectation(lambda workload: Size(1, 1, 0), of_cells=ids, any_start_s=start_s)


def test_a_plan_that_fills_the_cluster_is_left_alone() -> None:
    plan = [session(f"s{n}", tp=8, n_cells=4) for n in range(4)]
    packed = pack(plan, nodes(2), foreseen())
    assert packed.sessions == plan
    assert packed.makespan_s == packed.lower_bound_s == 90.0


def test_a_long_session_is_split_where_gpus_would_idle() -> None:
    packed = pack([session("long", tp=8, n_cells=8)], nodes(4), foreseen())
    assert [spec.session_id for spec in packed.sessions] == ["long", "long.1", "long.2", "long.3"]
    assert [len(spec.orders) for spec in packed.sessions] == [2, 2, 2, 2]
    assert packed.makespan_s == 2 * CELL_S + START_S


def test_it_is_not_split_where_starts_cost_more_than_they_save() -> None:
    plan = [session("long", tp=8, n_cells=2, start_s=1000.0)]
    packed = pack(plan, nodes(2), foreseen(start_s=1000.0))
    assert packed.sessions == plan


def test_nothing_is_split_while_others_have_work_for_the_gpus() -> None:
    plan = [session(f"s{n}", tp=1, n_cells=4) for n in range(64)]
    assert len(pack(plan, nodes(1), foreseen()).sessions) == 64


def test_parts_keep_every_cell_once_in_its_order() -> None:
    whole = session("long", n_cells=11)
    parts = split(whole, 3, foreseen())
    assert tuple(order for part in parts for order in part.orders) == whole.orders
    assert sum(part.expected_s for part in parts) == whole.expected_s + 2 * START_S
    assert len({part.session_id for part in parts}) == 3


def test_wide_sessions_first_where_that_packs_better() -> None:
    small = [replace(session(f"s{n}", tp=4), expected_s=100.0) for n in range(3)]
    wide = replace(session("wide", tp=8), expected_s=99.0)
    packed = pack([*small, wide], nodes(1), foreseen())
    assert packed.makespan_s == simulate(packed.sessions, nodes(1)) == 299.0


@pytest.mark.parametrize(
    ("plan", "cluster", "bound_s"),
    [
        pytest.param([], nodes(1), 0.0, id="nothing"),
        pytest.param([session("a", tp=8, n_cells=3)], nodes(9), 35.0, id="the longest session"),
        pytest.param([session(f"s{n}", tp=4) for n in range(8)], nodes(2), 30.0, id="GPU time over GPUs"),
        pytest.param(
            [session(f"s{n}", tp=8, gpu_type="H100") for n in range(4)],
            [*nodes(9), Node("h", "h", cpus=8, gpus=8, gpu_type="H100")],
            60.0,
            id="of the pool that has most to do",
        ),
        pytest.param(
            [replace(session("s", device="cpu", cpus=16), expected_s=100.0)] * 8, nodes(1, gpus=0), 200.0, id="CPU time"
        ),
    ],
)
def test_no_schedule_is_shorter_than_the_bound(plan: list[SessionSpec], cluster: list[Node], bound_s: float) -> None:
    assert lower_bound_s(plan, cluster) == pytest.approx(bound_s)
    assert simulate(plan, cluster) >= bound_s


def test_what_fits_nowhere_is_left_out_of_the_simulation() -> None:
    assert simulate([session("big", tp=16), session("small")], nodes(1)) == 15.0


def test_a_large_plan_costs_little_to_pack(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work is counted, not time: a look at a node for each demand, and a search for a seat or two for each session."""
    counts = {"lack_on": 0, "next": 0}

    def counting(kind: type, name: str) -> None:
        real = getattr(kind, name)

        def counted(*args: object) -> object:
            counts[name] += 1
            return real(*args)

        monkeypatch.setattr(kind, name, counted)

    counting(Demand, "lack_on")
    counting(Ledger, "next")
    plan = [replace(session(f"s{n}", tp=(1, 2, 4, 8)[n % 4]), expected_s=100.0 + n % 7) for n in range(1_000)]
    assert len(pack(plan, nodes(64), foreseen()).sessions) == 1_000
    assert counts["lack_on"] <= 64 * 4 * 40
    assert counts["next"] <= 8 * 3 * 1_000


def test_each_workload_is_read_once_for_all_its_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[Workload] = []
    monkeypatch.setattr("jobs.workloads.load_prompts", lambda workload: reads.append(workload) or [])
    cells = [cell(k, repeat) for k in range(3) for repeat in range(5)]
    read = reading_once()
    assert [problem_of(item, read) for item in cells] == [None] * 15
    expectation(cells, History(), read).cell_s(cells[0])
    assert len(reads) == 1
