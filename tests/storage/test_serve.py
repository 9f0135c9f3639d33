"""The page over all runs: what it lists, opens and compares, and whom it answers."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from recorded import create_cell, create_request, create_row, create_session, record
from served import Served, serving

from storage.errors import BadInput
from storage.rows import CellResult, SessionRow
from storage.runs import RunStore
from storage.serve.__main__ import TOKEN, token_for
from storage.serve.guard import Door
from storage.serve.pages import Limits
from storage.serve.summary import FINISHED, QUIET_S, RUNNING, STOPPED, committed, state_of

ROOT = Path(__file__).resolve().parents[2]
TOLD = "a-token-of-the-tests"


def cells(gap_ms: float, *, failed: bool = False) -> list[CellResult | SessionRow]:
    """A baseline and a draft with twelve prompts each, and a cell that failed where that is asked for."""
    results: list[CellResult | SessionRow] = []
    for method, k, gap in (("none", 0, 40.0), ("ngram", 3, gap_ms)):
        row = create_row(create_cell(method, k))
        results += [
            CellResult(row, [create_request(row, n, gaps_ms=(100.0, gap, gap)) for n in range(12)]),
            create_session(row),
        ]
    if failed:
        results.append(CellResult(create_row(create_cell("ngram", 5), status="failed", error_kind="out_of_memory")))
    return results


def asked(n_cells: int, day: int = 1) -> str:
    return f'invocation:\n  started_at: "2026-01-0{day}T10:00:00+00:00"\n  n_cells: {n_cells}\n'


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs, of which one lacks a cell; one that is torn; and what is no run."""
    folder = tmp_path_factory.mktemp("results")
    record(folder / "before", *cells(20), sweep=asked(2))
    record(folder / "after", *cells(30), sweep=asked(2, day=2))
    record(folder / "half <b>", *cells(20, failed=True), sweep=asked(8, day=3))
    torn = record(folder / "torn", *cells(20))
    next((torn / "cells").iterdir()).write_bytes(b"PAR1 and no more PAR1")
    (folder / "notes").mkdir()
    (folder.parent / "secret").mkdir()
    record(folder.parent / "secret" / "run", *cells(20))
    return folder


@pytest.fixture(scope="module")
def page(results: Path) -> Iterator[Served]:
    with serving(results) as served:
        served.settled()
        yield served


