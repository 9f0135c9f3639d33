"""Owns the table that a sweep ends with. Does not own the numbers or the verdict's words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from storage.report.findings import Findings
from storage.report.markdown import number
from storage.report.reading import Row
from storage.report.verdict import by_setting, setting_of, summary, times

COLOURS = {"faster": "green", "slower": "red", "not significant": "dim"}
MAX_PROBLEMS = 3
CAPTION = "× = times the paired baseline [95 % interval]; n.s. = not significant; ! = invalid"


def render_summary(findings: Findings) -> RenderableType:
    """A table by draft and the verdict, for `rich`."""
    parts: list[RenderableType] = [_table(drafts, findings) for drafts in by_setting(findings.drafts)]
    parts += [Text(sentence.replace("**", "")) for sentence in summary(findings)]
    parts += [Text(line, "yellow") for line in _worst(findings)]
    if findings.simulated:
        parts.insert(0, Text("SIMULATED: scripted numbers, of no real engine", "bold red"))
    return Group(*parts)


def _worst(findings: Findings) -> Iterator[str]:
    """The reasons that make the most cells fail or be invalid, with what to do."""
    if findings.n_invalid:
        yield f"{findings.n_invalid} of {findings.n_cells} cells failed or are invalid:"
    counts = Counter(reason for row in findings.problems for reason in row["reasons"] or [row["status"]])
    remedies = {row["reason"]: row["remedy"] for row in findings.remedies}
    for reason, n in counts.most_common(MAX_PROBLEMS):
        yield f"  {n} {reason.replace('_', ' ')}: {remedies.get(reason, 'see the report')}"


def _table(drafts: Sequence[Row], findings: Findings) -> Table:
    loads = list(dict.fromkeys(row["load"] for row in drafts))
    title = ", ".join([setting_of(drafts[0], findings), *(loads if len(loads) == 1 else [])])
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        caption=CAPTION,
        caption_justify="left",
        box=SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
    )
    if len(loads) > 1:
        table.add_column("load", no_wrap=True)
    table.add_column("draft", overflow="fold")  # this one may wrap in a narrow terminal, and ...
    for name in ("AL", "user TPS", "user TPS ×", "output ×", "TTFT ms", "lossless"):
        table.add_column(name, justify="right", no_wrap=name != "user TPS ×")  # ... this one: numbers are shown whole
    for row in drafts:
        table.add_row(*([_short(row["load"])] if len(loads) > 1 else []), *_cells(row))
    return table


def _short(load: str) -> str:
    """As the labels of cells have it: c=8."""
    return load.replace("concurrency ", "c=")


def _cells(row: Row) -> Sequence[RenderableType]:
    output = row["output_tps"]
    return (
        row["draft"],
        number(row["al"]),
        number(row["user_tps_p50"], 1),
        _gain(row["user_tps"]),
        Text(_ratio(output), _colour(output)),
        number(row["ttft_ms_p50"], 1),
        "-" if row["lossless"] is None else f"{row['lossless']:.0%}",
    )


def _ratio(gain: Row | None) -> str:
    if not gain or not gain["ratio"]:
        return "-"
    return f"{gain['ratio']:.2f}×" + ("" if gain["valid"] else " !")


def _gain(gain: Row | None) -> Text:
    return Text(times(gain).replace(" (invalid)", " !"), _colour(gain))


def _colour(gain: Row | None) -> str:
    if gain is None:
        return ""
    return COLOURS[gain["verdict"]] if gain["valid"] else "yellow"
