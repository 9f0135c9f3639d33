"""Owns the table that a sweep ends with. Does not own the numbers or the verdict's words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from storage.report.findings import Findings, Row, find
from storage.report.markdown import number
from storage.report.verdict import by_setting, setting_name, times, verdicts

COLOURS = {"faster": "green", "slower": "red", "not significant": "dim"}
CAPTION = "× = times the paired baseline [95 % interval]; n.s. = not significant"


def terminal_summary(run_folder: Path | str) -> RenderableType:
    """A table by draft and the verdict, for `rich`. Raises `BadRun` when the folder is no run."""
    return render_summary(find([run_folder]))


def render_summary(findings: Findings) -> RenderableType:
    """As `terminal_summary`, of findings that are read already."""
    parts: list[RenderableType] = [_table(drafts) for drafts in by_setting(findings.drafts)]
    parts += [Text(sentence.replace("**", "")) for sentence in verdicts(findings)]
    if findings.n_invalid:
        parts.append(Text(f"{findings.n_invalid} of {findings.n_cells} cells failed or are invalid", "yellow"))
    if findings.simulated:
        parts.insert(0, Text("SIMULATED: scripted numbers, of no real engine", "bold red"))
    return Group(*parts)


def _table(drafts: Sequence[Row]) -> Table:
    table = Table(
        title=setting_name(drafts[0]), title_justify="left", title_style="bold", caption=CAPTION, caption_justify="left"
    )
    for name in ("load", "draft"):
        table.add_column(name)
    for name in ("AL", "user TPS", "user TPS ×", "output TPS ×", "TTFT ms", "lossless", "repeats"):
        table.add_column(name, justify="right")
    for row in drafts:
        table.add_row(*_cells(row))
    return table


def _cells(row: Row) -> Sequence[RenderableType]:
    return (
        row["load"],
        row["draft"],
        number(row["al"]),
        number(row["user_tps_p50"], 1),
        _gain(row["user_tps"]),
        _gain(row["output_tps"]),
        number(row["ttft_ms_p50"], 1),
        "-" if row["lossless"] is None else f"{row['lossless']:.0%}",
        str(row["n_ok"]),
    )


def _gain(gain: Row | None) -> Text:
    return Text(times(gain), COLOURS[gain["verdict"]] if gain else "")
