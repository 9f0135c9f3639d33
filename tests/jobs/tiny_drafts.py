"""A script for the engine's environment: `python tiny_drafts.py FOLDER` saves small targets and what drafts for them.

`chain` (a Llama) and `mtp chain` (a Mellum with an MTP layer) answer token t with t + 1 (mod 64), whatever came before; the
last hidden state of t is a row of an orthogonal matrix, so that drafts with any answer can be solved for. Heads are for
`chain`, but where they are random or misfits: those are for the target of tiny_model.py. `mtp` is a random Mellum, `muse` a
random Muse Glimmer, which also sees.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MellumConfig,
    MellumForCausalLM,
    MuseGlimmerAssistantConfig,
    MuseGlimmerAssistantModel,
    MuseGlimmerConfig,
    MuseGlimmerForConditionalGeneration,
)
from transformers.modeling_layers import MtpModel

SIZE, END, MASK, N_HEADS, N_BLOCKS = 64, 40, 60, 4, 2
Tensors = dict[str, torch.Tensor]


def main() -> None:
    folder = Path(sys.argv[1])
    torch.manual_seed(3)
    hidden = save_chain(folder / "chain", LlamaForCausalLM(LlamaConfig(num_hidden_layers=2, **CHAIN)))
    right, half = (solved(hidden, says) for says in (lambda t, i: t + 2 + i, lambda t, i: t + 2 + i + (t % 3 == 0) * i))
    save_heads(folder / "heads", right, "medusa_lm_head.pt")
    save_heads(folder / "half", half, "medusa_lm_head.safetensors")
    save_heads(folder / "named as vLLM does", {**as_vllm(right), "token_map": torch.arange(SIZE)}, "model.safetensors")
    save_heads(folder / "pruned", pruned(right, torch.arange(0, SIZE, 2)), "medusa_lm_head.safetensors")
    save_heads(folder / "random", random_heads(32), "medusa_lm_head.safetensors")
    save_heads(folder / "wide", random_heads(48), "medusa_lm_head.safetensors")
    save_heads(folder / "wordy", random_heads(32, vocabulary=80), "medusa_lm_head.safetensors")
    save_heads(folder / "strange", {"fc.weight": torch.zeros(2, 2)}, "medusa_lm_head.safetensors")
    save_heads(folder / "torn", {k: v for k, v in random_heads(32).items() if k != "1.0.linear.bias"}, "medusa_lm_head.pt")
    save_heads(folder / "pickled", {"0.0.weight": Path("/")}, "medusa_lm_head.pt")
    save_heads(folder / "empty", {}, "other.pt")
    save_heads(folder / "headless", {"0.0.linear.weight": torch.zeros(32, 32)}, "medusa_lm_head.pt")
    save_heads(folder / "lost", {**random_heads(32), "token_map": torch.full((64,), 64)}, "model.safetensors")
    save_dflash_chain(folder / "dflash chain", hidden / hidden.norm(dim=1, keepdim=True))
    size = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    save_dflash(folder / "dflash", target_layer_ids=[0, 3], initializer_range=0.4, **size)
    save_dflash(folder / "deep", target_layer_ids=[0, 4], **size)
    save_muse(folder / "muse", num_hidden_layers=4, initializer_range=0.4, **size)
    save_mtp_chain(folder / "mtp chain")
    save_mtp(folder / "mtp", MellumForCausalLM(mellum(initializer_range=0.4)))
    MellumForCausalLM(mellum()).save_pretrained(folder / "mtp without its layer")


def save_dflash(folder: Path, **config: Any) -> MuseGlimmerAssistantModel:
    """A random draft of DFlash."""
    lengths = {"block_size": 5, "sliding_window": 16, "max_position_embeddings": 32768, "num_hidden_layers": 1}
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    model = MuseGlimmerAssistantModel(
        MuseGlimmerAssistantConfig(mask_token_id=MASK, rope_parameters=rope, pad_token_id=0, **lengths, **config)
    )
    model.save_pretrained(folder)
    return model


def save_muse(folder: Path, **text: Any) -> None:
    """The type of target for which such drafts are published."""
    text |= {"vocab_size": SIZE, "max_position_embeddings": 32768, "sliding_window": 16}
    text |= {"bos_token_id": None, "eos_token_id": END, "pad_token_id": 0}
    eye = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    tokens = {"image_token_id": 62, "video_token_id": 63}
    model = MuseGlimmerForConditionalGeneration(
        MuseGlimmerConfig(text_config=text, vision_config=eye, out_hidden_size=64, projector_hidden_size=16, **tokens)
    )
    model.generation_config = GenerationConfig(pad_token_id=0)
    model.save_pretrained(folder)


def save_dflash_chain(folder: Path, rows: torch.Tensor) -> None:
    """Says at every place of its block what follows the block's first token: the first one drafted is right, only that."""
    size = {"hidden_size": SIZE, "intermediate_size": 8, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32}
    model = save_dflash(folder, target_layer_ids=[1], **size)
    layer = model.layers[0]
    with torch.no_grad():
        model.encoder.fc.weight.zero_()
        layer.self_attn.q_proj.weight.zero_()  # every place attends evenly to all
        layer.self_attn.v_proj.weight.copy_(torch.eye(SIZE))
        layer.self_attn.o_proj.weight.copy_(1e4 * (torch.eye(SIZE) - torch.outer(rows[MASK], rows[MASK])))
        layer.mlp.down_proj.weight.zero_()
    model.save_pretrained(folder)


