"""Prompts that cannot fit are refused before anything starts, with the numbers, and without a tokenizer where possible."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from jobs import models, workloads
from jobs.errors import BadInput
from jobs.models import described_here
from jobs.spec import Cell, Deployment, Draft, Engine, Load, Model, Sampling, Workload
from jobs.workloads import foresee, load_prompts
from jobs.workloads.foresee import refuse_unfit_prompts

BYTES = "jobs/workloads/data/bytes"
MINI = Workload(limit=11, output_limit=32)
REAL = Workload(name="synthetic", isl=600, limit=3, output_limit=100)


def cell(workload: Workload, max_length: int = 0, path: str = BYTES) -> Cell:
    return Cell(Deployment(Model(path=path), Engine(max_length=max_length), Draft()), workload, Sampling(), Load())


@pytest.mark.parametrize(
    ("workload", "max_length", "text"),
    [
        pytest.param(
            MINI, 500, r"must fit into 500 tokens.*has \d+ tokens and .* for answers, \d+ in all. \d+ of 11", id="texts"
        ),
        pytest.param(REAL, 699, r"must fit into 699 tokens .*got 600 and 100, 700 in all", id="an asked length"),
        pytest.param(replace(REAL, isl="70k"), 0, r"must fit into 65536 tokens.*got 70000", id="the model's own limit"),
        pytest.param(
            replace(REAL, isl=90), 0, r"leave room for a text: got 90, and the order alone", id="a length without room"
        ),
        pytest.param(
            replace(MINI, template_args={"enable_thinking": False}),
            0,
            "that the model's chat template reads: got enable_thinking",
            id="unread",
        ),
        pytest.param(
            replace(MINI, template_args={"add_generation_prompt": False}),
            0,
            "must leave to SpecSweep .*: got add_generation_prompt",
            id="an argument that is ours",
        ),
    ],
)
def test_what_cannot_fit_is_refused_with_the_numbers(workload: Workload, max_length: int, text: str) -> None:
    with pytest.raises(BadInput, match=text):
        refuse_unfit_prompts([cell(MINI), cell(workload, max_length)])


@pytest.mark.parametrize(
    ("workload", "max_length"),
    [
        pytest.param(MINI, 0, id="texts far below the model's own limit"),
        pytest.param(replace(MINI, categories=["qa"]), 1000, id="the category that fits"),
        pytest.param(REAL, 700, id="an asked length that fits exactly"),
    ],
)
def test_what_fits_is_let_through(workload: Workload, max_length: int) -> None:
    refuse_unfit_prompts([cell(workload, max_length)])


def test_what_only_a_template_can_say_is_refused_before_anything_starts(tmp_path: Path) -> None:
    rows = [{"text": "Hi"}, {"text": "Look", "tools": [{"type": "function", "function": {"name": "look"}}]}]
    (tmp_path / "p.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with pytest.raises(BadInput, match=r"has tools, which that of .*bytes does not have a place for"):
        refuse_unfit_prompts([cell(Workload(name="jsonl", path=str(tmp_path / "p.jsonl"), output_limit=8))])


def test_texts_far_below_the_limit_need_no_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes seconds to load, in every run of the command."""
    monkeypatch.setattr(foresee, "_tokenizer", None)
    refuse_unfit_prompts([cell(MINI)])
    with pytest.raises(TypeError, match="not callable"):
        refuse_unfit_prompts([cell(MINI, 500)])


def test_a_workload_is_read_once_for_all_models_and_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    monkeypatch.setattr(workloads, "load_prompts", lambda workload: (read.append(workload), load_prompts(workload))[1])
    refuse_unfit_prompts([cell(MINI, limit, path) for path in (BYTES, "/no/model") for limit in (0, 60_000)])
    assert read == [MINI]
    refuse_unfit_prompts([cell(MINI), cell(REAL), cell(MINI, 0, "/no/model"), cell(REAL, 0, "/no/model")])
    assert read == [MINI, MINI, REAL]


def test_a_model_that_is_not_here_yet_is_left_to_its_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "cache_folder", lambda: tmp_path)
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(b"GGUF")
    assert described_here(str(gguf)) is None
    assert described_here("some-org/a-model-that-nobody-has") is None
    assert described_here(str(tmp_path / "nowhere")) is None
    refuse_unfit_prompts([cell(MINI, 10, str(gguf))])
    with pytest.raises(BadInput, match=r"must fit into 699 tokens .*got 600 and 100, 700 in all"):
        refuse_unfit_prompts([cell(REAL, 699, str(gguf))])  # no tokenizer is needed to tell
    models.converted_folder(gguf).mkdir(parents=True)
    assert described_here(str(gguf)) == models.converted_folder(gguf)


def test_of_a_model_of_the_hub_all_but_the_weights_is_fetched_to_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its weights are for the nodes on which it runs: what starts a sweep need not have them."""
    asked = []

    def snapshot(repo: str, *, cache_dir: Path | None = None, allow_patterns: Sequence[str] = (), **options: object) -> str:
        if options.get("local_files_only"):
            raise FileNotFoundError(repo)
        asked.append((repo, options["revision"], cache_dir, [*allow_patterns]))
        return BYTES

    monkeypatch.setattr(models, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: None)
    with pytest.raises(BadInput, match=r"must fit into 500 tokens.*has \d+ tokens"):
        refuse_unfit_prompts([cell(MINI, 500, "some-org/one-of-the-hub")])
    ((repo, revision, cache, patterns),) = asked
    assert (repo, revision, cache) == ("some-org/one-of-the-hub", None, tmp_path / "descriptions")
    assert "*.json" in patterns
    assert not any("safetensors" in pattern for pattern in patterns)
