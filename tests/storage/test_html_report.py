"""The page that people show each other: whole, safe, quick, readable by everyone; looked at in a real browser."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from browser import axe, look, needs_chromium
from recorded import create_cell, create_request, create_row, create_session, record
from recorded_grid import pair, point

from jobs.spec import Cell
from storage.report import find, html_of
from storage.report.between import changes_between
from storage.report.findings import Findings
from storage.report.headline import headline
from storage.report.html import html_page
from storage.report.verdict import summary
from storage.rows import CellResult, SessionRow, TelemetryRow

CATEGORIES = ("coding", "math", "writing")
SECTIONS = ("speedup", "heat", "frontier", "category", "positions", "timeline", "memory", "costs")


def measured(
    method: str, k: int, gap_ms: float, *, concurrency: int = 1, isl: int = 0, name: str = "", caches_reset: bool = True
) -> list[CellResult | SessionRow]:
    cell = create_cell(method, k, concurrency=concurrency)
    deployment = replace(cell.deployment, draft=replace(cell.deployment.draft, name=name))
    cell = Cell(deployment, replace(cell.workload, isl=isl), cell.sampling, cell.load, 0)
    row = create_row(cell, caches_reset=caches_reset)
    requests = [
        create_request(
            row,
            n,
            gaps_ms=(100.0, gap_ms + n / 10, gap_ms, gap_ms),
            tokens=(1, 2, 2, 2) if k else (1, 1, 1, 1),
            drafted=(0, k, k, k),
            accepted=(0, 1, 1, 1) if k else (0,) * 4,
            first_step_is_prefill=True,
            category=CATEGORIES[n % 3],
            prompt_tokens=isl or 50,
        )
        for n in range(12)
    ]
    sample = TelemetryRow(row.cell_id, 1, 1000, "cpu", utilisation=0.5, memory_bytes=1 << 20)
    facts = {"weights_bytes": 1 << 30, "draft_weights_bytes": (k > 5) << 28, "peak_memory_bytes": 3 << 30}
    session = create_session(
        row,
        deployment_json=json.dumps(asdict(deployment)),
        kv_capacity_tokens=1000 - 10 * k,
        host_json='{"cpus": 4}',
        node="n",
        **facts,
    )
    return [CellResult(row, requests, [sample]), session]


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two drafts and the baseline at two loads and two prompt lengths; one cell is invalid."""
    results: list[CellResult | SessionRow] = []
    for isl in (512, 2048):
        for concurrency in (1, 4):
            results += measured("none", 0, 20, concurrency=concurrency, isl=isl)
            results += measured("ngram", 3, 22, concurrency=concurrency, isl=isl)
            slow = 60 if concurrency > 1 else 30
            is_reset = (isl, concurrency) != (2048, 4)
            results += measured("eagle3", 7, slow, concurrency=concurrency, isl=isl, caches_reset=is_reset)
    return record(tmp_path_factory.mktemp("grid") / "run", *results)


@pytest.fixture(scope="module")
def read(grid: Path) -> Findings:
    return find([grid])


@pytest.fixture
def page(read: Findings, tmp_path: Path) -> Path:
    path = tmp_path / "report.html"
    path.write_text(html_page(read), encoding="utf-8")
    return path


# ---------------------------------------------------------------------------------------------------- without a browser
def test_the_page_needs_no_network(page: Path) -> None:
    text = page.read_text(encoding="utf-8")

    assert "default-src 'none'" in text
    assert (
        re.findall(r"""(?:src|href)\s*=\s*["'](?!data:)[^"'#]""", re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL))
        == []
    )


def test_what_is_invalid_stands_there_with_its_rule_and_its_remedy(page: Path) -> None:
    text = page.read_text(encoding="utf-8")

    assert "1 of 12 cells" in text
    assert "caches not reset" in text
    assert "What to do: leave engine.prefix_cache off" in text


def test_sections_without_data_are_left_out(tmp_path: Path) -> None:
    text = html_of([record(tmp_path / "run", *measured("none", 0, 20))])

    present = [name for name in SECTIONS if f'id="{name}"' in text]
    assert present == ["timeline", "memory", "costs"]
    assert "Not known" in text
    assert 'id="problems"' not in text


def test_a_name_cannot_leave_its_place(tmp_path: Path) -> None:
    evil = "</script><script>document.title = 'taken'</script><img src=x>"
    results = [*measured("none", 0, 20), *measured("ngram", 3, 10, name=evil)]

    text = html_of([record(tmp_path / "run", *results)])

    assert evil not in text
    assert "<img src=x>" not in text


