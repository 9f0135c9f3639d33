"""The page over all runs in a real browser: silent, drawn, within a phone's width, usable by everyone, kept up to date."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import axe, needs_chromium
from recorded import create_cell, create_request, create_row, create_session, record
from served import Served, serving

from storage.rows import CellResult, SessionRow
from storage.runs import RunStore

SQL = "/sql?sql=SELECT+run,+draft,+al,+valid,+cell_id,+workload,+load,+NULL+AS+nothing+FROM+cells&run=before"
PAGES = [
    pytest.param("/", id="list"),
    pytest.param(SQL, id="answer"),
    pytest.param("/sql?sql=SELECT+nothing", id="mistake in SQL"),
    pytest.param("/compare?run=after&run=before", id="comparison"),
    pytest.param("/compare?run=after", id="mistake"),
]
pytestmark = needs_chromium


def cells(gap_ms: float) -> list[CellResult | SessionRow]:
    results: list[CellResult | SessionRow] = []
    for method, k, gap in (("none", 0, 40.0), ("ngram", 3, gap_ms)):
        row = create_row(create_cell(method, k))
        requests = [create_request(row, n, gaps_ms=(100.0, gap, gap)) for n in range(12)]
        results += [CellResult(row, requests), create_session(row)]
    return results


def asked(n_cells: int) -> str:
    return f'invocation:\n  started_at: "2026-01-01T10:00:00+00:00"\n  n_cells: {n_cells}\n'


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A run that is whole, one that lacks cells, and one that is torn."""
    folder = tmp_path_factory.mktemp("results")
    record(folder / "before", *cells(20), sweep=asked(2))
    record(folder / "after", *cells(30), sweep=asked(8))
    torn = record(folder / "torn-with-a-name-that-is-longer-than-a-phone-is-wide-and-has-no-space", *cells(20))
    next((torn / "cells").iterdir()).write_bytes(b"PAR1 and no more PAR1")
    with serving(folder) as served:
        served.settled()
        yield served


@pytest.mark.parametrize("path", ["/", "/report/before"])
def test_the_policy_lets_everything_in_that_the_page_needs(page: Served, path: str, tmp_path: Path) -> None:
    seen = page.visit(path, tmp_path)

    assert seen.console == []
    assert ("Nothing goes on." if path == "/" else "data-drawn=") in seen.dom


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_no_wider_than_a_phone_and_its_console_is_silent(page: Served, path: str, tmp_path: Path) -> None:
    script = """const whole = document.documentElement;
    return [whole.scrollWidth - whole.clientWidth, document.querySelector("h1").innerText !== ""];"""

    seen = page.look(page.get(path).text, script, tmp_path, width=390)

    assert seen.console == []
    assert seen.told == [0, True]


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("path", PAGES)
def test_nothing_keeps_anyone_from_using_it(page: Served, path: str, is_dark: bool, tmp_path: Path) -> None:
    source = axe()
    if source is None:
        pytest.skip("axe-core is not installed (pip install axe-core-python)")
    text = page.get(path).text.replace("</body>", f"<script>{source}</script></body>")

    seen = page.look(
        text,
        """for (const part of document.querySelectorAll("details")) part.removeAttribute("name"), part.open = true;
        const {violations, passes} = await axe.run();
        return {faults: violations.map(({id, nodes}) => `${id}: ${nodes[0].html} ${nodes[0].failureSummary}`),
                passes: passes.length};""",
        tmp_path,
        is_dark=is_dark,
    )

    assert seen.told["faults"] == []
    assert seen.told["passes"] > 15


def test_progress_appears_without_a_reload_and_what_was_chosen_stays_chosen(tmp_path: Path) -> None:
    results = tmp_path / "results"
    with RunStore.create(results / "live", asked(4)) as store, serving(results) as page:
        page.wait_for("Nothing is measured yet")
        before = page.get("/").text
        for result in cells(20):
            store.write(result)
        page.wait_for("serves a user")
        record(results / "new", *cells(20))
        page.settled()

        seen = page.look(
            before,
            """
                const text = () => document.querySelector("#runs").innerText.replace(/\\s+/g, " "), before = text();
                document.querySelector("[data-run=live] input").checked = true;
                document.querySelector("[data-run=live] a").focus();
                while (!text().includes("2 of 4")) await new Promise((done) => setTimeout(done, 100));
                return {before, after: text(), chosen: document.querySelector("[data-run=live] input").checked,
                        focused: document.activeElement.innerText, told: document.querySelector("#live").textContent};
                """,
            tmp_path,
        )

    assert seen.console == []
    assert "0 of 4 measured" in seen.told["before"]
    assert "running 2 of 4 measured Yes, it pays." in seen.told["after"]
    assert "new started" in seen.told["after"]
    assert (seen.told["chosen"], seen.told["focused"]) == (True, "live")
    assert seen.told["told"] == "1 run goes on; this page keeps itself up to date."


def test_a_page_whose_server_is_gone_says_so(page: Served, tmp_path: Path) -> None:
    text = page.get("/").text.replace("</head>", "<script>fetch = async () => { throw new Error('gone'); };</script></head>")

    seen = page.look(
        text,
        "await new Promise((done) => setTimeout(done, 16000)); return document.querySelector('#live').textContent",
        tmp_path,
    )

    assert seen.told == "The page's server does not answer. What you see may be old; asking again."


def test_a_statement_is_sent_with_the_keyboard(page: Served, tmp_path: Path) -> None:
    seen = page.look(
        page.get("/sql").text,
        """
        const sent = [], box = document.querySelector("textarea");
        box.form.addEventListener("submit", (event) => {
          event.preventDefault();
          sent.push(new FormData(box.form).get("sql"));
        });
        box.value = "FROM cells";
        for (const ctrlKey of [false, true]) box.dispatchEvent(new KeyboardEvent("keydown", {key: "Enter", ctrlKey}));
        return {sent, focused: document.activeElement === box};
        """,
        tmp_path,
    )

    assert seen.console == []
    assert seen.told == {"sent": ["FROM cells"], "focused": True}
