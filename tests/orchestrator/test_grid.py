"""A grid is axes → cells: what collapses, what is left out, what is added, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from grids import NGRAM, NONE, point

from jobs.errors import BadInput, Unsupported
from jobs.spec import Cell
from orchestrator.grid import Grid, Point, expand


def told(cells: list[Cell]) -> list[str]:
    return [f"{c.deployment.draft.method}{c.deployment.draft.k} c{c.load.concurrency} r{c.repeat}" for c in cells]


@pytest.mark.parametrize(
    ("points", "grid", "expected"),
    [
        pytest.param([NONE], Grid(), ["none0 c1 r0"], id="one point is one cell"),
        pytest.param([NONE], Grid(repeats=2), ["none0 c1 r0", "none0 c1 r1"], id="repeats are cells of their own"),
        pytest.param(
            [NONE, NGRAM],
            Grid({"draft.k": [1, 2]}),
            ["none0 c1 r0", "ngram1 c1 r0", "ngram2 c1 r0"],
            id="a field without meaning collapses",
        ),
        pytest.param(
            [NGRAM],
            Grid({"load.concurrency": [1, 4]}),
            ["none0 c1 r0", "ngram3 c1 r0", "none0 c4 r0", "ngram3 c4 r0"],
            id="the baseline that was forgotten is added",
        ),
        pytest.param([NGRAM], Grid(baseline=False), ["ngram3 c1 r0"], id="no baseline where none is wanted"),
        pytest.param(
            [NONE, NGRAM],
            Grid({"draft.k": [1, 2]}, [{"draft": ["ngram"], "draft.k": [2]}]),
            ["none0 c1 r0", "ngram1 c1 r0"],
            id="an exclude matches a choice and a field",
        ),
        pytest.param(
            [NGRAM],
            Grid({"draft.k": [1, 2, 3]}, [{"draft.k": [1, 3]}]),
            ["none0 c1 r0", "ngram2 c1 r0"],
            id="an exclude takes several values",
        ),
        pytest.param(
            [NGRAM],
            Grid({"load.concurrency": [1, 4]}, [{"draft": ["none"], "load.concurrency": [4]}]),
            ["none0 c1 r0", "ngram3 c1 r0", "ngram3 c4 r0"],
            id="an excluded baseline is not added",
        ),
        pytest.param(
            [NONE],
            Grid({"draft.method": ["none", "ngram"], "draft.k": [2]}),
            ["none0 c1 r0", "ngram2 c1 r0"],
            id="a method may be an axis",
        ),
    ],
)
def test_axes_become_cells(points: list[Point], grid: Grid, expected: list[str]) -> None:
    assert told(expand(points, grid)) == expected


def test_a_key_of_a_free_mapping_may_be_an_axis() -> None:
    cells = expand([NONE], Grid({"engine.args.step_ms": [1.0, 2.0]}))
    assert [cell.deployment.engine.args for cell in cells] == [{"step_ms": 1.0}, {"step_ms": 2.0}]


def test_cells_share_nothing_that_can_change() -> None:
    first, second = expand([NONE], Grid({"load.concurrency": [1, 2]}))
    first.deployment.engine.args["step_ms"] = 9.0
    assert second.deployment.engine.args == {}


@pytest.mark.parametrize(
    ("points", "grid", "kind", "message"),
    [
        pytest.param(
            [NGRAM], Grid({"draft.k": [0, 2]}), BadInput, r"`draft.k` must be at least 1: got 0.*draft.k=0: 1 of 3", id="k"
        ),
        pytest.param(
            [NONE],
            Grid({"load.concurrency": [0]}),
            BadInput,
            "`load.concurrency` must be at least 1: got 0",
            id="concurrency",
        ),
        pytest.param([NONE], Grid({"load.slo_ttft_s": [-0.1]}), BadInput, "`load.slo_ttft_s` must be at least 0", id="TTFT"),
        pytest.param([NONE], Grid({"load.slo_tpot_s": [-0.1]}), BadInput, "`load.slo_tpot_s` must be at least 0", id="TPOT"),
        pytest.param([NONE], Grid({"workload.limit": [-1]}), BadInput, "`workload.limit` must be at least 0", id="limit"),
        pytest.param(
            [NONE], Grid({"sampling.temperature": [-0.1]}), BadInput, "`sampling.temperature` must be", id="temperature"
        ),
        pytest.param(
            [NONE],
            Grid({"sampling.temperature": [float("inf")]}),
            BadInput,
            "`sampling.temperature` must be",
            id="endless heat",
        ),
        pytest.param([NONE], Grid({"sampling.top_p": [0.0]}), BadInput, "`sampling.top_p` must be above 0", id="top_p"),
        pytest.param([NONE], Grid({"engine.tp": [0]}), BadInput, "`engine.tp` must be at least 1", id="tp"),
        pytest.param(
            [NONE],
            Grid({"draft.method": ["eagle9"]}),
            BadInput,
            "`draft.method` must be known: got 'eagle9'. Known: none, ngram",
            id="method",
        ),
        pytest.param(
            [NONE], Grid({"workload.name": ["maxi"]}), BadInput, "`workload.name` must be known: got 'maxi'", id="workload"
        ),
        pytest.param([NONE], Grid({"load.kind": ["open"]}), BadInput, "`load.kind` must be known: got 'open'", id="load"),
        pytest.param(
            [NONE],
            Grid({"load.kind": ["poisson"]}),
            BadInput,
            "`load.rate` must be above 0.*got .0.0.",
            id="open loop's rate",
        ),
        pytest.param(
            [NONE], Grid({"load.kind": ["replay"]}), BadInput, "`load.replay` must name a file", id="replay's file"
        ),
        pytest.param(
            [NONE],
            Grid({"load.kind": ["gamma"], "load.rate": [1.0], "load.burstiness": [0.0]}),
            BadInput,
            "`load.burstiness` must be above 0",
            id="gamma's burstiness",
        ),
        pytest.param(
            [NONE],
            Grid({"workload.categories": [["coding", "nope"]]}),
            BadInput,
            "categories of `mini`: got nope",
            id="category",
        ),
        pytest.param(
            [NONE], Grid({"engine.name": ["vlm"]}), BadInput, "`engine.name` must be a known engine: got 'vlm'", id="engine"
        ),
        pytest.param(
            [NONE], Grid({"engine.args": [{"speed": 1}]}), BadInput, "got 'speed'. Known: step_ms", id="engine's own rule"
        ),
        pytest.param(
            [point(draft={"method": "draft_model", "k": 2})],
            Grid(),
            BadInput,
            "`draft.model` must be given.*draft_model",
            id="draft model",
        ),
        pytest.param(
            [point(draft={"method": "ngram", "k": 2, "ngram_min": 3})],
            Grid(),
            BadInput,
            "ngram_min` must not be above",
            id="n-grams",
        ),
        pytest.param(
            [point(draft={"method": "early_exit", "k": 2})],
            Grid(),
            BadInput,
            "`draft.exit_layer` must be at least 1",
            id="exit",
        ),
        pytest.param([NONE], Grid(repeats=0), BadInput, "`repeats` must be at least 1: got 0", id="repeats"),
        pytest.param(
            [NONE], Grid(exclude=[{"draft": ["none"]}]), BadInput, "must leave at least one cell", id="nothing left"
        ),
        pytest.param(
            [point(engine={"name": "transformers", "batch": 2})],
            Grid(),
            Unsupported,
            "engine.batch",
            id="what an engine does not offer",
        ),
    ],
)
def test_a_broken_rule_is_one_line_that_says_where(points: list[Point], grid: Grid, kind: Any, message: str) -> None:
    with pytest.raises(kind, match=message) as refusal:
        expand(points, grid)
    assert "\n" not in str(refusal.value)
    assert "cells" in str(refusal.value) or "repeats" in str(refusal.value) or "leave" in str(refusal.value)


@pytest.mark.parametrize(
    ("load", "label"),
    [
        pytest.param({"concurrency": 4}, "c=4", id="closed loop"),
        pytest.param({"kind": "poisson", "rate": 20.0}, "poisson 20/s", id="open loop"),
        pytest.param({"kind": "constant", "rates": [1.0, 2.5], "rate_step_s": 9.0}, "constant 1,2.5/s", id="several rates"),
        pytest.param({"kind": "replay", "replay": "times.txt"}, "replay", id="recorded"),
    ],
)
def test_every_kind_of_load_makes_cells_that_say_how_requests_arrive(
    load: dict[str, Any], label: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.provenance.PROJECT_ROOT", tmp_path)
    (tmp_path / "times.txt").write_text("".join(f"{n}\n" for n in range(1000)))
    (cell,) = expand([point({"draft": "none"}, load=load)], Grid())
    assert f" {label} r0" in cell.label
