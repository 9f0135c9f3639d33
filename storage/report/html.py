"""Owns the report as one HTML file that needs no network. Does not own what its script draws, or the words of verdicts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from storage.report.between import COLUMNS, HOW_TO_READ, Change, listed_parts, summary_of
from storage.report.details import Details
from storage.report.findings import Findings, command_of
from storage.report.headline import Headline, headline, question_of, ratio_of
from storage.report.html_data import page_data
from storage.report.markdown import ENVIRONMENT_COLUMNS, environment_rows, first_line, number
from storage.report.reading import Row
from storage.report.verdict import goodputs, setting_name, setting_of, times, verdicts

PAGE = Path(__file__).parent / "page"
SCRIPTS = ("vendor/d3-7.9.2.min.js", "vendor/plot-0.6.17.umd.min.js", "data.js", "charts.js", "details.js", "table.js")
BARE = {"entropy": "", "isl": 0, "batch": 1, "variant": ""}  # what a question holds over
MAX_LISTED = 50  # cells of one reason; the rest is a count


def html_page(findings: Findings, changes: Sequence[Change] = ()) -> str:
    """The whole page, with its styles, its script, the libraries and the data inside; of two runs also what changed."""
    details = findings.details
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(PAGE),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    templates.filters["number"] = number
    return templates.get_template("report.html.j2").render(
        names=", ".join(folder.resolve().name for folder in findings.folders),
        answer=(answer := headline(details.verdicts, is_whole=findings.is_whole)),
        measured=_measured(findings),
        changes=_changes(changes),
        answers=_said_once([_answer(row, details.verdicts) for row in details.verdicts]),
        sentences=[_emphasised(sentence) for sentence in verdicts(findings)],
        facts=list(_facts(answer, findings)),
        facts_of=_facts_of(answer, details.verdicts),
        checklist=_by_question(details.checklist),
        warnings=findings.warnings,
        goodputs=[_emphasised(sentence) for sentence in goodputs(findings)],
        findings=findings,
        runs=findings.runs,
        crossings=_crossings(details.crossovers),
        has=_sections(findings, details),
        reasons=_reasons(findings),
        environment=(ENVIRONMENT_COLUMNS, environment_rows(findings)),
        commands=[command for folder in findings.folders if (command := command_of(folder))],
        style=Markup((PAGE / "report.css").read_text(encoding="utf-8")),
        scripts=[Markup((PAGE / name).read_text(encoding="utf-8")) for name in SCRIPTS],
        data=_embedded(page_data(findings)),
    )


def _measured(findings: Findings) -> str:
    """What all of it holds for: settings and hardware, of several the first and how many more."""
    settings = [setting_name(row) for row in findings.drafts]
    places = [_hardware(row) for row in findings.sessions]
    return "; ".join(_first(words) for words in (settings, places) if words)


def _hardware(session: Row) -> str:
    host, gpus = json.loads(session["host_json"] or "{}"), json.loads(session["gpus_json"] or "[]")
    if gpus:
        return " + ".join(f"{n} × {name}" for name, n in Counter(gpu.get("name", "GPU") for gpu in gpus).items())
    return f"no GPU, {host.get('cores', '?')} cores of {host.get('cpu') or 'an unknown CPU'}"


def _first(words: Sequence[str]) -> str:
    first, *rest = dict.fromkeys(words)
    return f"{first} and {len(rest)} more" if rest else first


def _embedded(data: dict[str, Any]) -> Markup:
    """JSON that cannot end the element that it lies in."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))


def _emphasised(sentence: str) -> Markup:
    """`**so**` as `<strong>so</strong>`, everything else escaped."""
    parts = sentence.split("**")
    return Markup("").join(Markup("<strong>{}</strong>").format(part) if n % 2 else part for n, part in enumerate(parts))