def verdict(answer: str, **changes: Any) -> dict[str, Any]:
    row = {"metric": "user_tps", "answer": answer, "n_places": 2, "n_costing": 0, "best_draft": "eagle3 k=3"}
    row |= {"best_ratio": 1.5, "best_ci_low": 1.4, "best_ci_high": 1.6, "best_at": "concurrency 1"}
    row["best_verdict"] = "faster"
    row |= {
        "where_it_pays": "concurrency 1",
        "where_it_does_not": "concurrency 64",
        "run": "r",
        "engine": "vllm",
        "model": "m",
    }
    row |= {"dtype": "auto", "tp": 1, "workload": "w", "split": "", "temperature": 0.0}
    return row | changes


@pytest.mark.parametrize(
    ("verdicts", "word", "sentence"),
    [
        pytest.param([], "Not known", "nothing to go by", id="nothing measured"),
        pytest.param([verdict("unknown")], "Not known", "nothing to go by", id="nothing valid"),
        pytest.param(
            [verdict("yes")], "Yes, it pays", "eagle3 k=3 serves a user 1.50× [1.40, 1.60] as fast", id="everywhere"
        ),
        pytest.param([verdict("depends")], "It depends", "does not at concurrency 64", id="somewhere"),
        pytest.param([verdict("no")], "No gain shown", "No draft is significantly faster", id="noise"),
        pytest.param([verdict("no", n_costing=2)], "No, it costs speed", "Every draft is slower", id="slower everywhere"),
        pytest.param(
            [verdict("yes"), verdict("no", model="n", best_ratio=0.9)], "It depends", "yes for 1, no for 1", id="two models"
        ),
        pytest.param(
            [verdict("no", best_ratio=1.9, best_verdict="not significant"), verdict("yes", model="n")],
            "It depends",
            "At best eagle3 k=3 with 1.50×",
            id="a higher ratio within noise is not the best",
        ),
        pytest.param(
            [verdict("depends"), verdict("depends", model="n")],
            "It depends",
            "In each of 2 questions it pays at some",
            id="alike",
        ),
        pytest.param([verdict("yes"), verdict("unknown")], "Yes, it pays", "eagle3 k=3", id="what is unknown says nothing"),
    ],
)
def test_the_answer_is_a_word_and_a_sentence(verdicts: list[dict[str, Any]], word: str, sentence: str) -> None:
    told = headline(verdicts)

    assert told.word == word
    assert sentence in told.sentence


def test_the_answer_of_a_run_that_goes_on_is_one_so_far() -> None:
    assert headline([verdict("yes")], is_whole=False).word == "Yes, it pays, so far"


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two runs with limits on latency, 30 ms a token; in the second the draft's steps take longer, but still hold."""
    folders = []
    for name, step_ms in (("before", 20.0), ("after", 25.0)):
        cell = point("ngram", slo_tpot_s=0.03)
        folders.append(record(tmp_path_factory.mktemp("limited") / name, *pair(cell, step_ms)))
    return folders[0], folders[1]


def test_what_limits_on_latency_allow_is_said_and_drawn(limited: tuple[Path, Path]) -> None:
    """8 requests in 500 ms, and in 1000 ms without speculation; all of them meet the limit."""
    findings = find([limited[0]])

    [told] = [sentence for sentence in summary(findings) if sentence.startswith("**Within limits**")]
    assert "30 ms a token, for 90% of requests" in told
    assert "ngram k=3 serves 16.00 requests/s at concurrency 1; without speculation 8.00 requests/s" in told
    assert 'id="goodput"' in html_page(findings)


def test_of_two_runs_the_page_begins_with_what_changed(limited: tuple[Path, Path]) -> None:
    """A step of 25 ms after one of 20: a user's speed is 0.8 of what it was."""
    text = html_of(limited, changes_between(*limited))

    assert "What changed from before to after" in text
    assert '<td class="slower">0.80× [0.80, 0.80]</td>' in text
    assert text.index('id="changes"') < text.index('id="answers"')


