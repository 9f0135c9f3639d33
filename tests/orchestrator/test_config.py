"""A command line becomes a sweep, or one clear line that says what exists."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from jobs.errors import BadInput
from orchestrator.config import Sweep, compose
from orchestrator.grid import expand
from orchestrator.settings import Kind, Mode

SIMULATED = ["engine=simulated", "workload.limit=2"]


def composed(*argv: str) -> Sweep:
    sweep = compose(argv)
    assert sweep is not None
    return sweep


def cells(*argv: str) -> list[str]:
    sweep = composed(*argv)
    return [
        f"{c.deployment.draft.method}{c.deployment.draft.k} c{c.load.concurrency} r{c.repeat}"
        for c in expand(sweep.points, sweep.grid)
    ]


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        pytest.param([], ["none0 c1 r0"], id="nothing said: the baseline"),
        pytest.param(
            ["draft=ngram", "draft.k=3"], ["none0 c1 r0", "ngram3 c1 r0"], id="a grid of one cell and its baseline"
        ),
        pytest.param(
            ["axes.draft=[none,ngram]", "draft.k=4"], ["none0 c1 r0", "ngram4 c1 r0"], id="an override holds for all cells"
        ),
        pytest.param(
            ["draft=ngram", "axes.draft.k=[1,2]"], ["none0 c1 r0", "ngram1 c1 r0", "ngram2 c1 r0"], id="a dotted axis"
        ),
        pytest.param(["axes={draft:[ngram],draft.k:[2]}"], ["none0 c1 r0", "ngram2 c1 r0"], id="axes as one mapping"),
        pytest.param(
            ["+grid=simulated_smoke", "axes.draft.k=[7]", "repeats=1"],
            ["none0 c1 r0", "ngram7 c1 r0"],
            id="a grid's axis, narrowed",
        ),
        pytest.param(
            [
                "+grid=simulated_smoke",
                "repeats=1",
                "axes.load.concurrency=[1,8]",
                "exclude=[{draft:ngram,draft.k:4},{load.concurrency:8}]",
            ],
            ["none0 c1 r0", "ngram2 c1 r0"],
            id="excludes",
        ),
        pytest.param(["draft=ngram", "draft.k=2", 'baseline=""'], ["ngram2 c1 r0"], id="without baselines"),
    ],
)
def test_a_command_line_becomes_cells(argv: list[str], expected: list[str]) -> None:
    assert cells(*SIMULATED, *argv) == expected


def test_free_mappings_take_new_keys_without_a_plus() -> None:
    sweep = composed(*SIMULATED, "engine.args.step_ms=2.5", "draft.args.draft_ms=1")
    assert sweep.points[0].parts["engine"]["args"] == {"step_ms": 2.5}
    assert sweep.points[0].parts["draft"]["args"] == {"draft_ms": 1}


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        pytest.param([], "sweep", id="no grid"),
        pytest.param(["+grid=simulated_smoke"], "simulated_smoke", id="the grid's"),
        pytest.param(["+grid=simulated_smoke", "run.name=mine"], "mine", id="as asked"),
    ],
)
def test_a_run_is_named(argv: list[str], name: str) -> None:
    assert composed(*argv).run.name == name


def test_settings_arrive_typed() -> None:
    sweep = composed("mode=plan", "cluster=ray", "cluster.address=host:6379", "limits.max_starts=1", "run.dir=elsewhere")
    assert (sweep.mode, sweep.cluster.kind, sweep.cluster.address) == (Mode.plan, Kind.ray, "host:6379")
    assert (sweep.limits.max_starts, sweep.run.dir) == (1, "elsewhere")


def test_a_grid_of_ones_own_that_lacks_its_first_line_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "grid").mkdir()
    (tmp_path / "grid/mine.yaml").write_text("axes: {draft: [none, ngram]}\n")
    with pytest.raises(BadInput, match=r"must begin with '# @package _global_'.*conf/grid/mine.yaml does not. Add it"):
        compose(["--config-dir", str(tmp_path), "+grid=mine"])


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        pytest.param(
            ["grid=quickstart"], r"must be added: got grid=quickstart. Write \+grid=quickstart", id="grid without plus"
        ),
        pytest.param(
            ["+grid=quikstart"],
            r"file of conf/grid/: got 'quikstart'. Known: .*quickstart.*Did you mean quickstart\?",
            id="grid",
        ),
        pytest.param(
            ["+grid=quickstart", "+grid=domains"], "a sweep has one grid: got a second one, domains. Run one", id="two grids"
        ),
        pytest.param(["+draft=ngram"], r"`draft` is chosen by default: got \+draft=ngram. Write draft=ngram", id="plus"),
        pytest.param(
            ["draft=eagle9"],
            "`draft` must be a file of conf/draft/: got 'eagle9'. Known: .*Did you mean eagle",
            id="choice",
        ),
        pytest.param(["drft=ngram"], r"`drft` is no key of a sweep. Keys: mode, run, .*Did you mean draft\?", id="key"),
        pytest.param(
            ["draft.kk=3"],
            r"`draft.kk` is no field of `draft`. Fields: name, method, k, .*Did you mean draft.k\?",
            id="field",
        ),
        pytest.param(["+draft.kk=3"], "`draft.kk` is no field of `draft`", id="field behind a plus"),
        pytest.param(["+extra=3"], "`extra` is no key of a sweep", id="key behind a plus"),
        pytest.param(["draft.k=two"], "`draft.k` must be a whole number: got 'two'", id="number"),
        pytest.param(["draft.k=null"], "`draft.k` must be a whole number: got null", id="null"),
        pytest.param(["engine.tp=1.5"], "`engine.tp` must be a whole number: got '1.5'", id="fraction"),
        pytest.param(
            ["cluster.num_cpus=many"], "`cluster.num_cpus` must be a whole number or null: got 'many'", id="optional number"
        ),
        pytest.param(["mode=dry"], "`mode` must be one of plan, run: got 'dry'", id="enumeration"),
        pytest.param(["workload.categories=coding"], "`workload.categories` must be a list", id="list"),
        pytest.param(["draft.k=1,2"], r"takes one value: got 1,2. .*'axes.draft.k=\[1,2\]'", id="several values"),
        pytest.param(["draft=[none,ngram]"], r"`draft` takes one choice.*'axes.draft=\[none,ngram\]'", id="several choices"),
        pytest.param(
            ["+grid=[quickstart,domains]"], r"a sweep has one grid: got \[quickstart,domains\]", id="several grids"
        ),
        pytest.param(
            ["thresholds.min_request=1"], "`thresholds.min_request` is no limit .*Did you mean min_requests", id="threshold"
        ),
        pytest.param(
            [f"thresholds.resamples=1{'0' * 400}"], "`thresholds.resamples` must be .* got one of 401 digits", id="endless"
        ),
        pytest.param(
            [f"axes.load.rate=[1,1{'0' * 5000}]"],
            "`axes.load.rate` must be .* got one of 5001 digits",
            id="endless in a list",
        ),
        pytest.param(
            ["thresholds.min_requests=few"], "`thresholds.min_requests` must be a number: got 'few'", id="no threshold"
        ),
        pytest.param(["-m", "draft=none"], "a sweep is one run: got --multirun", id="multirun"),
        pytest.param(["hydra.mode=MULTIRUN"], "a sweep is one run", id="multirun in disguise"),
        pytest.param(["draft"], "an override must read key=value: got 'draft'", id="no value"),
        pytest.param(["cluster.pools.my pool.cpus=4"], "key=value: got 'cluster.pools.my pool.cpus=4'", id="no key"),
        pytest.param(["cluster.pools.my-pool.count=4"], "`cluster.pools.my-pool.count` is no field of", id="a pool's field"),
        pytest.param(["draft.k=[1"], "an override must read key=value", id="half a list"),
        pytest.param(["model=/some/folder"], "For a path write model.path=/some/folder", id="a path as a choice"),
        pytest.param(
            ["model.path=${nope}"], "`model.path` has no value: Interpolation key 'nope' not found", id="interpolation"
        ),
        pytest.param(
            ["axes.draft=ngram"],
            r"`axes.draft` must be a list of at least one value: got 'ngram'. Write \[ngram\]",
            id="axis without list",
        ),
        pytest.param(
            ["axes.draft=[]"],
            r"`axes.draft` must be a list of at least one value: got \[\]. Write \[1, 3, 5\]",
            id="axis without values",
        ),
        pytest.param(
            ["axes.draft=[ngarm]"],
            r"`draft` must be a file of conf/draft/: got 'ngarm'.*Did you mean ngram\?",
            id="axis choice",
        ),
        pytest.param(["axes.draft.k=[1,two]"], "`draft.k` must be a whole number: got 'two'", id="axis type"),
        pytest.param(["axes.draft.kk=[1]"], "`draft.kk` is no field of `draft`", id="axis field"),
        pytest.param(
            ["axes.cluster=[local]"],
            "must be of a part of a cell: got `cluster`. Parts: model, engine",
            id="axis of no part",
        ),
        pytest.param(
            ["axes.draft=[ngram]", "draft=none"],
            "`draft` is an axis here, so draft=none would change nothing",
            id="idle override",
        ),
        pytest.param(["exclude=[{draft:nope}]"], "`draft` must be a file of conf/draft/: got 'nope'", id="exclude choice"),
        pytest.param(["exclude=[{draft.kk:1}]"], "`draft.kk` is no field", id="exclude field"),
        pytest.param(
            ["draft=self", "axes.model.path=[a,b]"], r"`model.path` must not be an axis here: another field", id="axis read"
        ),
        pytest.param(
            ["axes.draft=[none,self]", "axes.model.path=[a,b]"],
            "`model.path` must not be an axis here",
            id="read in a choice",
        ),
        pytest.param(["baseline=ngram"], "`baseline` must be none", id="baseline"),
        pytest.param(["limits.max_attempts=0"], "`limits.max_attempts` must be at least 1: got 0", id="limits"),
    ],
)
def test_a_mistake_is_one_line_with_its_remedy(argv: list[str], message: str) -> None:
    with pytest.raises(BadInput, match=message) as refusal:
        compose(argv)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        pytest.param(["--cfg", "job"], "max_attempts: 2", id="the configuration"),
        pytest.param(["--help"], "python sweep.py +grid=quickstart", id="help"),
    ],
)
def test_what_only_asks_is_answered_and_starts_nothing(
    argv: list[str], shown: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with suppress(SystemExit):  # how argparse ends a program
        assert compose(argv) is None
    assert shown in capfd.readouterr().out


def test_composing_leaves_the_process_and_the_folder_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = list(sys.argv), dict(os.environ)
    composed("+grid=simulated_smoke")
    assert (list(sys.argv), dict(os.environ)) == before
    assert list(tmp_path.iterdir()) == []


def test_a_field_that_reads_another_follows_a_folder_axis() -> None:
    sweep = composed("draft=self", "axes.model=[bytes,smollm2_135m]")
    assert [p.parts["draft"]["model"] for p in sweep.points] == [p.parts["model"]["path"] for p in sweep.points]
    assert len({p.parts["model"]["path"] for p in sweep.points}) == 2