def _answer(verdict: Row, verdicts: Sequence[Row]) -> dict[str, str]:
    """One row of `verdicts` in words."""
    where = [f"pays at {verdict['where_it_pays']}"] if verdict["where_it_pays"] else []
    where += [f"not at {verdict['where_it_does_not']}"] if verdict["where_it_does_not"] else []
    best = f"{verdict['best_draft']}, {ratio_of(verdict)} at {verdict['best_at']}" if verdict["best_draft"] else ""
    spread = f"{verdict['n_prompts']} prompts, {verdict['n_repeats']} {'repeat' if verdict['n_repeats'] == 1 else 'repeats'}"
    return {
        "question": question_of(verdict, verdicts),
        "metric": {"user_tps": "For a user's speed", "output_tps": "For the output of all users"}[verdict["metric"]],
        "answer": verdict["answer"],
        "word": _pill(verdict),
        "where": "; ".join(where),
        "best": best and f"{best} ({spread}; {verdict['best_verdict']})",
        "categories": ", ".join(verdict["categories_that_pay"] or ()),
        "costly_categories": ", ".join(verdict["categories_that_cost"] or ()),
        "why": verdict["why"] or "",
        "what_to_do": verdict["what_to_do"] or "",
    }


def _pill(verdict: Row) -> str:
    """The answer; a "no" within noise is no proof of a loss."""
    if verdict["answer"] != "no":
        return str(verdict["answer"])
    return "costs speed" if verdict["n_costing"] == verdict["n_places"] else "no gain shown"


def _said_once(answers: list[dict[str, str]]) -> list[dict[str, str]]:
    """Advice that repeats that of the answer before, of the same question, is left out."""
    before = [("", ""), *((row["question"], row["what_to_do"]) for row in answers)]
    return [
        {**row, "what_to_do": "" if (row["question"], row["what_to_do"]) == last else row["what_to_do"]}
        for row, last in zip(answers, before, strict=False)
    ]


def _changes(changes: Sequence[Change]) -> dict[str, Any] | None:
    """What got worse and better from one run to the other, as tables."""
    if not changes:
        return None
    return {
        "before": changes[0].row["before"]["run"],
        "after": changes[0].row["now"]["run"],
        "summary": summary_of(changes),
        "how": " ".join(HOW_TO_READ),
        "columns": COLUMNS,
        "parts": listed_parts(changes),
    }


