"""A script for the engine's environment: `python tiny_drafts.py FOLDER` saves small targets and what drafts for them.

`FOLDER/target` must be there (see tiny_model.py). `chain` answers token t with t + 1 (mod 64), whatever came before; its
last hidden state of t is a row of an orthogonal matrix, so that heads with any answer can be solved for.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

SIZE, END, N_HEADS, N_BLOCKS = 64, 40, 4, 2
Tensors = dict[str, torch.Tensor]


def main() -> None:
    folder = Path(sys.argv[1])
    torch.manual_seed(3)
    hidden = save_chain(folder / "chain")
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


def save_chain(folder: Path) -> torch.Tensor:
    """The model; returns its last hidden state of each token."""
    config = LlamaConfig(
        vocab_size=SIZE,
        hidden_size=SIZE,
        intermediate_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=32768,
    )
    model = LlamaForCausalLM(config).eval()
    rows = torch.linalg.qr(torch.randn(SIZE, SIZE)).Q
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
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
