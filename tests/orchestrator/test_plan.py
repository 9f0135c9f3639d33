"""The plan is a pure function of cells and record: what is left, tried again, given up, and in which order it runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from grids import cell

from jobs.spec import Cell, SessionSpec
from orchestrator.describe import describe
from orchestrator.expected import GUESSED_START_S, GUESSED_TOKENS_PER_S, expect
from orchestrator.plan import given_up, make_plan
from orchestrator.settings import Limits
from storage.rows import FAILED, NOT_MEASURED, OK, Attempt, History, Start

NOW, BEFORE = "now", "before"
LIMITS = Limits()
EMPTY = History()


def plan(cells: list[Cell], history: History = EMPTY, limits: Limits = LIMITS) -> list[SessionSpec]:
    return make_plan(cells, history, limits, NOW, expect(cells, history, lambda workload: workload.limit))


def tried(which: Cell, status: str, invocation: str = NOW, attempt: int = 1, seconds: float = 1.0) -> Attempt:
    return Attempt(which.id, attempt, invocation, which.deployment.id, status, seconds)


def started(which: Cell, ready_s: float | None, invocation: str = NOW) -> Start:
    return Start("s", invocation, which.deployment.id, OK if ready_s else FAILED, ready_s)


def attempts(sessions: list[SessionSpec]) -> list[tuple[str, int]]:
    return [(order.cell.id, order.attempt) for session in sessions for order in session.orders]


BASE, FAST = cell(), cell(k=3)


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        pytest.param(History(), [(BASE.id, 1)], id="what is new is tried"),
        pytest.param(History([tried(BASE, OK)]), [], id="what is measured is left alone"),
        pytest.param(History([tried(BASE, OK, BEFORE)]), [], id="what another run of the command measured too"),
        pytest.param(History([tried(BASE, FAILED)]), [(BASE.id, 2)], id="a failure is tried again"),
        pytest.param(History([tried(BASE, FAILED), tried(BASE, FAILED, attempt=2)]), [], id="until the limit"),
        pytest.param(
            History([tried(BASE, FAILED, BEFORE), tried(BASE, FAILED, BEFORE, 2)]),
            [(BASE.id, 3)],
            id="that each command has anew",
        ),
        pytest.param(
            History([tried(BASE, NOT_MEASURED, NOW)]), [(BASE.id, 2)], id="not measured is neither done nor failed"
        ),
        pytest.param(History(starts=[started(BASE, None)]), [(BASE.id, 1)], id="a dead start is tried again"),
        pytest.param(History(starts=[started(BASE, None)] * 2), [], id="until its limit"),
        pytest.param(History(starts=[started(BASE, None, BEFORE)] * 2), [(BASE.id, 1)], id="that each command has anew too"),
        pytest.param(
            History(starts=[started(BASE, 2.0)] * 5), [(BASE.id, 1)], id="an engine that got ready is no dead start"
        ),
    ],
)
def test_what_is_left_to_measure(history: History, expected: list[tuple[str, int]]) -> None:
    assert attempts(plan([BASE], history)) == expected


def test_what_is_given_up_says_why() -> None:
    history = History([tried(BASE, FAILED), tried(BASE, FAILED, attempt=2)], [started(FAST, None)] * 2)
    reasons = given_up([BASE, FAST], history, LIMITS, NOW)
    assert reasons == {
        BASE.id: "failed in 2 tries (limits.max_attempts)",
        FAST.id: "the engine did not start in 2 tries (limits.max_starts)",
    }


def test_one_session_holds_all_cells_of_a_deployment() -> None:
    sessions = plan([BASE, cell(concurrency=4), FAST])
    assert [(s.deployment.id, len(s.orders)) for s in sessions] == [(BASE.deployment.id, 2), (FAST.deployment.id, 1)]


def test_the_longest_session_is_first_and_equals_keep_the_order_of_the_grid() -> None:
    short, long, other = cell(k=1), cell(k=2), cell(k=4)
    history = History([tried(replace(long, repeat=9), OK, BEFORE, seconds=500.0)])
    assert [s.deployment.draft.k for s in plan([short, long, other], history)] == [2, 1, 4]


def test_every_second_repeat_runs_backwards() -> None:
    cells = [cell(concurrency=c, repeat=r) for c in (1, 2, 3) for r in (0, 1, 2)]
    order = [(o.cell.repeat, o.cell.load.concurrency) for o in plan(cells)[0].orders]
    assert order == [(0, 1), (0, 2), (0, 3), (1, 3), (1, 2), (1, 1), (2, 1), (2, 2), (2, 3)]


def test_sessions_of_one_command_never_share_an_id() -> None:
    first = plan([BASE])[0]
    again = plan([BASE], History(starts=[started(BASE, None)]))[0]
    other = make_plan([BASE], History(), LIMITS, "other", expect([BASE], History(), lambda workload: 1))[0]
    assert len({first.session_id, again.session_id, other.session_id}) == 3


def test_the_plan_is_the_same_each_time() -> None:
    cells = [cell(k=k, repeat=r, concurrency=c) for k in (0, 1, 2) for r in (0, 1) for c in (1, 8)]
    assert plan(cells) == plan(cells)


@pytest.mark.parametrize(
    ("history", "expected_s"),
    [
        pytest.param(History(), 10 * 100 / GUESSED_TOKENS_PER_S, id="guessed from prompts and output limit"),
        pytest.param(History([tried(cell(repeat=1), OK, seconds=7.0)]), 7.0, id="as another repeat"),
        pytest.param(History([tried(cell(concurrency=8), OK, seconds=9.0)]), 9.0, id="as another cell of the deployment"),
    ],
)
def test_a_duration_is_foretold_from_the_nearest_kin(history: History, expected_s: float) -> None:
    found = expect([BASE, cell(repeat=1), cell(concurrency=8)], history, lambda workload: workload.limit)
    assert found.cell_s(BASE) == pytest.approx(expected_s)


def test_a_start_is_foretold_from_starts() -> None:
    found = expect([BASE], History(starts=[started(BASE, 3.0), started(BASE, 5.0)]), lambda workload: 1)
    assert (found.start_s(BASE.deployment.id), found.start_s("another")) == (4.0, 4.0)
    assert expect([BASE], History(), lambda workload: 1).start_s(BASE.deployment.id) == GUESSED_START_S


def test_a_described_plan_tells_cells_sessions_time_and_gpu_hours() -> None:
    cells = [BASE, cell(repeat=1), cell(k=3, device="cuda", tp=8, batch=4, concurrency=8)]
    foreseen = expect(cells, History(), lambda workload: workload.limit)
    text = describe("night", cells, plan(cells), foreseen)
    assert "night: 3 cells, 0 measured, 3 to measure" in text
    assert "2 sessions, 2 engine starts" in text
    assert "a guess of 50 tokens/s a stream" in text
    assert "GPU-hours" in text
    assert "1 cell with load.concurrency above engine.batch" in text
    assert "tp=8 ngram k=3: 1 cell" in text


def test_a_described_plan_with_nothing_to_do_says_so() -> None:
    history = History([tried(BASE, OK)])
    assert "everything is already measured" in describe(
        "night", [BASE], plan([BASE], history), expect([BASE], history, lambda w: 1)
    )
