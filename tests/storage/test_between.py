"""Two runs side by side: what got worse or better beyond noise, what is no longer valid, and the exit code for CI."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from recorded import create_cell, create_request, create_row, create_session, record

from storage.report.__main__ import main
from storage.report.between import changes_between
from storage.rows import CellResult, SessionRow


def run(
    folder: Path, gap_ms: float, *, method: str = "ngram", k: int = 3, caches_reset: bool = True, noise_ms: float = 0.0
) -> Path:
    results: list[CellResult | SessionRow] = []
    for kind, length, gap in (("none", 0, 40.0), (method, k, gap_ms)):
        row = create_row(create_cell(kind, length), caches_reset=caches_reset or not length)
        gaps = [gap + (n % 3 - 1) * noise_ms if length else gap for n in range(12)]
        results += [
            CellResult(row, [create_request(row, n, gaps_ms=(100.0, g, g)) for n, g in enumerate(gaps)]),
            create_session(row),
        ]
    return record(folder, *results)


def told(before: Path, after: Path) -> dict[str, tuple[bool, bool]]:
    return {
        f"{change.row['now']['draft']} {change.metric}": (change.is_regression, change.is_gain)
        for change in changes_between(before, after)
    }


def test_a_slower_draft_is_a_regression_of_its_speed_and_not_of_its_first_token(tmp_path: Path) -> None:
    changes = told(run(tmp_path / "before", 20), run(tmp_path / "after", 25))

    assert changes["ngram k=3 user_tps"] == (True, False)
    assert changes["ngram k=3 e2e"] == (True, False)
    assert changes["ngram k=3 ttft"] == (False, False)
    assert changes["none user_tps"] == (False, False)


def test_a_ratio_is_after_over_before_and_more_is_better(tmp_path: Path) -> None:
    changes = changes_between(run(tmp_path / "before", 20), run(tmp_path / "after", 16))

    row = next(change.row for change in changes if change.metric == "user_tps" and change.row["now"]["draft"] == "ngram k=3")
    assert row["ratio"] == pytest.approx(20 / 16)
    assert (row["is_gain"], row["n_prompts"]) == (True, 12)


def test_the_later_run_says_how_large_a_change_must_be(tmp_path: Path) -> None:
    before, after = run(tmp_path / "before", 20), run(tmp_path / "after", 25)
    (after / "sweep.yaml").write_text("thresholds: {min_change: 0.5}\n")

    assert told(before, after)["ngram k=3 user_tps"] == (False, False)
    assert told(after, before)["ngram k=3 user_tps"] == (False, True)


def test_noise_is_no_regression(tmp_path: Path) -> None:
    changes = told(run(tmp_path / "before", 20), run(tmp_path / "after", 20.2, noise_ms=4))

    assert not any(is_regression for is_regression, _ in changes.values())


def test_a_new_draft_is_held_against_the_one_that_it_replaces(tmp_path: Path) -> None:
    changes = changes_between(run(tmp_path / "before", 20), run(tmp_path / "after", 10, method="eagle3"))

    [new] = [change.row for change in changes if change.metric == "user_tps" and change.row["now"]["method"] != "none"]
    assert (new["before"]["draft"], new["now"]["draft"], new["is_gain"]) == ("ngram k=3", "eagle3 k=3", True)


def test_what_was_valid_and_is_no_more_is_a_regression_and_its_numbers_are_no_claim(tmp_path: Path) -> None:
    changes = told(run(tmp_path / "before", 20), run(tmp_path / "after", 30, caches_reset=False))

    assert changes["ngram k=3 "] == (True, False)
    assert changes["ngram k=3 user_tps"] == (False, False)


@pytest.mark.parametrize(
    ("gap_ms", "words", "code"),
    [
        pytest.param(30, ["--fail-on-regression"], 1, id="slower"),
        pytest.param(30, [], 0, id="slower, only told"),
        pytest.param(20, ["--fail-on-regression"], 0, id="the same"),
        pytest.param(10, ["--fail-on-regression"], 0, id="faster"),
    ],
)
def test_the_exit_code_tells_a_pipeline(tmp_path: Path, gap_ms: float, words: list[str], code: int) -> None:
    before, after = run(tmp_path / "before", 20), run(tmp_path / "after", gap_ms)

    assert main([str(before), str(after), "-o", str(tmp_path / "page.md"), *words]) == code
    assert (tmp_path / "page.md").read_text().startswith("# after against before\n")


def test_a_run_that_lacks_what_it_asked_for_is_a_regression(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = run(tmp_path / "before", 20), run(tmp_path / "after", 20)
    (after / "sweep.yaml").write_text("invocation:\n  n_cells: 3\n")
    assert main([str(before), str(after), "--fail-on-regression"]) == 1
    assert "after is not whole (so far: 2 of 3 cells)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(["{one}", "--fail-on-regression"], "--fail-on-regression compares two runs: got 1", id="one run"),
        pytest.param(["{one}", "{other}", "--fail-on-regression"], "share none", id="nothing in common"),
        pytest.param(
            ["{one}", "-o", "page.pdf"], "--output must end in one of .md, .html, .csv, .json, .parquet", id="suffix"
        ),
    ],
)
def test_what_cannot_be_done_is_one_line(tmp_path: Path, words: list[str], message: str) -> None:
    row = create_row(create_cell(concurrency=7))
    other = record(tmp_path / "other", CellResult(row, [create_request(row)]), create_session(row))
    places = {"one": run(tmp_path / "one", 20), "other": other}

    command = [sys.executable, "-m", "storage.report", *(word.format(**places) for word in words)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert message in done.stderr


def test_the_suffix_is_the_format_and_every_format_says_the_same(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", 20)

    for suffix in ("csv", "json", "parquet"):
        assert main([str(folder), "-o", str(tmp_path / f"page.{suffix}")]) == 0

    sql = "SELECT draft, user_tps_ratio, user_tps_ci_low, user_tps_n_prompts FROM '{}' ORDER BY draft"
    rows = [duckdb.sql(sql.format(tmp_path / f"page.{suffix}")).fetchall() for suffix in ("csv", "json", "parquet")]
    assert rows[0] == rows[1] == rows[2]
    assert rows[0][0] == ("ngram k=3", pytest.approx(2.0), pytest.approx(2.0), 12)
    assert json.loads((tmp_path / "page.json").read_text())[0]["model"] == "small"


def noisy(folder: Path, seed: int) -> Path:
    """Thirty loads of one engine, whose prompts are now faster and now slower, by chance alone."""
    chance = random.Random(seed)
    results: list[CellResult | SessionRow] = []
    for concurrency in range(1, 31):
        row = create_row(create_cell(concurrency=concurrency))
        gaps = [20 * chance.lognormvariate(0, 0.2) for _ in range(30)]
        results.append(CellResult(row, [create_request(row, n, gaps_ms=(100.0, gap, gap)) for n, gap in enumerate(gaps)]))
    return record(folder, *results)


def test_chance_in_many_comparisons_of_a_run_with_its_like_is_no_regression(tmp_path: Path) -> None:
    changes = changes_between(noisy(tmp_path / "before", 5), noisy(tmp_path / "after", 6))

    alone = [change.row["verdict"] for change in changes]
    assert {"slower", "faster"} <= set(alone)  # each by itself beyond its interval
    assert not any(change.is_regression or change.is_gain for change in changes)


@pytest.mark.parametrize(
    ("gap_ms", "is_regression"), [pytest.param(20.3, False, id="1.5 %"), pytest.param(20.5, True, id="2.5 %")]
)
def test_a_change_below_what_sessions_differ_by_is_none(tmp_path: Path, gap_ms: float, is_regression: bool) -> None:
    changes = told(run(tmp_path / "before", 20), run(tmp_path / "after", gap_ms))

    assert changes["ngram k=3 user_tps"] == (is_regression, False)
