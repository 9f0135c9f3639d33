"""Rows for other places: gauges that Prometheus' own parsers read; MLflow and Weights & Biases by their own clients."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as as_openmetrics
from prometheus_client.parser import text_string_to_metric_families as as_textfile
from recorded import create_cell, record
from recorded_grid import pair, point, with_engine

from storage.export import to_mlflow
from storage.export.__main__ import main
from storage.export.openmetrics import openmetrics_text
from storage.export.rows import Measured, client_of, measured_rows

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = ROOT / ".venvs/extras/bin/python"
AWKWARD = Measured(
    run='a "run"\\with\nlines',
    key="1",
    settings={"draft": "x", "load": "c"},
    numbers={"al": 2.5},
    words={"simulated": "true"},
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("results") / "mine", *pair(create_cell("ngram", 3), 25.0))


def test_a_row_is_a_draft_and_load_with_settings_numbers_and_verdicts(run: Path) -> None:
    rows = {row.settings["method"]: row for row in measured_rows([run])}
    assert set(rows) == {"none", "ngram"}
    drafted = rows["ngram"]
    assert (drafted.run, drafted.settings["k"], drafted.settings["concurrency"]) == ("mine", 3, 1)
    assert drafted.numbers["al"] == pytest.approx(2.0)
    assert drafted.words["user_tps_verdict"] in ("faster", "slower", "not significant")
    assert rows["none"].key != drafted.key
    assert [row.key for row in measured_rows([run])] == [row.key for row in measured_rows([str(run)])]


@pytest.mark.parametrize("parse", [pytest.param(as_openmetrics, id="OpenMetrics"), pytest.param(as_textfile, id="textfile")])
def test_gauges_come_back_from_the_parser_in_base_units(parse: object, run: Path, tmp_path: Path) -> None:
    file = tmp_path / "specsweep.prom"
    assert main(["openmetrics", str(run), "-o", str(file)]) == 0
    families = {family.name: family for family in parse(file.read_text())}  # type: ignore[operator]
    assert {family.type for family in families.values()} == {"gauge"}
    assert all(family.documentation for family in families.values())
    drafted = [s for s in families["specsweep_ttft_seconds"].samples if s.labels["method"] == "ngram"]
    assert [sample.value for sample in drafted] == [pytest.approx(0.1)]
    assert "specsweep_user_tps_speedup_ratio" in families
    assert [path.name for path in tmp_path.iterdir()] == ["specsweep.prom"], "written under another name, then renamed"


def test_labels_are_escaped() -> None:
    (family,) = as_openmetrics(openmetrics_text([AWKWARD]).decode())
    (sample,) = family.samples
    assert (sample.labels["run"], sample.value) == (AWKWARD.run, 2.5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(
            ["openmetrics", "-o", "gauges.txt"], r"--output must be a .prom file", id="not what the collector reads"
        ),
        pytest.param(["mlflow", "-o", "x.prom"], r"--output must be a .prom file, of openmetrics: got mlflow", id="no file"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], message: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([words[0], str(run), *words[1:]]) == 2
    said = capsys.readouterr().err
    assert message.replace("\\", "") in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("client", ["mlflow", "wandb"])
def test_an_absent_client_is_one_line_that_names_the_extra(
    client: str, run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, client, None)
    assert main([client, str(run)]) == 2
    said = capsys.readouterr().err
    assert f"{client} must be installed to export to it" in said
    assert f"the extra `{client}`: .venv/bin/python -m pip install '.[{client}]'" in said
    assert said.count("\n") == 1


def run_in_extras(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    if not EXTRAS.exists():
        pytest.skip("there is no .venvs/extras: `make extras` makes it")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(
        [str(EXTRAS), *words], capture_output=True, text=True, env=environment, check=False, cwd=ROOT, timeout=180
    )


def in_extras(*words: str, **environment: str) -> str:
    done = run_in_extras(*words, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def deaf() -> Iterator[str]:
    """Something that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(
    ("client", "said", "place"),
    [
        pytest.param(
            "mlflow",
            "MLflow must take the rows: got",
            {"MLFLOW_TRACKING_URI": "{url}", "MLFLOW_HTTP_REQUEST_TIMEOUT": "1"},
            id="MLflow",
        ),
        pytest.param(
            "wandb",
            "Weights & Biases must take the rows: got",
            {"WANDB_BASE_URL": "{url}", "WANDB_API_KEY": "0" * 40, "WANDB_INIT_TIMEOUT": "2"},
            id="W&B",
        ),
    ],
)
def test_a_server_that_says_nothing_is_one_line_in_time(
    client: str, said: str, place: dict[str, str], deaf: str, run: Path, tmp_path: Path
) -> None:
    place = {"WANDB_DIR": str(tmp_path), **{name: value.format(url=deaf) for name, value in place.items()}}
    done = run_in_extras("-m", "storage.export", client, str(run), **place)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(said)
    assert "Traceback" not in done.stderr


