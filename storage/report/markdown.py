"""Owns the report as one Markdown page. Does not own the numbers or the verdict's words."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Sequence

from storage.report.findings import Findings, command_of
from storage.report.reading import Row
from storage.report.verdict import by_setting, of_run, setting_name, setting_of, times, verdicts

SIMULATED = """> **SIMULATED.** These numbers come from the simulated engine: they are scripted,
> and say nothing about any model, engine or hardware."""

HOW_TO_READ = """\
AL = tokens a verify step. User TPS and TTFT are medians over requests, means over the valid repeats (least to most).
× = times the paired baseline, more is better, with its 95 % bootstrap interval over prompts; (n.s.) = not significant:
the interval holds 1, or there are fewer than 6 prompts; (invalid) = no claim rests on it.
Lossless = share of greedy answers that equal the baseline's, beside the baseline's own repeat. Of sampled answers
(temperature above 0): whether they are drawn as the baseline's are, by paired tests; "differs" = they are not."""

DRAFT_COLUMNS = (
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
)
MEMORY_LABELS = ("deployment", "draft", "node")
MEMORY = (
    ("kv_capacity_tokens", "KV tokens"),
    ("kv_lost_tokens", "lost"),
    ("kv_lost_share", "lost %"),
    ("weights_bytes", "weights MiB"),
    ("draft_weights_bytes", "draft MiB"),
    ("peak_memory_bytes", "peak MiB"),
    ("draft_peak_bytes", "peak more MiB"),
)
"""Column of the view `memory` → its head."""
PROBLEM_COLUMNS = ("cell", "draft", "repeat", "status", "reasons", "error")
SESSION_COLUMNS = ("session", "draft", "kind", "error", "log")
ENVIRONMENT_COLUMNS = ("engine", "node", "host", "GPUs", "versions", "commit")


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
    yield _count(findings)
    yield from _by_draft(findings)
    yield from _by_category(findings)
    yield from _memory(findings)
    yield from _problems(findings)
    yield from _environment(findings)
    yield from _reproduce(findings)


def _count(findings: Findings) -> str:
    measured = findings.n_cells - findings.n_invalid
    rest = f"; {findings.n_invalid} failed or invalid, listed below" if findings.n_invalid else ""
    return f"{measured} of {findings.n_cells} cells are measured and valid{rest}."


def _by_draft(findings: Findings) -> Iterator[str]:
    yield from ("", "## By draft", "", HOW_TO_READ)
    for drafts in by_setting(findings.drafts):
        yield from ("", f"### {_title(drafts[0], findings)}", "")
        yield from table(DRAFT_COLUMNS, (_draft_cells(row) for row in drafts))


def _title(row: Row, findings: Findings) -> str:
    return setting_name(row) + (f" ({row['run']})" if len(findings.folders) > 1 else "")


def _draft_cells(row: Row) -> Iterable[str]:
    return (
        row["load"],
        row["draft"] + "".join(f" ({kind})" for kind in ("simulated", "synthetic") if row[kind]),
        number(row["al"]),
        _with_spread(row["user_tps_p50"], row["user_tps_min"], row["user_tps_max"]),
        times(row["user_tps"]),
        times(row["output_tps"]),
        number(row["ttft_ms_p50"], 1),
        times(row["ttft"]),
        times(row["e2e"]),
        _lossless(row),
        f"{row['n_ok']}" + (f" ({row['n_valid']} valid)" if row["n_valid"] != row["n_ok"] else ""),
    )


def _with_spread(mean: float | None, least: float | None, most: float | None) -> str:
    """The mean over the repeats, and the least and the most where there are several."""
    return number(mean, 1) + (f" ({number(least, 1)} to {number(most, 1)})" if least != most else "")


def _lossless(row: Row) -> str:
    differs = " (differs)" if row["outputs"] == "differs" else ""
    if row["lossless"] is None:
        return "differs" if differs else row["outputs"] or "-"
    own = row["baseline_lossless"]
    return (
        f"{row['lossless']:.1%}"
        + (f" (baseline {own:.1%})" if row["method"] != "none" and own is not None else "")
        + differs
    )


def _by_category(findings: Findings) -> Iterator[str]:
    if findings.by_category:
        yield from ("", "## By category", "", "User TPS × (AL); the best and the worst category of each draft are marked.")
    for rows in by_setting(findings.by_category):
        yield from ("", f"### {_title(rows[0], findings)}", "")
        columns: dict[str, dict[str, Row]] = {}
        for row in rows:
            columns.setdefault(f"{row['draft']}, {row['load']}", {})[row["category"]] = row
        categories = sorted({row["category"] for row in rows})
        yield from table(("category", *columns), _category_rows(categories, list(columns.values())))


def _category_rows(categories: Sequence[str], columns: Sequence[dict[str, Row]]) -> Iterator[Iterable[str]]:
    marks = [_marks(list(column.values())) for column in columns]
    for category in categories:
        cells = (
            _category_cell(column.get(category), mark.get(category, "")) for column, mark in zip(columns, marks, strict=True)
        )
        yield (category, *cells)


def _marks(rows: Sequence[Row]) -> dict[str, str]:
    """category → how it is marked: the best and the worst, where they differ."""
    ranked = sorted((row for row in rows if row["ratio"] and row["valid"]), key=lambda row: row["ratio"])
    if not ranked or ranked[0]["ratio"] == ranked[-1]["ratio"]:
        return {}
    return {ranked[0]["category"]: " worst", ranked[-1]["category"]: " **best**"}


