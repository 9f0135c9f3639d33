"""Owns the report as one Markdown page. Does not own the numbers or the verdict's words."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from storage.report.findings import Findings, Row, command_of
from storage.report.verdict import by_setting, setting_name, times, verdicts

SIMULATED = "> **SIMULATED.** These numbers come from the simulated engine: they are scripted, and say nothing about any model, engine or hardware."


def page(findings: Findings) -> str:
    """The whole report."""
    return "\n".join(_lines(findings)).rstrip() + "\n"


def _lines(findings: Findings) -> Iterator[str]:
    names = ", ".join(folder.resolve().name for folder in findings.folders)
    yield from (f"# Is speculative decoding worth it? {names}", "")
    if findings.simulated:
        yield from (SIMULATED, "")
    for sentence in verdicts(findings):
        yield from (sentence, "")
    yield from (_count(findings), "")
    yield from _by_draft(findings)
    yield from _by_category(findings)
    yield from _problems(findings)
    yield from _environment(findings)
    yield from _reproduce(findings)


def _count(findings: Findings) -> str:
    measured = findings.n_cells - findings.n_invalid
    rest = f"; {findings.n_invalid} failed or invalid, listed below" if findings.n_invalid else ""
    return f"{measured} of {findings.n_cells} cells are measured and valid{rest}."


def _by_draft(findings: Findings) -> Iterator[str]:
    yield from ("## By draft", "")
    yield (
        "AL = tokens a verify step; user TPS and TTFT are medians over requests, means over repeats; × = times the paired baseline, more is "
        "better, with its 95 % bootstrap interval over prompts; (n.s.) = not significant. Lossless = share of greedy answers that equal the "
        "baseline's, beside the baseline's own repeat."
    )
    for drafts in by_setting(findings.drafts):
        yield from (
            "",
            f"### {setting_name(drafts[0])}" + (f" ({drafts[0]['run']})" if len(findings.folders) > 1 else ""),
            "",
        )
        yield from table(
            (
                "load",
                "draft",
                "AL",
                "user TPS",
                "user TPS ×",
                "output TPS ×",
                "TTFT ms",
                "TTFT ×",
                "E2E ×",
                "lossless",
                "repeats",
            ),
            (_draft_row(row) for row in drafts),
        )
    yield ""


def _draft_row(row: Row) -> Iterable[str]:
    return (
        row["load"],
        row["draft"] + (" (simulated)" if row["simulated"] else ""),
        number(row["al"]),
        number(row["user_tps_p50"], 1),
        times(row["user_tps"]),
        times(row["output_tps"]),
        number(row["ttft_ms_p50"], 1),
        times(row["ttft"]),
        times(row["e2e"]),
        _lossless(row),
        f"{row['n_ok']}" + (f" ({row['n_valid']} valid)" if row["n_valid"] != row["n_ok"] else ""),
    )


def _lossless(row: Row) -> str:
    if row["lossless"] is None:
        return "-"
    own = row["baseline_lossless"]
    return f"{row['lossless']:.1%}" + (f" (baseline {own:.1%})" if row["method"] != "none" and own is not None else "")


def _by_category(findings: Findings) -> Iterator[str]:
    for setting, rows in by_setting(findings.by_category):
        yield from (f"## By category: {setting_name(setting)}", "")
        drafts = list(dict.fromkeys(row["draft"] for row in rows))
        cells = {(row["draft"], row["category"]): row for row in rows}
        extremes = {draft: _extremes([row for row in rows if row["draft"] == draft]) for draft in drafts}
        yield from table(
            ("category", *(f"{draft}: user TPS × (AL)" for draft in drafts)),
            (
                (category, *(_category_cell(cells.get((draft, category)), extremes[draft]) for draft in drafts))
                for category in sorted({row["category"] for row in rows})
            ),
        )
        yield ""


def _extremes(rows: Sequence[Row]) -> dict[str, str]:
    ranked = sorted((row for row in rows if row["ratio"]), key=lambda row: row["ratio"])
    return {ranked[0]["category"]: " worst", ranked[-1]["category"]: " **best**"} if len(ranked) > 1 else {}


def _category_cell(row: Row | None, extremes: dict[str, str]) -> str:
    return "-" if row is None else f"{times(row)} ({number(row['al'])}){extremes.get(row['category'], '')}"


def _problems(findings: Findings) -> Iterator[str]:
    if not findings.problems:
        return
    yield from ("## Failed or invalid", "")
    yield from table(
        ("cell", "draft", "repeat", "status", "reasons", "error"),
        (
            (
                f"`{row['cell_id']}` {setting_name(row)}",
                row["draft"],
                str(row["repeat"]),
                row["status"],
                ", ".join(row["reasons"]),
                first_line(row["error"]),
            )
            for row in findings.problems
        ),
    )
    yield ""


def _environment(findings: Findings) -> Iterator[str]:
    yield from ("## Environment", "")
    yield from table(
        ("engine", "node", "host", "GPUs", "versions", "commit"),
        dict.fromkeys(tuple(_environment_row(row)) for row in findings.sessions),
    )
    yield ""


def _environment_row(session: Row) -> Iterable[str]:
    commit = (session["git_commit"] or "-")[:12] + (" (with changes)" if session["git_dirty"] else "")
    engine = _at(session["deployment_json"], "engine").get("name", "")
    return (
        f"{engine} {session['engine_version']}".strip() + (" SIMULATED" if session["simulated"] else ""),
        session["node"] or "-",
        _listed(json.loads(session["host_json"] or "{}")),
        "; ".join(_listed(gpu) if isinstance(gpu, dict) else str(gpu) for gpu in json.loads(session["gpus_json"] or "[]"))
        or "none",
        _listed(json.loads(session["versions_json"] or "{}")),
        commit,
    )


def _at(text: str | None, key: str) -> Row:
    value = json.loads(text or "{}").get(key, {})
    return value if isinstance(value, dict) else {}


def _listed(facts: Row) -> str:
    return ", ".join(f"{key} {value}" for key, value in facts.items() if value not in (None, "", [], {})) or "-"


def _reproduce(findings: Findings) -> Iterator[str]:
    yield from ("## Reproduce and look closer", "", "```")
    for folder in findings.folders:
        if command := command_of(folder):
            yield command
    folders = " ".join(str(folder) for folder in findings.folders)
    yield f'python -m storage.query {folders} "FROM cells"'
    yield f"""python -m storage.query {folders} "FROM draft_speedups WHERE metric = 'user_tps' ORDER BY ratio DESC" """.rstrip()
    yield f'python -m storage.query {folders} "FROM acceptance ORDER BY cell_id, position"'
    yield f"python -m storage.query {folders}    # a shell, with all views listed"
    yield f"python -m storage.report {folders} -o report.md"
    yield from ("```", "", "Every number above is computed from the recorded rows by `storage/views.sql`.")


def table(head: Sequence[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """A Markdown table; a bar inside a value is escaped."""
    yield "| " + " | ".join(head) + " |"
    yield "| " + " | ".join("---" for _ in head) + " |"
    for row in rows:
        yield "| " + " | ".join(value.replace("|", "\\|").replace("\n", " ") for value in row) + " |"


def number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def first_line(text: str | None) -> str:
    return next((line for line in (text or "").splitlines() if line.strip()), "")
