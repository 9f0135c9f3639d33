"""Owns the adapter of SGLang: what it offers, what is refused, and how it is asked. Does not own its command line.

Drafts are chains of `k` tokens, or, with `speculative_eagle_topk` and `speculative_num_steps` in `draft.args`, trees of `k`.
SGLang tells how many steps accepted how much, not what each drafted: where `draft.schedule` varies that, the drafted counts
are the most that there could be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jobs.engines import control
from jobs.engines.base import Endpoint, EngineFacts, Launch, Offer, Site
from jobs.engines.dialect_sglang import SGLangDialect
from jobs.engines.launching import drafter_of
from jobs.engines.options import known_of, option_rules
from jobs.engines.own_host import check_name, check_speculation
from jobs.engines.prometheus import samples_in, total
from jobs.engines.rules import Rule, at_least, enforce, lacks, offers_method, one_of, whole_on_nodes
from jobs.engines.sglang_command import ADAPTIVE, DRAFT_OURS, OURS, TREES, environment_of, launch_of
from jobs.errors import EngineDied, EngineFailed, EngineHung, WrongEngine
from jobs.spec import DEVICES, Cell, Deployment, Draft, Engine

METHODS = {
    "none": Offer(),
    "ngram": Offer(),
    "suffix": Offer("it has no suffix decoding"),
    "draft_model": Offer(),
    "eagle": Offer(),
    "eagle3": Offer(),
    "mtp": Offer(),
    "medusa": Offer("it has no Medusa heads"),
    "early_exit": Offer("it has no early exit"),
    "dflash": Offer(),
    "pard": Offer("its draft models draft one token after the other"),
    "p_eagle": Offer("its EAGLE heads draft one token after the other"),
    "dspark": Offer(),
    "synthetic": Offer(),
}
PRETENDERS = ("draft_model", "eagle", "eagle3", "mtp", "dflash")
NOT_ON_CPU = ("dflash", "dspark")
NAMES_TOLD = {
    "": ("none",),
    "NGRAM": ("ngram",),
    "STANDALONE": ("draft_model",),
    "EAGLE": ("eagle", "mtp"),
    "EAGLE3": ("eagle3",),
    "FROZEN_KV_MTP": ("mtp",),
    "DFLASH": ("dflash",),
    "DSPARK": ("dspark",),
}
"""Algorithm as a running SGLang tells it → our methods that it may be. NEXTN is told as what it became."""
COUNTERS = {
    "drafts": "sglang:spec_verify_calls_total",
    "output_tokens": "sglang:generation_tokens_total",
    "prompt_tokens": "sglang:prompt_tokens_total",
}
HIDDEN = ("api_key", "admin_api_key", "ssl_keyfile_password", "launch_command")
GIB = 1 << 30
FLUSH_S = 10  # it empties its caches only when nothing runs, and may still be ending what a client left


class SGLangEngine:
    """`sglang.launch_server`, one for each session."""

    name = "sglang"
    dialect = SGLangDialect()
    methods = METHODS
    over_nodes = Offer()

    def check(self, deployment: Deployment) -> None:
        enforce(offers(deployment.engine, deployment.draft), rules(deployment.engine, deployment.draft))

    def check_cell(self, cell: Cell) -> None:
        refuse = "`workload.json_schema` must be empty with synthetic acceptance, which keeps no grammar: got {!r}."
        is_synthetic = cell.deployment.draft.method == "synthetic"
        enforce([(not (cell.workload.json_schema and is_synthetic), refuse.format(cell.workload.json_schema))], ())

    def launch(self, deployment: Deployment, site: Site) -> Launch:
        return launch_of(deployment, site)

    def facts(self, deployment: Deployment, endpoint: Endpoint) -> EngineFacts:
        told = control.get_json(endpoint, "/server_info")
        check_name({"model": told.get("served_model_name")}, endpoint)
        check_version(str(told.get("version")), deployment.engine.version)
        speculation = speculation_of(told, deployment)
        states = told.get("internal_states") or [{}]
        memory = [state.get("memory_usage") or {} for state in states]
        ranks = deployment.engine.tp * deployment.engine.pp  # the first of each copy tells what it alone holds
        weights = sum(part.get("weight") or 0.0 for part in memory) * GIB * ranks
        return EngineFacts(
            version=str(told.get("version")),
            effective_config={**{name: value for name, value in told.items() if name not in HIDDEN}, **speculation},
            weights_bytes=round(weights) or None,
            draft_weights_bytes=None if deployment.is_speculative else 0,
            kv_capacity_tokens=sum(part.get("token_capacity") or 0 for part in memory) or None,
        )

    def check_identity(self, endpoint: Endpoint) -> None:
        check_name({"model": control.get_json(endpoint, "/model_info").get("served_model_name")}, endpoint)

    def counters(self, endpoint: Endpoint) -> dict[str, float]:
        """It counts verify steps and tokens, not what was accepted; requests count when they end."""
        samples = samples_in(control.call(endpoint, "GET", "/metrics").text)
        return {name: total(samples, metric) or 0.0 for name, metric in COUNTERS.items()}

    def reset(self, endpoint: Endpoint) -> bool | None:
        """Also empties what its n-gram drafts remember."""
        try:
            control.call(endpoint, "POST", f"/flush_cache?timeout={FLUSH_S}")
        except (EngineDied, EngineHung):
            raise
        except EngineFailed:  # something still runs
            return False
        return True


def speculation_of(told: Mapping[str, Any], deployment: Deployment) -> dict[str, Any]:
    """Method and k as the engine says; `WrongEngine` when it runs with others, or quietly without what was asked."""
    draft = deployment.draft
    algorithm = str(told.get("speculative_algorithm") or "")
    method = draft.method if drafter_of(draft) in NAMES_TOLD.get(algorithm, ()) else algorithm
    window = told.get("speculative_num_draft_tokens") or 1
    check_speculation({"effective_config": {"method": method, "k": window - 1}}, deployment)
    is_adaptive = bool(told.get("speculative_adaptive"))
    if is_adaptive != (draft.schedule in ADAPTIVE):
        raise WrongEngine(f"SGLang must run with draft.schedule = {draft.schedule!r}: it says adaptive = {is_adaptive}.")
    environment = ((told.get("internal_states") or [{}])[0]).get("env_vars") or {}
    for name, value in environment_of(deployment).items():
        if name.startswith("SGLANG_SIMULATE") and environment.get(name) != value:
            raise WrongEngine(f"SGLang must run with {name}={value}: it says {environment.get(name)!r}.")
    return {"method": method, "k": window - 1}


def check_version(found: str, asked: str) -> None:
    if asked and found != asked:
        raise WrongEngine(f"SGLang must have the version of `engine.version`, {asked}: it says {found}.")


def offers(engine: Engine, draft: Draft) -> Iterator[Rule]:
    """What SGLang has, and what other engines are for."""
    yield offers_method(SGLangEngine(), draft.method)
    yield from lacks("sglang", "engine", engine, ("kv_bytes", "url", "served_model"))
    yield (
        draft.tp in (0, engine.tp),
        f"`draft.tp` must be 0 or engine.tp for sglang, whose drafts run on the GPUs of the target: got {draft.tp}. "
        "Use vllm, or llama_cpp.",
    )
    yield (
        engine.nodes == 1 or engine.dp == 1,
        f"`engine.dp` must be 1 for sglang over several nodes, where its copies must be on one: got {engine.dp}. Use vllm.",
    )
    yield whole_on_nodes(engine, "stage", engine.tp)
    yield (
        not (engine.device == "cpu" and draft.method in NOT_ON_CPU),
        f"`engine.device` must not be cpu for {draft.method} on sglang, which needs a GPU for it. Use a GPU.",
    )
    yield from lacks("sglang", "draft", draft, ("ngram_max", "ngram_min", "confidence_threshold", "acceptance_rates"))
    yield (
        draft.method != "synthetic" or draft.drafter in PRETENDERS,
        f"`draft.drafter` must be one for which sglang can pretend acceptance: got {draft.drafter!r}. "
        f"It can for {', '.join(PRETENDERS)}.",
    )
    yield (
        draft.schedule == "constant" or (draft.schedule in ADAPTIVE and drafter_of(draft) in ("eagle", "eagle3", "mtp")),
        f"`draft.schedule` must be constant for {draft.method} on sglang, which varies only EAGLE and MTP drafts, by "
        f"{' or '.join(ADAPTIVE)}: got {draft.schedule!r}.",
    )


def rules(engine: Engine, draft: Draft) -> Iterator[Rule]:
    """What the values must be."""
    options = known_of("sglang", engine.version).sections.get("server", {})
    yield one_of("engine.device", engine.device, DEVICES)
    yield at_least("engine.threads", engine.threads, 0)
    yield from option_rules("engine.args", engine.args, OURS, options)
    yield from option_rules("draft.args", draft.args, DRAFT_OURS, options)
    for name in engine.args:
        yield not is_of_drafts(name), f"`engine.args.{name}` is a setting of drafts: give it as draft.args.{name}."
    for name in draft.args:
        yield is_of_drafts(name), f"`draft.args.{name}` is no setting of drafts: give it as engine.args.{name}."
    yield (
        engine.args.get("load_format") != "dummy" and not (engine.dummy_weights and "load_format" in engine.args),
        "`engine.args.load_format` must not say whether weights are random: use engine.dummy_weights.",
    )
    for name, option, value in spelled(engine, draft):
        choices = options[option].choices if option in options else ()
        yield (
            not value or not choices or value in choices,
            f"`{name}` must be one of {', '.join(map(str, choices))}: got {value!r}.",
        )
    yield from tree_rules(draft)
    yield from vocabulary_rules(draft)


def spelled(engine: Engine, draft: Draft) -> Iterator[tuple[str, str, str]]:
    """Fields whose values are SGLang's own words."""
    yield "engine.dtype", "dtype", engine.dtype
    yield "engine.kv_dtype", "kv_cache_dtype", engine.kv_dtype
    yield "engine.quantization", "quantization", engine.quantization
    yield "draft.quantization", "speculative_draft_model_quantization", draft.quantization


