"""Owns how the target, and what drafts for it, come from local folders onto a device. Does not own how they are used."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
)

from jobs.engines.host.medusa import load_heads


def load_model(folder: str, engine: dict[str, Any], kind: Any = None) -> Any:
    """The model of a local folder, on its device and ready to run. Of one that also sees, only the text side is asked."""
    if kind is None:
        is_text = type(AutoConfig.from_pretrained(folder, local_files_only=True)) in MODEL_FOR_CAUSAL_LM_MAPPING
        kind = AutoModelForCausalLM if is_text else AutoModelForImageTextToText
    model = kind.from_pretrained(folder, dtype=engine["dtype"], local_files_only=True, **engine["args"])
    device = engine["device"] if engine["device"] != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    return model.to(device).eval()


def load_drafter(config: dict[str, Any], model: Any) -> Any:
    """What drafts beside the target; None = nothing does, or the target itself. `config` as `__main__` says."""
    folder, engine, draft = config["draft_dir"], config["engine"], config["draft"]
    if draft["method"] == "medusa":
        heads = load_heads(folder, model, draft["k"])
        model._get_candidate_generator = lambda generation_config, **_: heads.generator(generation_config.max_length)
        return heads
    if draft["method"] == "mtp":
        return load_mtp_layers(model, draft["k"])
    if draft["method"] == "dflash":
        return sized_block(load_model(folder, engine, AutoModel), model, draft["k"])
    return load_model(folder, engine) if folder else None


def load_mtp_layers(model: Any, k: int) -> Any:
    """The MTP layers of the target's own checkpoint.

    transformers drafts one token a layer, and would read the layers from disk anew for every request: it gets these.
    """
    from transformers.modeling_layers import MtpModel  # not in older versions

    n_layers = getattr(model.config.get_text_config(), "num_mtp_layers", None) or 0
    if n_layers != k:
        instead = f"Use k={n_layers}." if n_layers else "Use another method."
        raise ValueError(
            f"`draft.k` must be the number of the target's MTP layers, each of which drafts one token: got {k}, and "
            f"{n_layers} in {type(model).__name__} as transformers reads it. {instead}"
        )
    try:
        layers = MtpModel.from_pretrained(model, device_map={"": model.device}).eval()
    except (RuntimeError, TypeError, ValueError) as failure:
        raise ValueError(f"the target's MTP layers could not be loaded: {' '.join(str(failure).split())}") from None
    make = model._get_candidate_generator

    def make_with_these(*args: Any, **kwargs: Any) -> Any:
        with patch.object(MtpModel, "from_pretrained", lambda *_, **__: layers):
            return make(*args, **kwargs)

    model._get_candidate_generator = make_with_these
    return layers


def sized_block(assistant: Any, model: Any, k: int) -> Any:
    """The DFlash draft, made to draft `k` tokens at once: its block is the last verified token and these."""
    lacking = [name for name in ("block_size", "mask_token_id", "target_layer_ids") if not hasattr(assistant.config, name)]
    if lacking:
        raise ValueError(
            f"a DFlash draft must have {', '.join(lacking)} in its configuration: {type(assistant).__name__} has not. "
            "transformers reads those of the type muse_glimmer_assistant."
        )
    config, text = assistant.config, model.config.get_text_config()
    if config.hidden_size != text.hidden_size or config.mask_token_id >= text.vocab_size:
        raise ValueError(
            f"a DFlash draft must fit its target: got hidden sizes of {config.hidden_size} and {text.hidden_size}, "
            f"and the mask token {config.mask_token_id} of {text.vocab_size}. Use one that was trained for this target."
        )
    if max(config.target_layer_ids) >= text.num_hidden_layers:
        raise ValueError(
            f"a DFlash draft must read layers that its target has: it reads {config.target_layer_ids} "
            f"of {text.num_hidden_layers}. Use one that was trained for this target."
        )
    if k >= config.block_size:
        raise ValueError(
            f"`draft.k` must be below the DFlash draft's block of {config.block_size} tokens: got {k}. Use a shorter one."
        )
    config.block_size = k + 1
    return assistant


def described(method: str, drafter: Any, model: Any) -> dict[str, Any]:
    """What was loaded to draft beside the target, for the facts. `draft_vocab_size`: the tokens that it can propose."""
    if drafter is None:
        return {}
    if method == "medusa":
        return {"draft_vocab_size": drafter.n_tokens, "medusa_heads": len(drafter), "medusa_layers": drafter.n_blocks}
    told = {
        "draft_vocab_size": model.config.get_text_config().vocab_size,
        "draft_layers": drafter.config.num_hidden_layers,
        "draft_architecture": type(drafter).__name__,
    }
    if method == "dflash":
        told |= {name: getattr(drafter.config, name) for name in ("block_size", "target_layer_ids")}
    return told


def weights_bytes(module: Any, beside: Any = None) -> int:
    """Bytes of the parameters and buffers, but those that `beside` has too; tied weights count once."""
    tensors = {tensor.data_ptr(): tensor for tensor in (*module.parameters(), *module.buffers())}
    shared = {tensor.data_ptr() for tensor in (*beside.parameters(), *beside.buffers())} if beside is not None else set()
    return sum(tensor.numel() * tensor.element_size() for at, tensor in tensors.items() if at not in shared)
