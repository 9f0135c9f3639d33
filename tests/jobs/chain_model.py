"""Owns small models whose answers are known without running them, as folders for real engines. Does not own any engine.

The target answers token t with t + 1 (255 with 0): its attention and its layers only add noise too small to matter. Its end
token is `END`, its tokenizer the one of `conf/model/bytes.yaml`. Nothing here needs torch.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

BYTES = Path(__file__).resolve().parents[2] / "jobs/workloads/data/bytes"
VOCABULARY, CYCLE, END = 258, 256, 200
SIZE, HEADS, LAYERS = 64, 2, 4
LENGTH = 32768

Tensors = dict[str, np.ndarray[Any, np.dtype[np.float32]]]


def write_models(folder: Path) -> None:
    """`target`, its drafts `medusa` (always right), `eagle` and `eagle3` (no weights), and `mimo`, with an MTP layer.

    What has no weights needs an engine that makes some up.
    """
    rng = np.random.default_rng(1)
    embedding = rng.standard_normal((VOCABULARY, SIZE)).astype(np.float32)
    save(folder / "target", llama_config(LAYERS), {**layers(rng, LAYERS), **ends(embedding)})
    heads = {f"lm_heads.{i}.weight": follows(embedding, i + 2) for i in range(3)}
    zero = np.zeros((SIZE, SIZE), np.float32)
    blocks = {f"blocks.{i}.layers.0.weight": zero for i in range(3)}
    medusa = {"model_type": "medusa", "architectures": ["MedusaModel"], "num_heads": 3, "num_hidden_layers": 1}
    save(folder / "medusa", {**medusa, "hidden_size": SIZE, "vocab_size": VOCABULARY}, {**heads, **blocks})
    for name, architecture in (("eagle", "LlamaForCausalLM"), ("eagle3", "LlamaForCausalLMEagle3")):
        save(folder / name, {**llama_config(1), "architectures": [architecture], "draft_vocab_size": VOCABULARY}, {})
    mimo = {
        "model_type": "qwen2",
        "architectures": ["MiMoForCausalLM"],
        "num_nextn_predict_layers": 1,
    }
    save(folder / "mimo", {**llama_config(2), **mimo}, {})


def llama_config(n_layers: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": SIZE,
        "intermediate_size": SIZE,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 1,
        "head_dim": SIZE // HEADS,
        "num_hidden_layers": n_layers,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": LENGTH,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "eos_token_id": END,
        "torch_dtype": "float32",
    }


def layers(rng: np.random.Generator, count: int) -> Tensors:
    kv = SIZE // HEADS
    shapes = {
        "self_attn.q_proj": (SIZE, SIZE),
        "self_attn.k_proj": (kv, SIZE),
        "self_attn.v_proj": (kv, SIZE),
        "self_attn.o_proj": (SIZE, SIZE),
        "mlp.gate_proj": (SIZE, SIZE),
        "mlp.up_proj": (SIZE, SIZE),
        "mlp.down_proj": (SIZE, SIZE),
    }
    found: Tensors = {}
    for i in range(count):
        for name, shape in shapes.items():
            found[f"model.layers.{i}.{name}.weight"] = 0.02 * rng.standard_normal(shape).astype(np.float32)
        for name in ("input_layernorm", "post_attention_layernorm"):
            found[f"model.layers.{i}.{name}.weight"] = np.ones(SIZE, np.float32)
    return found


def ends(embedding: np.ndarray[Any, np.dtype[np.float32]]) -> Tensors:
    """What comes before and after the layers."""
    return {
        "model.embed_tokens.weight": embedding,
        "model.norm.weight": np.ones(SIZE, np.float32),
        "lm_head.weight": follows(embedding, 1),
    }


def follows(embedding: np.ndarray[Any, np.dtype[np.float32]], steps: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """An output layer under which the token that comes `steps` after the one embedded is by far the likeliest."""
    head = np.zeros_like(embedding)
    head[[(token + steps) % CYCLE for token in range(CYCLE)]] = embedding[:CYCLE]
    return head


def save(folder: Path, config: Mapping[str, Any], tensors: Tensors) -> None:
    shutil.copytree(BYTES, folder)
    (folder / "config.json").write_text(json.dumps(config))
    generation = {"eos_token_id": END, "do_sample": True, "temperature": 0.1, "repetition_penalty": 3.0}
    (folder / "generation_config.json").write_text(json.dumps(generation))  # as many models have; none of it may leak
    if tensors:
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