def test_patience_with_a_dead_server_is_the_users_where_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "7")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "")  # so that the test leaves none behind
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES")
    client_of("json", to_mlflow.PATIENCE)
    assert [os.environ[name] for name in to_mlflow.PATIENCE] == ["7", "2"]


SHOW_MLFLOW = """
import mlflow
found = mlflow.MlflowClient().search_runs([mlflow.get_experiment_by_name("drafts").experiment_id])
told = [(r.info, r.data) for r in found]
print([(i.run_name, d.params["k"], d.metrics["al"], d.tags["specsweep.run"], i.status) for i, d in told])
print(sorted({d.tags.get("variant", "") for i, d in told}))
"""


def test_mlflow_has_a_run_a_row_and_the_same_one_when_it_is_exported_again(run: Path, tmp_path: Path) -> None:
    place = {"MLFLOW_TRACKING_URI": f"file:{tmp_path}/mlruns", "MLFLOW_ALLOW_FILE_STORE": "true"}
    for _ in range(2):
        assert "2 rows are in MLflow's experiment drafts" in in_extras(
            "-m", "storage.export", "mlflow", str(run), "--name", "drafts", **place
        )
    told = eval(in_extras("-c", SHOW_MLFLOW, **place).splitlines()[0])
    assert sorted(told) == [
        ("ngram k=3, concurrency 1", "3", 2.0, "mine", "FINISHED"),
        ("none, concurrency 1", "0", 1.0, "mine", "FINISHED"),
    ]


def test_mlflow_takes_a_run_again_that_has_grown_and_whose_rows_are_called_otherwise_now(tmp_path: Path) -> None:
    place = {"MLFLOW_TRACKING_URI": f"file:{tmp_path}/mlruns", "MLFLOW_ALLOW_FILE_STORE": "true"}
    first, second = (pair(with_engine(point("ngram"), kv_fraction=fraction), 25.0) for fraction in (0.6, 0.9))
    for results in (first, second):
        record(tmp_path / "mine", *results)
        in_extras("-m", "storage.export", "mlflow", str(tmp_path / "mine"), "--name", "drafts", **place)
    variants = eval(in_extras("-c", SHOW_MLFLOW, **place).splitlines()[1])
    assert variants == ["engine.kv_fraction=0.6", "engine.kv_fraction=0.9"]


def test_wandb_writes_a_run_a_row_offline(run: Path, tmp_path: Path) -> None:
    said = in_extras("-m", "storage.export", "wandb", str(run), WANDB_MODE="offline", WANDB_DIR=str(tmp_path))
    assert "2 rows are runs of the W&B project specsweep" in said
    written = {file.stem: file.read_bytes() for file in tmp_path.glob("wandb/offline-run-*/run-*.wandb")}
    assert set(written) == {f"run-{row.key}" for row in measured_rows([run])}
    drafted = next(row for row in measured_rows([run]) if row.settings["method"] == "ngram")
    assert all(word in written[f"run-{drafted.key}"] for word in (b"ngram k=3", b"user_tps_ratio", b"mine"))
