"""What a report says: the verdict first, nothing hidden, simulated numbers labelled."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from recorded import create_cell, create_request, create_row, create_session, record
from rich.console import Console

from storage.report import find, render_summary, report_of, write_report
from storage.report.__main__ import main
from storage.report.markdown import table
from storage.rows import FAILED, CellResult, SessionRow

ROOT = Path(__file__).parents[2]
SWEEP = 'invocation:\n  command: "python sweep.py +grid=quickstart"\ngrid: quickstart\n'


def results(
    method: str,
    k: int,
    gap_ms: float,
    *,
    maths: float = 1.0,
    concurrency: int = 1,
    simulated: bool = False,
    caches_reset: bool = True,
) -> list[CellResult | SessionRow]:
    """Eight prompts of each of two categories; `maths` times as slow in one."""
    row = create_row(create_cell(method, k, concurrency=concurrency), caches_reset=caches_reset)
    requests = [
        create_request(
            row,
            n,
            gaps_ms=(100, (gap_ms + n / 10) * (maths if n % 2 else 1), 5),
            category=("coding", "math")[n % 2],
            drafted=(k,) * 3,
            accepted=(0,) * 3,
        )
        for n in range(16)
    ]
    return [
        CellResult(row, requests),
        create_session(row, simulated=simulated, engine_version="5.24", git_commit="c0ffee" * 7),
    ]


def test_the_verdict_comes_first_with_its_interval_and_its_domains(tmp_path: Path) -> None:
    folder = record(
        tmp_path / "run", *results("none", 0, 40), *results("ngram", 3, 20, maths=1.5), *results("ngram", 8, 80), sweep=SWEEP
    )

    text = report_of([folder])

    verdict = text.splitlines()[2]
    assert verdict.startswith(
        "**Speculative decoding pays** (small on transformers, workload mini, concurrency 1): ngram k=3 serves"
    )
    assert "It depends on the domain: from 1.78× (coding) to 1.27× (math)." in verdict  # 45.7 / 25.7 and 45.8 / 36.2
    assert "It costs speed with ngram k=8." in verdict
    assert "3 of 3 cells are measured and valid." in text


@pytest.mark.parametrize(
    ("gap_ms", "expected"),
    [
        pytest.param(80, "**Speculative decoding does not pay**", id="slower"),
        pytest.param(40, "**No draft is significantly faster**", id="the same"),
    ],
)
def test_a_loss_and_a_draw_are_said_as_plainly(tmp_path: Path, gap_ms: float, expected: str) -> None:
    folder = record(tmp_path / "run", *results("none", 0, 40), *results("ngram", 3, gap_ms))

    assert report_of([folder]).splitlines()[2].startswith(expected)


def test_a_sure_gain_is_the_answer_beside_a_higher_one_within_noise(tmp_path: Path) -> None:
    noisy = results("ngram", 12, 17, maths=2.6)
    folder = record(tmp_path / "run", *results("none", 0, 40), *noisy, *results("ngram", 3, 36))

    text = report_of([folder])

    lines = [line for line in text.splitlines() if line.startswith("| concurrency 1 | ngram")]
    assert "| ngram k=3 |" in lines[0]
    assert "| 1.10× [1.10, 1.10] |" in lines[0]
    assert re.search(r"\| ngram k=12 .*\| 1\.44× \[0\..*\] \(n\.s\.\) \|", lines[1])
    assert text.splitlines()[2].startswith(
        "**Speculative decoding pays** (small on transformers, workload mini, concurrency 1): ngram k=3 serves a user 1.10×"
    )


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [
        pytest.param([], "Nothing has been measured yet.", id="nothing at all"),
        pytest.param(results("none", 0, 40), "**Nothing to compare**", id="only a baseline"),
    ],
)
def test_a_run_without_a_pair_has_a_report_too(
    tmp_path: Path, recorded: list[CellResult | SessionRow], expected: str
) -> None:
    folder = record(tmp_path / "run", *recorded)

    assert report_of([folder]).splitlines()[2].startswith(expected)


def test_each_load_has_its_verdict_and_its_rows(tmp_path: Path) -> None:
    loads = [
        result
        for c in (1, 4)
        for result in (*results("none", 0, 40, concurrency=c), *results("ngram", 3, 20 * c, concurrency=c))
    ]
    text = report_of([record(tmp_path / "run", *loads)])

    assert "pays** (small on transformers, workload mini, concurrency 1)" in text
    assert "does not pay** (small on transformers, workload mini, concurrency 4)" in text
    assert text.count("| concurrency 4 |") == 2


def test_failed_and_invalid_cells_are_listed_with_their_reasons(tmp_path: Path) -> None:
    failed = create_row(create_cell("ngram", 3), status="failed", error="The engine died: exit code 9.\nits | log")
    few = create_row(create_cell())
    folder = record(tmp_path / "run", CellResult(failed), CellResult(few, [create_request(few)]))

    text = report_of([folder])

    assert "0 of 2 cells are measured and valid; 2 failed or invalid, listed below." in text
    assert "| ngram k=3 | 0 | failed | failed | The engine died: exit code 9. |" in text
    assert "| none | 0 | ok | too_few_requests |  |" in text


@pytest.mark.parametrize(
    ("invalid", "n"), [pytest.param(("none",), 1, id="the baseline"), pytest.param(("none", "ngram"), 2, id="both")]
)
def test_an_invalid_cell_pays_nothing_and_its_numbers_are_marked(tmp_path: Path, invalid: tuple[str, ...], n: int) -> None:
    folder = record(
        tmp_path / "run",
        *results("none", 0, 40, caches_reset="none" not in invalid),
        *results("ngram", 3, 20, caches_reset="ngram" not in invalid),
    )

    text = report_of([folder])

    told = "1 compared cell is invalid" if n == 1 else "2 compared cells are invalid"
    assert text.splitlines()[2] == f"**Not judged** (small on transformers, workload mini, concurrency 1): {told}."
    assert re.search(r"1\.78× \[.*?\] \(invalid\)", text)
    assert "decoding pays" not in text + rendered(folder)


def test_an_invalid_draft_is_left_out_of_the_verdict_on_the_others(tmp_path: Path) -> None:
    folder = record(
        tmp_path / "run",
        *results("none", 0, 40),
        *results("ngram", 3, 20),
        *results("ngram", 8, 5, caches_reset=False),
    )

    verdict = report_of([folder]).splitlines()[2]

    assert "pays** (small on transformers, workload mini, concurrency 1): ngram k=3 serves" in verdict
    assert verdict.endswith(" Not judged: ngram k=8; 1 compared cell is invalid.")


def test_simulated_numbers_are_labelled_at_the_top_and_in_every_row(tmp_path: Path) -> None:
    folder = record(tmp_path / "run", *results("none", 0, 40, simulated=True), *results("ngram", 3, 20, simulated=True))

    text = report_of([folder])

    assert text.splitlines()[2].startswith("> **SIMULATED.**")
    assert "| ngram k=3 (simulated) |" in text
    assert "SIMULATED" in rendered(folder).splitlines()[0]


def test_the_report_says_how_it_came_about(tmp_path: Path) -> None:
    folder = record(tmp_path / "run", *results("none", 0, 40), sweep=SWEEP)

    text = report_of([folder])

    assert "\npython sweep.py +grid=quickstart\n" in text
    assert f'\npython -m storage.query {folder} "FROM cells"\n' in text
    assert "c0ffeec0ffee" in text
    assert "5.24" in text


def test_the_best_and_the_worst_category_are_marked(tmp_path: Path) -> None:
    folder = record(tmp_path / "run", *results("none", 0, 40), *results("ngram", 3, 20, maths=2))

    lines = report_of([folder]).splitlines()

    assert next(line for line in lines if line.startswith("| coding |")).endswith("**best** |")
    assert next(line for line in lines if line.startswith("| math |")).endswith("worst |")


def test_several_runs_are_told_apart(tmp_path: Path) -> None:
    folders = [record(tmp_path / name, *results("none", 0, 40), *results("ngram", 3, 20)) for name in ("a", "b")]

    text = report_of(folders)

    assert "### small on transformers, workload mini (a)" in text
    assert "### small on transformers, workload mini (b)" in text
    for name in ("a", "b"):
        assert f"**Speculative decoding pays** (small on transformers, workload mini, run {name}, concurrency 1)" in text
        assert f"small on transformers, workload mini, run {name}, concurrency 1" in rendered(*folders, width=120)


def test_what_failed_is_told_of_its_run_where_there_are_several(tmp_path: Path) -> None:
    failed = [CellResult(create_row(create_cell(), status=FAILED, error_kind="x", error="no"))]
    folders = [record(tmp_path / name, *failed) for name in ("a", "b")]
    assert "workload mini, run b, concurrency 1 |" in report_of(folders)
    assert ", run " not in report_of(folders[:1])


def rendered(*folders: Path, width: int = 80) -> str:
    console = Console(width=width, file=io.StringIO())
    with console.capture() as capture:
        console.print(render_summary(find(folders)))
    return capture.get()


def test_the_terminal_shows_the_same_numbers_within_eighty_columns(tmp_path: Path) -> None:
    folder = record(tmp_path / "run", *results("none", 0, 40), *results("ngram", 3, 20))

    text = rendered(folder)

    assert "small on transformers, workload mini, concurrency 1" in text
    assert "1.78×" in text
    assert "Speculative decoding pays" in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_bar_in_a_value_does_not_break_a_table() -> None:
    assert list(table(("a", "b"), [("x|y", "1\n2")])) == ["| a | b |", "| --- | --- |", "| x\\|y | 1 2 |"]


def test_the_report_is_written_into_its_run(tmp_path: Path) -> None:
    folder = record(tmp_path / "run", *results("none", 0, 40))

    assert write_report(folder, find([folder])) == folder / "report.html"
    assert (folder / "report.md").read_text() == report_of([folder])


def report(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "storage.report", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_the_command_prints_or_writes_the_report(tmp_path: Path) -> None:
    folder = record(tmp_path / "run", *results("none", 0, 40))

    assert report(str(folder)).stdout == report_of([folder])
    assert report(str(folder), "-o", str(tmp_path / "page.md")).returncode == 0
    assert (tmp_path / "page.md").read_text() == report_of([folder])


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        pytest.param(["nowhere"], 2, "A run must exist: got nowhere", id="no run"),
        pytest.param([".", "-o", "x"], 2, "A run is a folder with sweep.yaml", id="no run, but a folder"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(words: list[str], code: int, message: str) -> None:
    done = report(*words)

    assert (done.returncode, done.stderr.count("\n")) == (code, 1)
    assert done.stderr.startswith(message)


def test_a_page_that_is_a_folder_or_a_file_of_a_run_is_a_mistake(tmp_path: Path) -> None:
    folder = record(tmp_path / "run")
    (tmp_path / "page.md").mkdir()

    done = report(str(folder), "-o", str(tmp_path / "page.md"))

    assert done.returncode == 2
    assert re.fullmatch(r"--output must be a file: got the folder \S+\. Name a file in it\.\n", done.stderr)
    (folder / "sweep.yaml").touch()
    done = report(str(folder), "-o", str(folder / "cells" / "page.md"))
    assert done.returncode == 2
    assert done.stderr.startswith("--output must be no file of a run's own: got ")


def test_an_engine_that_did_not_start_is_in_the_report_with_its_reason(tmp_path: Path) -> None:
    row, session = results("ngram", 3, 20)
    assert isinstance(row, CellResult)
    assert isinstance(session, SessionRow)
    lost = replace(session, status="failed", error_kind="engine_did_not_start", error="out of memory\ntail of its log")
    folder = record(tmp_path / "run", lost)

    text = report_of([folder])

    assert "## Sessions that failed" in text
    assert "engine_did_not_start | out of memory |" in text
    assert "tail of its log" not in text


def test_domains_that_differ_by_chance_are_not_said_to_matter(tmp_path: Path) -> None:
    few = [
        replace(result, requests=result.requests[:4]) if isinstance(result, CellResult) else result
        for result in [*results("none", 0, 40), *results("ngram", 3, 20, maths=1.5)]
    ]

    verdict = report_of([record(tmp_path / "run", *few)]).splitlines()[2]

    assert "Domains differ, none significantly: from" in verdict


@pytest.mark.parametrize("is_terminal", [pytest.param(True, id="terminal"), pytest.param(False, id="pipe")])
def test_a_terminal_gets_the_table_and_the_worst_problems_and_a_pipe_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_terminal: bool
) -> None:
    folder = record(tmp_path, *results("none", 0, 20.0), *results("ngram", 3, 10.0, caches_reset=False))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    monkeypatch.setenv("COLUMNS", "200")

    assert main([str(folder)]) == 0

    told = capsys.readouterr().out
    assert told.startswith("# Is speculative decoding worth it?") is not is_terminal
    assert ("1 caches not reset: leave engine.prefix_cache off" in told) is is_terminal
