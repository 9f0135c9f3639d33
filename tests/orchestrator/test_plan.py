"""The plan is a pure function of cells and record: what is left, tried again, given up, and in which order it runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from grids import cell

from jobs.spec import Cell, Load, SessionSpec, Workload
from jobs.workloads.base import Prompt
from orchestrator.describe import describe
from orchestrator.expected import GUESSED_CPU_SPEED, GUESSED_START_S, GUESSED_TOKENS_PER_S, WORKER_S, Size, expect, guess_s
from orchestrator.plan import given_up, make_plan
from orchestrator.settings import Limits
from storage.rows import FAILED, NOT_MEASURED, OK, Attempt, History, Start

NOW, BEFORE = "now", "before"
LIMITS = Limits()
EMPTY = History()


def size_of(workload: Workload) -> Size:
    return Size(workload.limit, workload.limit, 0.0)


def plan(cells: list[Cell], history: History = EMPTY, limits: Limits = LIMITS) -> list[SessionSpec]:
    return make_plan(cells, history, limits, NOW, expect(cells, history, size_of))


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
    other = make_plan([BASE], History(), LIMITS, "other", expect([BASE], History(), size_of))[0]
    assert len({first.session_id, again.session_id, other.session_id}) == 3


def test_the_plan_is_the_same_each_time() -> None:
    cells = [cell(k=k, repeat=r, concurrency=c) for k in (0, 1, 2) for r in (0, 1) for c in (1, 8)]
    assert plan(cells) == plan(cells)


@pytest.mark.parametrize(
    ("history", "expected_s"),
    [
        pytest.param(History(), (10 + 1) * 100 / GUESSED_TOKENS_PER_S, id="guessed from prompts and output limit"),
        pytest.param(History([tried(cell(repeat=1), OK, seconds=7.0)]), 7.0, id="as another repeat"),
        pytest.param(
            History([tried(cell(concurrency=8), OK, seconds=9.0)]),
            9.0 * 11 / 18,
            id="at the pace of another cell of the deployment, which had more to warm up",
        ),
    ],
)
def test_a_duration_is_foretold_from_the_nearest_kin(history: History, expected_s: float) -> None:
    found = expect([BASE, cell(repeat=1), cell(concurrency=8)], history, size_of)
    assert found.cell_s(BASE) == pytest.approx(expected_s)


@pytest.mark.parametrize(
    ("concurrency", "batch", "load", "size", "seconds"),
    [
        pytest.param(1, 64, {}, Size(10, 10, 0), 22.0, id="ten answers and a warm-up, one after the other"),
        pytest.param(1, 64, {}, Size(10, 30, 0), 62.0, id="three turns each"),
        pytest.param(1, 64, {"warmup": 0}, Size(10, 10, 50_000), 30.0, id="long prompts"),
        pytest.param(8, 64, {"warmup": 0}, Size(80, 80, 0), 22.1875, id="eight at once, each a little slower"),
        pytest.param(8, 1, {"warmup": 0}, Size(80, 80, 0), 160.0, id="that queue for one seat"),
        pytest.param(8, 64, {"warmup": 0}, Size(1, 1, 0), 2.0, id="no more at once than there are"),
        pytest.param(
            1, 64, {"kind": "poisson", "rate": 0.1, "warmup": 0}, Size(10, 10, 0), 100.0, id="as slowly as they arrive"
        ),
    ],
)
def test_a_guess_counts_prompts_answers_and_streams(
    concurrency: int, batch: int, load: dict, size: Size, seconds: float
) -> None:
    guessed = replace(cell(batch=batch), load=Load(concurrency=concurrency, **load))
    assert guess_s(guessed, size) == pytest.approx(seconds)


def test_a_guess_knows_a_cpu_and_that_sampled_answers_are_asked_for_once_more() -> None:
    alone = replace(cell(), load=Load(warmup=0))
    ten = Size(10, 10, 0)
    hot = replace(alone, sampling=replace(alone.sampling, temperature=0.8, scored=4))
    on_cpu = replace(
        alone, deployment=replace(alone.deployment, engine=replace(alone.deployment.engine, name="vllm", device="cpu"))
    )
    assert guess_s(hot, ten) == pytest.approx(1.4 * guess_s(alone, ten))
    assert guess_s(on_cpu, ten) == pytest.approx(guess_s(alone, ten) / GUESSED_CPU_SPEED)


def test_guesses_are_scaled_by_what_was_recorded() -> None:
    slow, same, other = cell(batch=8), cell(batch=8, concurrency=4), cell(k=2, batch=8)
    history = History([tried(slow, OK, seconds=10 * guess_s(slow, size_of(slow.workload)))])
    found = expect([slow, same, other], history, size_of)
    for which in (same, other):
        assert found.cell_s(which) == pytest.approx(10 * guess_s(which, size_of(which.workload)))


@pytest.mark.parametrize(
    ("workload", "tokens"),
    [pytest.param(Workload(), 6.0, id="by characters"), pytest.param(Workload(isl=1000), 2000.0, id="as asked")],
)
def test_the_size_of_a_workload(workload: Workload, tokens: float) -> None:
    prompts = [Prompt("a", "coding", ("x" * 12, "y" * 12))]
    assert Size.of(workload, prompts) == Size(1, 2, tokens)


def test_a_start_is_foretold_from_starts() -> None:
    found = expect([BASE], History(starts=[started(BASE, 3.0), started(BASE, 5.0)]), size_of)
    assert (found.start_s(BASE.deployment.id), found.start_s("another")) == (4.0 + WORKER_S, 4.0 + WORKER_S)
    assert expect([BASE], History(), size_of).start_s(BASE.deployment.id) == GUESSED_START_S


def test_a_described_plan_tells_cells_sessions_time_and_gpu_hours() -> None:
    cells = [BASE, cell(repeat=1), cell(k=3, device="cuda", tp=8, batch=4, concurrency=8)]
    foreseen = expect(cells, History(), size_of)
    text = describe("night", cells, plan(cells), foreseen)
    assert "night: 3 cells, 0 measured, 3 to measure" in text
    assert "2 sessions, 2 engine starts" in text
    assert "a guess of 50 tokens/s a stream" in text
    assert "GPU-hours" in text
    assert "1 cell with load.concurrency above engine.batch" in text
    assert "tp=8 ngram k=3: 1 cell" in text


def test_cells_with_fewer_prompts_than_slots_are_foretold_to_be_invalid() -> None:
    cells = [cell(batch=16, concurrency=slots) for slots in (10, 11, 12)]  # of 10 prompts
    text = describe("night", cells, plan(cells), expect(cells, History(), size_of))
    assert "2 cells with fewer prompts than load.concurrency: they will be invalid (too_few_requests). Raise" in text
    assert "invalid" not in describe("night", cells, plan(cells[:1]), expect(cells, History(), size_of))


def test_a_described_plan_with_nothing_to_do_says_so() -> None:
    history = History([tried(BASE, OK)])
    assert "everything is already measured" in describe(
        "night", [BASE], plan([BASE], history), expect([BASE], history, size_of)
    )
