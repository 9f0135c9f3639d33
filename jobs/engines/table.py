"""Owns the table of methods and engines in docs/engines.md, made from the adapters. Does not own what they offer.

python -m jobs.engines.table        write it anew
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from jobs.engines import ENGINES, engine_named
from jobs.engines.base import Offer
from jobs.spec import DRAFT_FIELDS

PAGE = Path(__file__).resolve().parents[2] / "docs/engines.md"
BEGIN = "<!-- made by `python -m jobs.engines.table` from the adapters -->\n"
END = "<!-- end -->\n"


def page_with_table(page: str) -> str:
    """The page with the table of today between its two marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + "\n".join(["", *table(), "", *reasons(), ""]) + END + after


def table() -> Iterator[str]:
    """A row a method and one for several nodes, a column a real engine."""
    engines = [engine_named(name) for name in ENGINES if name != "simulated"]
    yield "| method | " + " | ".join(f"`{engine.name}`" for engine in engines) + " |"
    yield "| --- |" + " --- |" * len(engines)
    for method in DRAFT_FIELDS:
        yield f"| `{method}` | " + " | ".join(word_for(engine.methods[method]) for engine in engines) + " |"
    yield "| over several nodes | " + " | ".join(word_for(engine.over_nodes) for engine in engines) + " |"


def word_for(offer: Offer) -> str:
    """What a cell of the table says."""
    if offer.refusal:
        return "-"
    until = f", until {offer.until}" if offer.until else ""
    return (f"**ran** ({offer.run_on})" if offer.run_on else "offered, not run") + until


def reasons() -> Iterator[str]:
    """Why an engine has not what it has not, an engine a line."""
    for name in ENGINES:
        why: dict[str, list[str]] = {}
        engine = engine_named(name)
        offers = {**{f"`{method}`": offer for method, offer in engine.methods.items()}, "several nodes": engine.over_nodes}
        for what, offer in offers.items():
            if offer.refusal:
                why.setdefault(offer.refusal, []).append(what)
        if why:
            yield (
                f"- `{name}` refuses " + "; ".join(f"{', '.join(whats)}: {reason}" for reason, whats in why.items()) + "."
            )


if __name__ == "__main__":
    PAGE.write_text(page_with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