def card(page: str, name: str) -> str:
    """What the list says of one run, without its elements."""
    (found,) = re.findall(rf'<li class="card run" data-run="{re.escape(name)}".*?</li>', page, re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", found).split())


# ------------------------------------------------------------------------------------------------------------- the list
def test_a_run_is_listed_with_its_time_state_cells_and_verdict(page: Served) -> None:
    told = card(page.get("/").text, "before")

    assert told.startswith("before started 2026-01-01 10:00 UTC, last cell 2026-01-01 00:00 finished 2 of 2 measured")
    assert "Yes, it pays. ngram k=3 serves a user 2.00× [2.00, 2.00] as fast" in told


def test_what_is_missing_or_failed_is_counted(page: Served) -> None:
    told = card(page.get("/").text, "half &lt;b&gt;")

    assert "stopped 2 of 8 measured, 1 failed" in told


def test_a_broken_run_is_a_line_of_the_list_and_the_others_stand(page: Served) -> None:
    told = page.get("/").text

    assert card(told, "torn").startswith("torn broken Every file of a run must be readable Parquet")
    assert re.findall('data-run="([^"]+)"', told) == ["half &lt;b&gt;", "after", "before", "torn"]


def test_an_empty_folder_says_how_to_begin(tmp_path: Path) -> None:
    with serving(tmp_path) as page:
        assert "There is no run yet" in page.get("/").text
        assert page.get("/sql", sql="FROM cells").status_code == 400


def test_progress_appears_as_it_is_committed(tmp_path: Path) -> None:
    with serving(tmp_path) as page, RunStore.create(tmp_path / "live", asked(2)) as store:
        assert "running 0 of 2 measured Nothing is measured yet" in card(page.wait_for("Nothing is measured"), "live")
        for result in cells(20):
            store.write(result)
        assert "running 2 of 2 measured" in card(page.wait_for("<strong>2</strong> of 2"), "live")
        store.close()
        assert "finished" in card(page.wait_for("finished"), "live")


def test_a_decision_is_something_new_too(tmp_path: Path) -> None:
    """The last ones of a search come after its last cell, and make the run whole."""
    with RunStore.create(tmp_path / "run", asked(2)):
        before = committed(tmp_path / "run")
        (tmp_path / "run/decisions").mkdir(exist_ok=True)
        (tmp_path / "run/decisions/one.parquet").touch()
        assert committed(tmp_path / "run") != before


@pytest.mark.parametrize(
    ("is_whole", "age_s", "state"),
    [
        pytest.param(True, 0, FINISHED, id="whole"),
        pytest.param(False, 0, RUNNING, id="something was recorded just now"),
        pytest.param(False, QUIET_S + 60, STOPPED, id="nothing for long"),
    ],
)
def test_a_run_of_another_machine_is_judged_by_what_it_records(
    tmp_path: Path, is_whole: bool, age_s: float, state: str
) -> None:
    run = record(tmp_path / "run", *cells(20))
    (run / ".lock").write_text("process 1 on another machine\n")
    then = time.time() - age_s
    for path in (run, *run.iterdir()):
        os.utime(path, (then, then))

    assert state_of(run, is_whole=is_whole) == state


# --------------------------------------------------------------------------------------------- reports and comparisons
def test_a_report_opens_and_is_shut_off_from_the_other_pages(page: Served) -> None:
    report = page.get("/report/before")

    assert report.status_code == 200
    assert "Is speculative decoding worth it?" in report.text
    assert report.headers["content-security-policy"].startswith("sandbox allow-scripts allow-downloads;")


def test_the_report_of_a_broken_run_is_one_line(page: Served) -> None:
    report = page.get("/report/torn")

    assert report.status_code == 400
    assert "Every file of a run must be readable Parquet" in report.text


def test_two_runs_are_compared(page: Served) -> None:
    told = page.get("/compare?run=after&run=before").text

    text = " ".join(re.sub(r"<[^>]+>", " ", told).split())
    assert "regressions beyond noise, 0 gains" in text
    assert "user TPS ngram k=3 small on " in text
    assert "0.67× [0.67, 0.67]" in text


@pytest.mark.parametrize(
    ("names", "message"),
    [
        pytest.param(["before"], "Two runs are compared: got 1.", id="one"),
        pytest.param(["before", "before"], "Two runs are compared: got 1.", id="the same twice"),
        pytest.param(["before", "after", "torn"], "Two runs are compared: got 3.", id="three"),
        pytest.param(["before", "gone"], "A run must be in ", id="one that is not there"),
    ],
)
def test_a_comparison_of_anything_else_is_one_line(page: Served, names: list[str], message: str) -> None:
    answer = page.get("/compare", run=names)

    assert answer.status_code == 400
    assert message in answer.text


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("/report/..%2Fsecret%2Frun", id="encoded"),
        pytest.param("/report/../secret/run", id="plain"),
        pytest.param("/report/%2e%2e", id="the folder above"),
        pytest.param("/report/..%5Csecret", id="backslash"),
        pytest.param("/compare?run=before&run=../secret/run", id="in a comparison"),
        pytest.param("/sql?sql=FROM+cells&run=../secret/run", id="in SQL"),
        pytest.param("/sql?sql=FROM+cells&run=*", id="a pattern"),
        pytest.param("/page/../pages.py", id="the page's own code"),
        pytest.param("/report/before%00", id="a null"),
    ],
)
def test_no_name_leads_out_of_the_folder(page: Served, path: str) -> None:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", page.port, timeout=200)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        content = answer.read()

    assert answer.status in (400, 404)
    assert not re.search(b"<table|Is speculative decoding worth it|import ", content)


# ------------------------------------------------------------------------------------------------------- who is answered
@pytest.mark.parametrize(
    ("host", "status"),
    [
        pytest.param("127.0.0.1:1", 200, id="another port, as a tunnel has"),
        pytest.param("localhost", 200, id="localhost"),
        pytest.param("LocalHost:80", 200, id="in other letters"),
        pytest.param("[::1]:8280", 200, id="IPv6"),
        pytest.param("evil.example", 421, id="another name for our address"),
        pytest.param("localhost.evil.example", 421, id="a name that begins like ours"),
        pytest.param("127.0.0.1.evil.example:8280", 421, id="a name that begins like an address"),
        pytest.param("evil@127.0.0.1.x", 421, id="a user in it"),
        pytest.param("[", 421, id="no name"),
        pytest.param("", 421, id="none"),
    ],
)
def test_only_our_own_names_are_answered(page: Served, host: str, status: int) -> None:
    assert page.get("/serve.css", headers={"Host": host}).status_code == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        pytest.param({}, 200, id="no browser"),
        pytest.param({"Sec-Fetch-Site": "none", "Sec-Fetch-Dest": "document"}, 200, id="typed"),
        pytest.param({"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Dest": "empty"}, 200, id="its own script"),
        pytest.param({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "document"}, 200, id="a link elsewhere"),
        pytest.param({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "image"}, 403, id="an image elsewhere"),
        pytest.param({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "iframe"}, 403, id="a frame elsewhere"),
        pytest.param({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Dest": "empty"}, 403, id="another port of this machine"),
    ],
)
def test_other_sites_may_link_here_and_no_more(page: Served, headers: dict[str, str], status: int) -> None:
    assert page.get("/serve.css", headers=headers).status_code == status


