"""Owns the sentences that say whether speculation pays. Does not own the numbers, or the layout around them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from storage.report.findings import SETTING, Findings
from storage.report.headline import headline
from storage.report.reading import Row

SPREAD_WORTH_TELLING = 1.1  # times between the best and the worst category


def verdicts(findings: Findings) -> list[str]:
    """How far the run is, the answer over all, a sentence or two for each setting and load, and what to keep in mind."""
    places = _places(findings)
    told = [*_overall(findings, places), *places] or ["Nothing has been measured yet."]
    return [*_unfinished(findings), *told, *_asides(findings)]


def summary(findings: Findings) -> list[str]:
    """The same without the single places, where there are several: their table stands beside it."""
    places = _places(findings)
    told = list(_overall(findings, places)) or places or ["Nothing has been measured yet."]
    return [*_unfinished(findings), *told, *_asides(findings)]


def _places(findings: Findings) -> list[str]:
    return [
        _verdict(same_load, findings)
        for drafts in by_setting(findings.drafts)
        for same_load in _grouped(drafts, (*SETTING, "load"))
    ]


def _overall(findings: Findings, places: Sequence[str]) -> Iterator[str]:
    """The answer in one sentence, where there are several places; one place says it itself."""
    if len(places) > 1:
        answer = headline(findings.details.verdicts, is_whole=findings.is_whole)
        yield f"**{answer.word}**: {answer.sentence}"


def _asides(findings: Findings) -> Iterator[str]:
    yield from goodputs(findings)
    yield from (_inflation(row, findings) for row in findings.inflations)
    yield from _incomparable(findings)


def goodputs(findings: Findings) -> Iterator[str]:
    """What the limits on latency allow, for each setting and limits that cells were measured with."""
    settings = {place_of(row): row for row in findings.drafts}
    rows = [{**settings[place_of(row)], **row} for row in findings.details.goodput if place_of(row) in settings]
    for same in _grouped(rows, (*SETTING, "slo_ttft_s", "slo_tpot_s")):
        best = {kind: _served([row for row in same if (row["method"] == "none") is kind]) for kind in (True, False)}
        where = f"{setting_of(same[0], findings)}; {limits_of(same[0])}"
        yield f"**Within limits** ({where}): {best[False]}; without speculation {best[True]}."


def _served(rows: Sequence[Row]) -> str:
    """The most requests a second that one of these drafts serves within the limits."""
    if not rows:
        return "nothing valid was measured"
    best = max((row for row in rows if row["is_best"]), key=lambda row: float(row["goodput_rps"]), default=None)
    if best is None:
        return "no measured load meets them"
    draft = "" if best["method"] == "none" else f"{best['draft']} serves "
    return f"{draft}{best['goodput_rps']:.2f} requests/s at {best['load']}"


def limits_of(row: Row) -> str:
    """`first token within 0.5 s, 50 ms a token, for 90 % of requests`."""
    limits = [f"first token within {row['slo_ttft_s']:g} s"] if row["slo_ttft_s"] else []
    limits += [f"{1000 * row['slo_tpot_s']:g} ms a token"] if row["slo_tpot_s"] else []
    return ", ".join([*limits, f"for {row['min_slo_attainment']:.0%} of requests"])


def place_of(row: Row) -> tuple[str, str, str]:
    """What names a row of `drafts`."""
    return row["run"], row["deployment_id"], row["condition"]


def _unfinished(findings: Findings) -> Iterator[str]:
    """How far a run is that goes on, or was broken off: what is said below may change."""
    for row in findings.runs:
        if not row["is_whole"] and row["n_planned"]:
            yield f"**{row['progress'].capitalize()}** of {row['run']} are measured; what follows is of those."


def _incomparable(findings: Findings) -> Iterator[str]:
    """What differs, besides what was meant to, between cells that are compared or averaged."""
    for row in findings.warnings:
        if row["is_grave"] or row["difference"] in ("time", "drift"):
            yield f"**{'Not comparable' if row['is_grave'] else 'With care'}** ({row['run']}): {row['sentence']}."


def _inflation(row: Row, findings: Findings) -> str:
    """By how much random tokens mislead, beside real text of the same length: a pair of cells has no interval."""
    text = row["real_workload"] + (f" ({row['entropy']} entropy)" if row["entropy"] else "")
    setting = f"{row['model']} on {row['engine']}, {row['isl']} input tokens, {row['load']}"
    where = of_run(setting + (f", {row['variant']}" if row["variant"] else ""), row, findings)
    speed = f"a user gets {_inflated(row, 'user_tps', 'more tokens/s', 'fewer tokens/s')}"
    if row["method"] == "none":
        told = f"without speculation {speed}"
    else:
        told = f"with {row['draft']} AL is {_inflated(row, 'al', 'higher', 'lower')} and {speed}"
    valid = "" if row["valid"] else " Not all of these cells are valid."
    return f"**Random tokens beside real text** ({where}): {told} than with real text, {text} ({_pairs(row)}).{valid}"


def _pairs(row: Row) -> str:
    if row["n_pairs"] == 1:
        return "one pair of cells"
    spread = f"{100 * row['user_tps_inflation_min']:+.0f} to {100 * row['user_tps_inflation_max']:+.0f} %"
    return f"mean of {row['n_pairs']} pairs of cells, in tokens/s {spread}"


def _inflated(row: Row, metric: str, more: str, less: str) -> str:
    share, got, real = row[f"{metric}_inflation"], row[metric], row[f"real_{metric}"]
    if share is None:
        return "unknown"
    return f"{100 * abs(share):.0f} % {more if share >= 0 else less} ({got:.2f}, not {real:.2f})"


def by_setting(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """The rows of each setting, in order."""
    return _grouped(rows, SETTING)


def _grouped(rows: Sequence[Row], names: Sequence[str]) -> Iterator[list[Row]]:
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    return iter(groups.values())


def setting_name(row: Row) -> str:
    """`smollm2 on transformers, workload mini`, and what else is not the usual."""
    parts = [
        f"{row['model']} on {row['engine']}",
        f"workload {row['workload']}" + (f"/{row['split']}" if row["split"] else ""),
    ]
    parts += [f"{row['entropy']} entropy"] if row["entropy"] else []
    parts += [f"{row['isl']} input tokens"] if row["isl"] else []
    parts += [f"temperature {row['temperature']:g}"] if row["temperature"] else []
    parts += [str(row["dtype"])] if row["dtype"] not in ("auto", None) else []
    parts += [f"{name} {row[key]}" for name, key in (("TP", "tp"), ("batch", "batch")) if (row[key] or 1) > 1]
    parts += [row["variant"]] if row["variant"] else []
    return ", ".join(parts)


def setting_of(row: Row, findings: Findings) -> str:
    """`smollm2 on transformers, workload mini, run quickstart`."""
    return of_run(setting_name(row), row, findings)


def of_run(name: str, row: Row, findings: Findings) -> str:
    """The name of something; of several runs, with the one that it is of."""
    return f"{name}, run {row['run']}" if len(findings.folders) > 1 else name


def times(gain: Row | None) -> str:
    """`1.42× [1.31, 1.55]`, with a mark where that is no significant difference."""
    if gain is None or gain["ratio"] is None:
        return "-"
    interval = f" [{gain['ci_low']:.2f}, {gain['ci_high']:.2f}]" if gain["ci_low"] is not None else ""
    return (
        f"{gain['ratio']:.2f}×{interval}"
        + ("" if gain["significant"] else " (n.s.)")
        + ("" if gain["valid"] else " (invalid)")
    )


def _verdict(drafts: Sequence[Row], findings: Findings) -> str:
    setting = f"{setting_of(drafts[0], findings)}, {drafts[0]['load']}"
    compared = sorted((row for row in drafts if row["user_tps"]), key=lambda row: -row["user_tps"]["ratio"])
    if not compared:
        return f"**Nothing to compare** ({setting}): a speculative cell and its baseline must both be measured."
    judged = [row for row in compared if row["user_tps"]["valid"]]
    if not judged:
        return f"**Not judged** ({setting}): {_invalid(drafts)}."
    left_out = [row["draft"] for row in compared if row not in judged]
    unjudged = f" Not judged: {', '.join(left_out)}; {_invalid(drafts)}." if left_out else ""
    return _answer(judged, setting, findings) + unjudged


def _invalid(drafts: Sequence[Row]) -> str:
    n = sum(row["n_ok"] - row["n_valid"] for row in drafts if row["user_tps"] or row["method"] == "none")
    return f"{n} compared cells are invalid" if n != 1 else "1 compared cell is invalid"


def _answer(compared: Sequence[Row], setting: str, findings: Findings) -> str:
    """What the valid comparisons say, the highest first; a sure gain is worth more than a higher one within noise."""
    best = next((row for row in compared if row["user_tps"]["verdict"] == "faster"), compared[0])
    verdict = best["user_tps"]["verdict"]
    named = f"{best['draft']} serves a user {times(best['user_tps'])} as fast as without"
    if verdict == "faster":
        answer = f"**Speculative decoding pays** ({setting}): {named}"
    elif verdict == "slower":
        answer = f"**Speculative decoding does not pay** ({setting}): even the best draft, {named}"
    else:
        answer = f"**No draft is significantly faster** ({setting}): the best, {named}"
    losers = [row["draft"] for row in compared if row["user_tps"]["verdict"] == "slower" and row is not best]
    lost = f" It costs speed with {', '.join(losers)}." if losers else ""
    return f"{answer}.{_spread(best, findings)}{lost}"


def _spread(best: Row, findings: Findings) -> str:
    """How much the best draft depends on the domain."""
    rows = [
        row
        for row in findings.by_category
        if (row["run"], row["deployment_id"], row["condition"]) == (best["run"], best["deployment_id"], best["condition"])
        and row["ratio"]
    ]
    rows.sort(key=lambda row: row["ratio"])
    if len(rows) < 2 or rows[-1]["ratio"] < SPREAD_WORTH_TELLING * rows[0]["ratio"]:
        return ""
    worst, top = rows[0], rows[-1]
    extremes = (f"{row['ratio']:.2f}× ({row['category']})" for row in (top, worst))
    told = "It depends on the domain" if worst["significant"] or top["significant"] else "Domains differ, none significantly"
    return f" {told}: from {' to '.join(extremes)}."
