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


def terminal_summary(run_folder: Path | str) -> RenderableType:
    """The verdict and a table by draft, for `rich`. Raises `BadRun` when the folder is no run."""
    return render_summary(find([run_folder]))


def render_summary(findings: Findings) -> RenderableType:
    """As `terminal_summary`, of findings that are read already."""
    parts: list[RenderableType] = (
        [Text("SIMULATED: scripted numbers of no real engine", "bold red")] if findings.simulated else []
    )
    for setting, drafts in by_setting(findings.drafts):
        parts.append(_table(setting_name(setting), drafts))
    parts += [Text(sentence.replace("**", "")) for sentence in verdicts(findings)]
    if findings.n_invalid:
        parts.append(Text(f"{findings.n_invalid} of {findings.n_cells} cells failed or are invalid", "yellow"))
    return Group(*parts)


def _table(title: str, drafts: Sequence[Row]) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        caption="× = times the baseline [95 % interval]; n.s. = not significant",
    )
    table.add_column("draft")
    for name in ("AL", "user TPS", "user TPS ×", "output TPS ×", "TTFT ms", "lossless", "repeats"):
        table.add_column(name, justify="right")
    for row in drafts:
        table.add_row(*_cells(row))
    return table


def _cells(row: Row) -> Sequence[RenderableType]:
    lossless = "-" if row["lossless"] is None else f"{row['lossless']:.0%}"
    return (
        row["draft"],
        number(row["al"]),
        number(row["user_tps_p50"], 1),
        _gain(row["user_tps"]),
        _gain(row["output_tps"]),
        number(row["ttft_ms_p50"], 1),
        lossless,
        str(row["n_ok"]),
    )


def _gain(gain: Row | None) -> Text:
    return Text(times(gain), COLOURS[gain["verdict"]] if gain else "")