def _category_cell(row: Row | None, mark: str) -> str:
    return "-" if row is None else f"{times(row)} ({number(row['al'])}){mark}"


def _memory(findings: Findings) -> Iterator[str]:
    """What each draft takes from the KV cache and needs itself; nothing where no engine tells."""
    told = [row for row in findings.memory if any(row[name] is not None for name, _ in MEMORY)]
    if told:
        yield from (
            "",
            "## Memory",
            "",
            "Lost and more = against the start without a draft on the same node, or on one like it.",
            "",
        )
        yield from table((*MEMORY_LABELS, *(head for _, head in MEMORY)), (_memory_cells(row, findings) for row in told))


def _memory_cells(row: Row, findings: Findings) -> Iterable[str]:
    yield from (
        of_run(f"{row['model']} on {row['engine']}" + (f", {row['variant']}" if row["variant"] else ""), row, findings),
        row["draft"] + (f" k={row['k']}" if row["k"] else ""),
        row["node"] or "-",
    )
    for name, head in MEMORY:
        value = row[name]
        scaled = None if value is None else value / (1 << 20) if "MiB" in head else 100 * value if "%" in head else value
        yield number(scaled, 1 if "%" in head else 0)


def _problems(findings: Findings) -> Iterator[str]:
    if findings.problems:
        yield from ("", "## Failed or invalid", "")
        yield from table(PROBLEM_COLUMNS, (_problem_cells(row, findings) for row in findings.problems))
    if findings.remedies:
        yield ""
        yield from table(("reason", "rule", "what to do"), (tuple(row.values()) for row in findings.remedies))
    lost = [row for row in findings.sessions if row["status"] != "ok" or row["error"]]
    if lost:
        yield from ("", "## Sessions that failed", "")
        yield from table(SESSION_COLUMNS, (_session_cells(row, findings) for row in lost))


def _session_cells(row: Row, findings: Findings) -> Iterable[str]:
    deployment = json.loads(row["deployment_json"] or "{}")
    draft = deployment.get("draft", {})
    drafted = (draft.get("name") or draft.get("method", "")) + (f" k={draft['k']}" if draft.get("k") else "")
    return (
        of_run(f"`{row['session_id']}`", row, findings),
        drafted,
        row["error_kind"],
        first_line(row["error"]),
        row["log"],
    )


def _problem_cells(row: Row, findings: Findings) -> Iterable[str]:
    cell = f"`{row['cell_id']}` {setting_of(row, findings)}, {row['load']}"
    return (cell, row["draft"], str(row["repeat"]), row["status"], ", ".join(row["reasons"]), first_line(row["error"]))


def _environment(findings: Findings) -> Iterator[str]:
    yield from ("", "## Environment", "")
    yield from table(ENVIRONMENT_COLUMNS, environment_rows(findings))


def environment_rows(findings: Findings) -> list[tuple[str, ...]]:
    """Of each engine and node, once: what `ENVIRONMENT_COLUMNS` names."""
    return list(dict.fromkeys(tuple(_environment_cells(row)) for row in findings.sessions))


def _environment_cells(session: Row) -> Iterable[str]:
    engine = json.loads(session["deployment_json"] or "{}").get("engine", {}).get("name", "")
    gpus = json.loads(session["gpus_json"] or "[]")
    return (
        f"{engine} {session['engine_version'] or ''}".strip() + (" SIMULATED" if session["simulated"] else ""),
        session["node"] or "-",
        _listed(json.loads(session["host_json"] or "{}")),
        "; ".join(_listed(gpu) for gpu in gpus) or "none",
        _listed(json.loads(session["versions_json"] or "{}")),
        (session["git_commit"] or "-")[:12] + (" (with changes)" if session["git_dirty"] else ""),
    )


def _listed(facts: Row) -> str:
    return ", ".join(f"{key} {value}" for key, value in facts.items() if value not in (None, "", [], {})) or "-"


def _reproduce(findings: Findings) -> Iterator[str]:
    folders = shlex.join(str(folder) for folder in findings.folders)
    yield from ("", "## Reproduce and look closer", "", "```")
    yield from filter(None, (command_of(folder) for folder in findings.folders))
    yield f'python -m storage.query {folders} "FROM cells"'
    yield f"python -m storage.query {folders} \"FROM draft_speedups WHERE metric = 'user_tps' ORDER BY ratio DESC\""
    yield f'python -m storage.query {folders} "FROM acceptance ORDER BY cell_id, position"'
    yield f"python -m storage.query {folders}    # a shell, with all views listed"
    yield f"python -m storage.report {folders} -o report.md"
    yield from ("```", "", "Every number above is computed from the recorded rows by `storage/views/`.")


def table(head: Sequence[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """A Markdown table; a bar inside a value is escaped."""
    yield "| " + " | ".join(head) + " |"
    yield "| " + " | ".join("---" for _ in head) + " |"
    for row in rows:
        yield "| " + " | ".join(value.replace("|", "\\|").replace("\n", " ") for value in row) + " |"


def number(value: float | None, digits: int = 2) -> str:
    """The value with that many decimals, or a dash."""
    return "-" if value is None else f"{value:.{digits}f}"


def first_line(text: str | None) -> str:
    """The first line that says something."""
    return next((line for line in (text or "").splitlines() if line.strip()), "")