def test_every_answer_forbids_foreign_scripts_frames_and_copies(page: Served) -> None:
    for path in ("/", "/sql", "/nothing-here", "/report/gone"):
        headers = page.get(path).headers
        assert "script-src 'self'" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert (headers["x-content-type-options"], headers["cache-control"]) == ("nosniff", "no-store")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_it_is_only_read(page: Served, method: str) -> None:
    assert httpx.request(method, f"http://127.0.0.1:{page.port}/").status_code == 405


def test_with_a_token_nobody_else_is_let_in(results: Path) -> None:
    with serving(results, token=TOLD) as page:
        assert [page.get(path).status_code for path in ("/", "/rows", "/sql", "/serve.js", "/?token=wrong")] == [401] * 5
        assert page.get("/serve.css", headers={"Authorization": f"Bearer {TOLD}"}).status_code == 200
        assert page.get("/serve.css", headers={"Authorization": f"Bearer {TOLD}x"}).status_code == 401


def test_the_browser_keeps_the_token_and_its_history_does_not(results: Path) -> None:
    with serving(results, token=TOLD) as page, httpx.Client(base_url=f"http://127.0.0.1:{page.port}") as browser:
        first = browser.get("/sql", params={"token": TOLD, "sql": "SELECT 1"})

        assert (first.status_code, first.headers["location"]) == (303, "/sql?sql=SELECT+1")
        assert {"httponly", "samesite=lax"} <= set(first.headers["set-cookie"].lower().split("; "))
        assert browser.get("/serve.css").status_code == 200


def test_a_redirect_stays_here(results: Path) -> None:
    with serving(results, token=TOLD) as page:
        assert page.get(f"//evil.example/?token={TOLD}").headers["location"] == "/evil.example/"


@pytest.mark.parametrize(
    ("host", "is_wanted", "is_asked"),
    [
        pytest.param("127.0.0.1", False, False, id="loopback"),
        pytest.param("::1", False, False, id="loopback, IPv6"),
        pytest.param("localhost", True, True, id="loopback, wanted"),
        pytest.param("0.0.0.0", False, True, id="every address"),
        pytest.param("10.0.0.7", False, True, id="one address"),
        pytest.param("node7", False, True, id="a name"),
    ],
)
def test_a_token_is_asked_for_off_loopback(host: str, is_wanted: bool, is_asked: bool) -> None:
    first, second = (token_for(host, is_wanted=is_wanted) for _ in range(2))

    assert bool(first) == is_asked
    assert len(first) in (0, 32)
    assert (first != second) == is_asked
    assert (f"?token={first}" in Door(host, 80, first).address) == is_asked


def test_a_token_of_ones_own_may_not_be_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, "hunter2")
    with pytest.raises(BadInput, match="must be 16 plain characters or more: got 7 characters"):
        token_for("0.0.0.0", is_wanted=False)


def test_a_slow_question_keeps_nobody_waiting(results: Path) -> None:
    slow = "SELECT count(*) FROM range(1000000000000) a, range(1000) b"
    with serving(results, limits=Limits(seconds=3)) as page:
        page.settled()
        answers: list[int] = []
        askers = [
            threading.Thread(target=lambda: answers.append(page.get("/sql", sql=slow, run="before").status_code))
            for _ in range(3)
        ]
        for asker in askers:
            asker.start()
        assert page.get("/rows").status_code == 200
        assert answers == []
        for asker in askers:
            asker.join(60)
    assert answers == [400] * 3


# ------------------------------------------------------------------------------------------------------------ the command
def command(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "storage.serve", *words]
    return subprocess.run(
        line, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60, env={**os.environ, **environment}
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(["{folder}/none"], "The folder of the runs must exist: got ", id="no folder"),
        pytest.param(["{folder}", "--port", "70000"], "argument --port: must be 0 to 65535: got 70000", id="port"),
        pytest.param(["{folder}", "--port", "{taken}"], "--host and --port must be free and of this machine", id="taken"),
        pytest.param(["{folder}", "--host", "no.such.host.invalid"], "--host and --port must be free", id="host"),
        pytest.param(["{folder}", "--sql-seconds", "0"], "must be above 0 and at most 3600: got 0", id="seconds"),
        pytest.param(["{folder}", "--token"], f"{TOKEN} must be 16 plain characters or more: got 5", id="token"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_served(tmp_path: Path, words: list[str], message: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        places = {"folder": tmp_path, "taken": other.getsockname()[1]}
        done = command(*(word.format(**places) for word in words), **{TOKEN: "short" if "--token" in words else ""})

    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert message in done.stderr


def test_the_command_says_where_the_page_is_and_ends_well(results: Path) -> None:
    line = [sys.executable, "-m", "storage.serve", str(results), "--port", "0", "--token"]
    with subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = process.stdout.readline()
        found = re.search(r" is shown at (http://127\.0\.0\.1:\d+/)\?token=(\S{32}) ", told)
        assert found, told
        answer = httpx.get(f"{found[1]}serve.css", headers={"Authorization": f"Bearer {found[2]}"})
        process.send_signal(2)
        _, errors = process.communicate(timeout=30)

    assert (answer.status_code, process.returncode, errors) == (200, 0, "")