# ------------------------------------------------------------------------------------------------------- in a browser
@needs_chromium
def test_limits_and_changes_are_drawn_and_the_console_is_silent(limited: tuple[Path, Path], tmp_path: Path) -> None:
    page = tmp_path / "changes.html"
    page.write_text(html_of(limited, changes_between(*limited)), encoding="utf-8")

    seen = look(page, "return document.querySelectorAll('#goodput svg [data-mark=dot] > *').length", width=390)

    assert (seen.console, seen.told) == ([], 2)


DRAWN = f"""
return {{
  drawn: {list(SECTIONS)}.map((id) => document.querySelectorAll(`#${{id}} .plot svg [data-mark]`).length > 0),
  wide: Math.max(0, document.documentElement.scrollWidth - innerWidth),
  rows: document.querySelectorAll("#table tbody tr").length,
  broken: (document.body.innerText.match(/NaN|undefined|\\[object|Infinity/g) ?? []).length,
}};"""


@needs_chromium
@pytest.mark.parametrize(
    ("width", "is_dark"),
    [pytest.param(1200, False, id="light"), pytest.param(1200, True, id="dark"), pytest.param(390, False, id="on a phone")],
)
def test_every_section_is_drawn_within_the_width_and_the_console_is_silent(page: Path, width: int, is_dark: bool) -> None:
    seen = look(page, DRAWN, width=width, is_dark=is_dark)

    assert seen.console == []
    assert seen.told == {"drawn": [True] * len(SECTIONS), "wide": 0, "rows": 6, "broken": 0}


@needs_chromium
def test_choices_change_what_is_drawn_and_what_is_downloaded(page: Path) -> None:
    seen = look(
        page,
        """
        const dots = () => document.querySelectorAll("#speedup [data-mark=dot] > *").length;
        const before = dots();
        document.querySelector('[data-draft="ngram k=3"]').click();
        const after = dots(), rows = document.querySelectorAll("#table tbody tr").length;
        const every = [...document.querySelectorAll("#table select")][0];
        every.selectedIndex = 1; every.dispatchEvent(new Event("change"));
        const category = [...document.querySelectorAll("#speedup select")].at(-1);
        category.selectedIndex = 1; category.dispatchEvent(new Event("change"));
        return {before, after, rows, csv: csv(), label: document.querySelector("#speedup svg").getAttribute("aria-label")};
        """,
    )

    assert seen.console == []
    assert (seen.told["before"], seen.told["after"], seen.told["rows"]) == (4, 2, 4)
    table = list(csv.DictReader(io.StringIO(seen.told["csv"])))
    assert len(table) == 8
    assert {row["draft"] for row in table} == {"none", "eagle3 k=7"}
    assert {row["isl"] for row in table} == {"512", "2048"}
    assert float(next(row["user_tps_ratio"] for row in table if row["draft"] != "none")) == pytest.approx(4 / 3, rel=0.02)
    assert seen.told["label"].startswith("Speed-up of a user's speed")


@needs_chromium
@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
def test_nothing_keeps_anyone_from_reading_it(page: Path, is_dark: bool) -> None:
    source = axe()
    if source is None:
        pytest.skip("axe-core is not installed (pip install axe-core-python)")
    page.write_text(
        page.read_text(encoding="utf-8").replace("</body>", f"<script>{source}</script></body>"), encoding="utf-8"
    )

    seen = look(
        page,
        """for (const part of document.querySelectorAll("details")) part.open = true;
        const {violations, passes} = await axe.run();
        return {faults: violations.filter(({impact}) => ["serious", "critical"].includes(impact))
          .map(({id, nodes}) => `${id}: ${nodes[0].html} ${nodes[0].failureSummary}`), passes: passes.length};""",
        is_dark=is_dark,
    )

    assert seen.told["faults"] == []
    assert seen.told["passes"] > 20


@needs_chromium
def test_it_opens_in_two_seconds_with_two_thousand_cells(read: Findings, tmp_path: Path) -> None:
    findings = read
    many = {
        name: [
            {**row, "isl": 100 * n, "condition": f"{n}{row['condition']}"}
            for n in range(1, 168)
            for row in getattr(findings, name)
        ]
        for name in ("drafts", "by_category")
    }
    page = tmp_path / "report.html"
    page.write_text(html_page(replace(findings, **many)), encoding="utf-8")

    took = [look(page, "return Number(document.documentElement.dataset.drawn)", is_timed=True) for _ in range(3)]

    assert len(many["drafts"]) > 2000
    assert [seen.console for seen in took] == [[], [], []]
    assert min(seen.told for seen in took) < 2000