def is_of_drafts(name: str) -> bool:
    return name.startswith(("speculative_", "spec_trace", "enable_multi_layer_eagle"))


def tree_rules(draft: Draft) -> Iterator[Rule]:
    """Of drafts that branch: k tokens in `speculative_num_steps` levels."""
    width, steps = draft.args.get("speculative_eagle_topk", 1), draft.args.get("speculative_num_steps")
    is_tree = drafter_of(draft) in TREES and draft.schedule == "constant"
    yield width == 1 or is_tree, f"`draft.args.speculative_eagle_topk` must be 1 for {draft.method}: got {width}."
    if width == 1:
        yield (
            steps is None,
            f"`draft.args.speculative_num_steps` must be left out without a tree: use draft.k (got {steps}).",
        )
    else:
        yield (
            isinstance(steps, int) and 1 <= steps <= draft.k,
            f"`draft.args.speculative_num_steps` must be from 1 to draft.k = {draft.k} with a tree: got {steps}.",
        )


def vocabulary_rules(draft: Draft) -> Iterator[Rule]:
    """A pruned vocabulary is a file of token ids, and its size is part of the draft."""
    has_map = "speculative_token_map" in draft.args
    yield (
        has_map == bool(draft.vocab_size),
        "`draft.vocab_size` and `draft.args.speculative_token_map` (a file of that many ids) must be given together: "
        f"got {draft.vocab_size} and {draft.args.get('speculative_token_map')!r}.",
    )
    yield (
        not has_map or drafter_of(draft) == "eagle",
        f"`draft.args.speculative_token_map` is for eagle, as other drafts bring their own: got it for {draft.method}.",
    )