CHAIN: dict[str, Any] = {
    "vocab_size": SIZE,
    "hidden_size": SIZE,
    "intermediate_size": 8,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
}


def mellum(**changes: Any) -> MellumConfig:
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
    attention = {"layer_types": ["full_attention", "sliding_attention"], "head_dim": 8, "sliding_window": 16}
    layers = {"num_hidden_layers": 2, "mlp_layer_types": ["dense", "sparse"], **attention}
    return MellumConfig(**CHAIN, **experts, **layers, num_mtp_layers=1, mtp_mlp_layer_types=["dense"], **changes)


def save_mtp_chain(folder: Path) -> None:
    """Its MTP layer reads only the token, and after every third one it is wrong."""
    config = mellum()
    config.mlp_layer_types = ["dense", "dense"]
    model = MellumForCausalLM(config)
    save_chain(folder, model)
    rows = model.model.embed_tokens.weight
    says = rows[[(token + 5 * (token % 3 == 0)) % SIZE for token in range(SIZE)]]
    layer = MtpModel(model, 1).layers[0]
    silence(layer.mtp_block)
    with torch.no_grad():
        layer.eh_proj.weight.copy_(torch.cat([says.T @ rows, torch.zeros(SIZE, SIZE)], dim=1))
    add_mtp(folder, layer)


def save_mtp(folder: Path, model: Any) -> None:
    model.generation_config = GenerationConfig(pad_token_id=0)
    model.save_pretrained(folder)
    add_mtp(folder, MtpModel(model, 1).layers[0])


def add_mtp(folder: Path, layer: nn.Module) -> None:
    """Put the layer into the target's checkpoint, as published ones have it."""
    file = folder / "model.safetensors"
    layers = {f"mtp.layers.0.{name}": tensor for name, tensor in layer.state_dict().items()}
    save_file({**load_file(file), **layers}, file, metadata={"format": "pt"})


def silence(layer: Any) -> None:
    """What comes in goes out."""
    with torch.no_grad():
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()


def save_chain(folder: Path, model: Any) -> torch.Tensor:
    """The model, made a chain; returns its last hidden state of each token."""
    model.eval()
    rows = torch.linalg.qr(torch.randn(SIZE, SIZE)).Q
    for layer in model.model.layers:
        silence(layer)
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(rows)
        model.lm_head.weight.copy_(rows.roll(1, 0))
        model.generation_config = GenerationConfig(eos_token_id=END, pad_token_id=0)
        model.save_pretrained(folder)
        return model.model(torch.arange(SIZE)[:, None]).last_hidden_state[:, 0]


def solved(hidden: torch.Tensor, says: Callable[[int, int], int]) -> Tensors:
    """Heads with random blocks whose last layer makes head i say `says(t, i)` after token t."""
    tensors = {}
    for i in range(N_HEADS):
        state = hidden
        for block in range(N_BLOCKS):
            linear = nn.Linear(SIZE, SIZE).requires_grad_(False)
            state = state + nn.functional.silu(linear(state))
            tensors |= {f"{i}.{block}.linear.weight": linear.weight.data, f"{i}.{block}.linear.bias": linear.bias.data}
        wanted = torch.zeros(SIZE, SIZE)
        for token in range(SIZE):
            wanted[token, says(token, i) % SIZE] = 1.0
        tensors[f"{i}.{N_BLOCKS}.weight"] = torch.linalg.solve(state, wanted).T.contiguous()
    return tensors


def random_heads(size: int, vocabulary: int = 64) -> Tensors:
    shapes = {"0.linear.weight": (size, size), "0.linear.bias": (size,), "1.weight": (vocabulary, size)}
    return {f"{i}.{name}": torch.randn(shape) for i in range(3) for name, shape in shapes.items()}


def as_vllm(tensors: Tensors) -> Tensors:
    """The same under vLLM's names."""
    renamed = {}
    for name, tensor in tensors.items():
        head, layer, *rest = name.split(".")
        renamed[f"blocks.{head}.layers.{layer}.{rest[-1]}" if "linear" in rest else f"lm_heads.{head}.weight"] = tensor
    return renamed


def pruned(tensors: Tensors, tokens: torch.Tensor) -> Tensors:
    """The same heads, which can only say these tokens."""
    kept = {name: tensor if "linear" in name else tensor[tokens] for name, tensor in tensors.items()}
    return {**kept, "token_map": tokens}


def save_heads(folder: Path, tensors: Tensors, file: str) -> None:
    folder.mkdir()
    (folder / "config.json").write_text('{"medusa_num_heads": 2, "medusa_num_layers": 1}')
    save_file(tensors, folder / file) if file.endswith(".safetensors") else torch.save(tensors, folder / file)


if __name__ == "__main__":
    main()
