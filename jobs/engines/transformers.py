"""Owns the adapter of Hugging Face transformers: what it supports and how it is started. Does not own generation.

The engine is our own host (`jobs/engines/host`) in the environment that `make env` makes. It serves one request at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from jobs.engines.base import Offer, Site
from jobs.engines.own_host import OwnHost
from jobs.engines.rules import Rule, at_least, enforce, lacks, offers_method, one_of
from jobs.models import engine_python
from jobs.spec import DEVICES, Cell, Deployment, Draft, Engine

DTYPES = ("auto", "float32", "bfloat16", "float16")
ARGS = {"attn_implementation": ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention")}
"""argument of `engine.args` → its values; handed to `from_pretrained`."""

RUN_ON = Offer(run_on="5.24.0 on CPU")
METHODS = {
    "none": RUN_ON,
    "ngram": RUN_ON,
    "suffix": Offer("it has no suffix decoding"),
    "draft_model": RUN_ON,
    "eagle": Offer("it has no EAGLE heads"),
    "eagle3": Offer("it has no EAGLE heads"),
    "mtp": RUN_ON,
    "medusa": RUN_ON,
    "early_exit": RUN_ON,
    "dflash": RUN_ON,
    "pard": Offer("its assistants draft one token after the other"),
    "p_eagle": Offer("it has no EAGLE heads"),
    "dspark": Offer("it has no DSpark"),
    "synthetic": Offer("it cannot pretend acceptance"),
}
LACKING = ("pp", "dp", "ep", "kv_fraction", "kv_bytes", "kv_dtype", "quantization", "dummy_weights", "url", "served_model")
LACKING_OF_DRAFTS = ("quantization", "dummy_weights", "vocab_size", "k_by_batch")
SCHEDULES = ("constant", "heuristic", "heuristic_transient")


class TransformersEngine(OwnHost):
    """Assisted generation with all that transformers has to assist it, and our Medusa heads, on the CPU or one GPU."""

    name = "transformers"
    methods = METHODS
    over_nodes = Offer("its model runs in one process")

    def python(self, deployment: Deployment) -> str:
        return engine_python()

    def environment(self, deployment: Deployment, site: Site) -> Mapping[str, str]:
        """Idle OpenMP threads sleep: where anything else runs on the cores, spinning ones make a step 10 times longer."""
        return {"OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

    def check(self, deployment: Deployment) -> None:
        enforce(offers(deployment.engine, deployment.draft), rules(deployment.engine, deployment.draft))

    def check_cell(self, cell: Cell) -> None:
        refuse = (
            "`workload.json_schema` must be empty for transformers, which has no grammars: got {!r}. Use another engine."
        )
        enforce([(not cell.workload.json_schema, refuse.format(cell.workload.json_schema))], ())


def offers(engine: Engine, draft: Draft) -> Iterator[Rule]:
    """What transformers has, and what other engines are for."""
    yield offers_method(TransformersEngine(), draft.method)
    yield (
        engine.batch == 1,
        "`engine.batch` must be 1 for transformers, whose assisted generation takes one request at a time: "
        f"got {engine.batch}. Use another engine for batches.",
    )
    for name, tp in (("engine.tp", engine.tp), ("draft.tp", draft.tp or 1)):
        yield tp == 1, f"`{name}` must be 1 for transformers, which runs on one device here: got {tp}. Use another engine."
    yield from lacks("transformers", "engine", engine, LACKING)
    yield from lacks("transformers", "draft", draft, LACKING_OF_DRAFTS)
    yield (
        not engine.prefix_cache,
        "`engine.prefix_cache` must be false for transformers, which has none. Use another engine.",
    )
    yield (
        draft.method != "ngram" or draft.ngram_min == 1,
        f"`draft.ngram_min` must be 1 for transformers, which tries every length down to 1: got {draft.ngram_min}.",
    )
    yield (
        draft.method != "mtp" or not draft.model,
        "`draft.model` must be empty for mtp on transformers, whose MTP layers are in the target's own checkpoint: "
        f"got {draft.model!r}.",
    )


def rules(engine: Engine, draft: Draft) -> Iterator[Rule]:
    """What the values must be."""
    yield one_of("engine.dtype", engine.dtype, DTYPES)
    yield one_of("engine.device", engine.device, DEVICES)
    yield at_least("engine.threads", engine.threads, 0)
    yield at_least("engine.max_length", engine.max_length, 0)
    for name, value in engine.args.items():
        yield one_of("engine.args", name, ARGS)
        yield one_of(f"engine.args.{name}", value, ARGS.get(name, ()))
    yield not draft.args, f"`draft.args` must be empty for transformers: got {', '.join(draft.args)}. Leave it out."
    yield from DRAFT_RULES[draft.method](draft)


def ngram_rules(draft: Draft) -> Iterator[Rule]:
    yield at_least("draft.k", draft.k, 1, " for ngram")
    yield at_least("draft.ngram_max", draft.ngram_max, 1)
    yield one_of("draft.schedule", draft.schedule, ("constant",))


def draft_model_rules(draft: Draft) -> Iterator[Rule]:
    yield named_model(draft)
    yield from drafter_rules(draft)


def heads_rules(draft: Draft) -> Iterator[Rule]:
    yield named_model(draft)
    yield from fixed_rules(draft)


def fixed_rules(draft: Draft) -> Iterator[Rule]:
    """What drafts from the target's hidden states has one length. Whether its files allow it is checked at load."""
    yield at_least("draft.k", draft.k, 1, f" for {draft.method}")
    yield one_of("draft.schedule", draft.schedule, ("constant",))


def named_model(draft: Draft) -> Rule:
    return bool(draft.model), f"`draft.model` must name a model for {draft.method}: got ''. Give a folder or a hub id."


def early_exit_rules(draft: Draft) -> Iterator[Rule]:
    yield at_least("draft.exit_layer", draft.exit_layer, 1, " for early_exit")
    yield from drafter_rules(draft)


def drafter_rules(draft: Draft) -> Iterator[Rule]:
    """What a draft that is itself generated must obey."""
    threshold = draft.confidence_threshold
    yield at_least("draft.k", draft.k, 1, f" for {draft.method}")
    yield one_of("draft.schedule", draft.schedule, SCHEDULES)
    yield 0 <= threshold < 1, f"`draft.confidence_threshold` must be from 0 (never stop early) to below 1: got {threshold}."


DRAFT_RULES: dict[str, Callable[[Draft], Iterable[Rule]]] = {
    "none": lambda draft: (),
    "ngram": ngram_rules,
    "draft_model": draft_model_rules,
    "early_exit": early_exit_rules,
    "medusa": heads_rules,
    "mtp": fixed_rules,
    "dflash": heads_rules,
}
"""A method that transformers offers → the rules of its fields."""