def _by_question(checklist: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """The points of the checklist of each question."""
    groups: dict[str, list[Row]] = {}
    for row in checklist:
        groups.setdefault(f"{setting_name({**BARE, **row})} ({row['run']})", []).append(row)
    return list(groups.items())


def _facts_of(answer: Headline, verdicts: Sequence[Row]) -> str:
    """What the figures beside the answer are of; of several questions also which."""
    verdict = answer.best
    if not verdict or not verdict["best_draft"]:
        return ""
    asked = [row for row in verdicts if row["metric"] == verdict["metric"]]
    question = f" ({question_of(verdict, asked)})" if len(asked) > 1 else ""
    return f"{verdict['best_draft']} at {verdict['best_at']}, the best draft{question}"


def _facts(answer: Headline, findings: Findings) -> Iterator[tuple[str, str, str]]:
    """Head, value and note of the figures that stand beside the answer, of the draft that it rests on."""
    verdict = answer.best
    best = verdict and next((row for row in findings.drafts if _is_of(row, verdict)), None)
    if best:
        for metric, head in (
            ("user_tps", "A user's speed"),
            ("output_tps", "Output of all users"),
        ):
            if gain := best[metric]:
                yield head, f"{gain['ratio']:.2f}×", _interval(gain)
        if best["ttft_ms_p50"] is not None:
            base = next((row for row in findings.drafts if _is_baseline_of(row, best)), None)
            without = f"{base['ttft_ms_p50']:.0f} ms without, " if base and base["ttft_ms_p50"] is not None else ""
            told = _interval(best["ttft"]).rpartition(", ")[2] if best["ttft"] else ""
            yield "Time to first token", f"{best['ttft_ms_p50']:.0f} ms", f"{without}{told}".strip(", ")
        yield "Acceptance length", number(best["al"]), "tokens a verify step; 1 = nothing accepted"
        if best["lossless"] is not None:
            own = best["baseline_lossless"]
            note = "" if own is None else f" (baseline against itself {own:.0%})"
            yield "Same outputs", f"{best['lossless']:.0%}", f"of greedy answers{note}"
    invalid = f"{findings.n_invalid} failed or invalid" if findings.n_invalid else "none failed, none invalid"
    yield "Valid, of all cells", f"{findings.n_cells - findings.n_invalid} of {findings.n_cells}", invalid


def _is_of(row: Row, verdict: Row) -> bool:
    """Whether this row of `drafts` is the best draft of the verdict at its best place."""
    return (row["run"], row["deployment_id"], row["condition"]) == (
        verdict["run"],
        verdict["best_deployment_id"],
        verdict["best_condition"],
    )


def _is_baseline_of(row: Row, draft: Row) -> bool:
    return (row["run"], row["deployment_id"], row["condition"]) == (
        draft["run"],
        draft["baseline_deployment_id"],
        draft["condition"],
    )


def _interval(gain: Row) -> str:
    interval = times(gain).partition("×")[2].strip().replace(" (n.s.)", ", not significant")
    return f"{interval}, {'better' if gain['ratio'] > 1 else 'worse'}" if gain["significant"] else interval


def _sections(findings: Findings, details: Details) -> dict[str, bool]:
    """Which sections have something to show."""
    compared = [row for row in findings.drafts if row["user_tps"]]
    return {
        "speedup": bool(compared),
        "frontier": len(details.frontier) > 1,
        "goodput": bool(details.goodput),
        "heat": _is_grid(compared),
        "category": bool(findings.by_category),
        "positions": bool(details.positions),
        "timeline": bool(details.timelines),
        "memory": any(
            row["weights_bytes"] or row["peak_memory_bytes"] or row["kv_capacity_tokens"] for row in findings.memory
        ),
        "costs": bool(details.costs),
        "table": bool(findings.drafts),
    }


def _is_grid(compared: Sequence[Row]) -> bool:
    """At least two prompt lengths and two concurrencies."""
    closed = [row for row in compared if row["load_kind"] == "closed" and row["isl"]]
    return len({row["isl"] for row in closed}) > 1 and len({row["concurrency"] for row in closed}) > 1


def _crossings(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """What each draft's crossovers say, those of several settings that say the same as one; real crossings first."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in sorted(rows, key=lambda row: row["x"] is None):
        found.setdefault((row["draft"], _crossing(row)), []).append(_where_crossed(row))
    return [{"draft": draft, "told": told, "where": sorted(set(where))} for (draft, told), where in found.items()]


def _crossing(row: Row) -> str:
    axis = {"concurrency": "concurrency", "batch": "engine batch", "isl": "input tokens", "rate": "requests/s"}[row["axis"]]
    sure = "" if row["significant"] else " (n.s.)"
    if row["x"] is None:
        times = {"always": "faster at every", "never": "faster at no"}[row["answer"]]
        return f"{times} {axis} measured, {row['x_min']:g} to {row['x_max']:g}{sure}"
    ends = [f"{bound:.3g}" if bound is not None else "beyond" for bound in (row["x_low"], row["x_high"])]
    return f"{row['answer']} at {axis} {row['x']:.3g} [{', '.join(ends)}]{sure}"


def _where_crossed(row: Row) -> str:
    others = [f"{row['isl']} input tokens"] if row["isl"] else []
    others += [f"concurrency {row['concurrency']}"] if row["concurrency"] and row["axis"] != "concurrency" else []
    others += [row["variant"]] if row["variant"] else []
    return ", ".join([f"{row['model']} on {row['engine']}, {row['workload']}", *others])


def _reasons(findings: Findings) -> list[dict[str, Any]]:
    """Of each reason: its rule, what to do, and the cells that it holds for."""
    remedies = {row["reason"]: row for row in findings.remedies}
    found: dict[str, list[dict[str, str]]] = {}
    for row in findings.problems:
        cell = {
            "id": row["cell_id"],
            "where": f"{setting_of(row, findings)}, {row['load']}, {row['draft']}, repeat {row['repeat']}",
            "error": first_line(row["error"]),
        }
        for reason in row["reasons"] or [row["status"]]:
            found.setdefault(reason, []).append(cell)
    return [
        {
            "reason": reason.replace("_", " "),
            "rule": remedies.get(reason, {}).get("rule", ""),
            "remedy": remedies.get(reason, {}).get("remedy", ""),
            "cells": cells[:MAX_LISTED],
            "n": len(cells),
        }
        for reason, cells in sorted(found.items(), key=lambda item: -len(item[1]))
    ]
