"""Owns Medusa heads: their files, and the chain of greedy candidates that they draft. Does not own verification.

Head i reads the target's last hidden state (what its output layer reads) at position t and says the token at t + 2 + i; the
target itself says t + 1. A head is some residual blocks x + SiLU(Wx + b), then a linear layer to the vocabulary. Only a
chain is drafted, no tree: transformers verifies one. Checkpoints come with names of two kinds, both are read:

    Medusa's own  0.0.linear.weight, 0.0.linear.bias, 0.1.weight      in medusa_lm_head.safetensors or .pt
    vLLM's        blocks.0.layers.0.weight, lm_heads.0.weight         in model.safetensors, maybe with a token_map

How many heads there are is counted in the file: published configurations are known to be wrong about it.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn
from transformers.generation.candidate_generator import CandidateGenerator

FILES = ("medusa_lm_head.safetensors", "medusa_lm_head.pt", "model.safetensors")
"""Where heads are looked for, in this order."""

TOKEN_MAP = "token_map"
BLOCK = re.compile(r"(?:(\d+)\.(\d+)\.linear|blocks\.(\d+)\.layers\.(\d+))\.(weight|bias)")
LAST = re.compile(r"(?:(\d+)\.\d+|lm_heads\.(\d+))\.weight")


class ResBlock(nn.Module):  # type: ignore[misc]  # torch is not typed here
    def __init__(self, size: int, bias: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size, bias=bias)

    def forward(self, hidden: Any) -> Any:
        return hidden + nn.functional.silu(self.linear(hidden))


class MedusaHeads(nn.ModuleList):  # type: ignore[misc]  # torch is not typed here
    """The heads that are used: as many as a draft is long."""

    def __init__(self, shape: tuple[int, int], n_heads: int, n_blocks: int, bias: bool) -> None:
        rows, size = shape
        super().__init__(
            nn.Sequential(*(ResBlock(size, bias) for _ in range(n_blocks)), nn.Linear(size, rows, bias=False))
            for _ in range(n_heads)
        )
        self.register_buffer(TOKEN_MAP, None)
        self.n_tokens, self.n_blocks = rows, n_blocks

    def generator(self, max_length: int) -> MedusaGenerator:
        """What drafts for one request of this length, prompt and output."""
        return MedusaGenerator(self, max_length)

    def draft(self, hidden: Any, n_tokens: int) -> Any:
        """The first `n_tokens` tokens after the next one, from the last hidden state of shape (1, size)."""
        rows = torch.cat([head(hidden).argmax(dim=-1, keepdim=True) for head in islice(self, n_tokens)], dim=-1)
        return rows if self.token_map is None else self.token_map[rows]


class MedusaGenerator(CandidateGenerator):  # type: ignore[misc]  # transformers has no types
    """One request's drafts. The first round has none: the hidden state that the heads read is what the prefill makes."""

    requires_model_outputs = True
    model_kwargs_overrides = {"output_hidden_states": -1}  # noqa: RUF012  # transformers reads it from the object

    def __init__(self, heads: MedusaHeads, max_length: int) -> None:
        self.heads = heads
        self.max_length = max_length
        self.n_drafted = 0

    def get_candidates(
        self, input_ids: Any, model_outputs: Any, is_first_iteration: bool, n_last_matches: int, **_: Any
    ) -> tuple[Any, None]:
        """What was verified last ends with the drafted tokens, of which `n_last_matches` were right."""
        room = max(0, self.max_length - input_ids.shape[1] - 1)
        n_tokens = 0 if is_first_iteration else min(len(self.heads), room)
        if not n_tokens:
            return input_ids, None
        hidden = model_outputs.hidden_states[-1]
        verified = hidden[:, hidden.shape[1] - 1 - self.n_drafted + n_last_matches]
        self.n_drafted = n_tokens
        return torch.cat([input_ids, self.heads.draft(verified, n_tokens).to(input_ids.device)], dim=-1), None


def load_heads(folder: str, model: Any, k: int) -> MedusaHeads:
    """The first `k` heads of this folder, checked against the target, on its device and in its type."""
    named = read(Path(folder))
    token_map = named.pop(TOKEN_MAP, None)
    tensors = as_own_names(named)
    n_heads, n_blocks = counts(tensors)
    if n_heads < k:
        raise ValueError(f"`draft.k` must be at most the {n_heads} Medusa heads of {folder}: got {k}. Use fewer.")
    shape = checked_shape(tensors[f"0.{n_blocks}.weight"], token_map, model)
    with torch.device("meta"):
        heads = MedusaHeads(shape, k, n_blocks, bias="0.0.linear.bias" in tensors)
    fill(heads, {name: tensor for name, tensor in tensors.items() if int(name.partition(".")[0]) < k})
    heads.to(device=model.device, dtype=model.dtype)
    heads.token_map = None if token_map is None else token_map.to(device=model.device, dtype=torch.long)
    heads.requires_grad_(False)
    return heads


def read(folder: Path) -> dict[str, Any]:
    """The tensors by the names in the file. A pickle may hold nothing else."""
    found = next((folder / name for name in FILES if (folder / name).is_file()), None)
    if found is None:
        raise ValueError(f"Medusa heads must be one of {', '.join(FILES)}: {folder} has none. Name another folder.")
    if found.suffix == ".safetensors":
        return dict(load_file(found))
    try:
        return dict(torch.load(found, map_location="cpu", weights_only=True))
    except pickle.UnpicklingError:
        raise ValueError(f"{found} must hold only tensors: it holds other objects, and is not loaded.") from None


def as_own_names(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors under Medusa's own names, whichever they had; `ValueError` for a name of neither kind."""
    bare = {re.sub(r"^medusa_heads?\.", "", name): tensor for name, tensor in tensors.items()}
    blocks = {name: match for name in bare if (match := BLOCK.fullmatch(name))}
    n_blocks = 1 + max((int(match[2] or match[4]) for match in blocks.values()), default=-1)
    renamed = {}
    for name, tensor in bare.items():
        if block := blocks.get(name):
            renamed[f"{block[1] or block[3]}.{block[2] or block[4]}.linear.{block[5]}"] = tensor
        elif last := LAST.fullmatch(name):
            renamed[f"{last[1] or last[2]}.{n_blocks}.weight"] = tensor
        else:
            raise ValueError(f"Medusa heads must have tensors of a known name: got {name!r}. This may be another draft.")
    return renamed


def counts(tensors: Mapping[str, Any]) -> tuple[int, int]:
    """How many heads, and blocks in each."""
    lasts = [name.split(".") for name in tensors if ".linear." not in name]
    if not any(name[0] == "0" for name in lasts):
        raise ValueError("Medusa heads must each end in a layer to the vocabulary: the first one has none.")
    return len(lasts), int(lasts[0][1])


def checked_shape(last: Any, token_map: Any, model: Any) -> tuple[int, int]:
    """(tokens that a head can propose, hidden size), if they are the target's."""
    vocabulary, size = model.get_output_embeddings().weight.shape
    rows, width = last.shape
    if width != size:
        raise ValueError(f"Medusa heads must have the target's hidden size {size}: got {width}. {TRAINED}")
    if token_map is None and rows != vocabulary:
        raise ValueError(f"Medusa heads must have the target's vocabulary of {vocabulary} tokens: got {rows}. {TRAINED}")
    if token_map is not None and (len(token_map) != rows or not 0 <= token_map.min() <= token_map.max() < vocabulary):
        raise ValueError(
            f"the Medusa heads' token_map must give each of {rows} rows a token below {vocabulary}: it has "
            f"{len(token_map)}, up to {int(token_map.max())}. {TRAINED}"
        )
    return rows, width


TRAINED = "Use heads that were trained for this target."


def fill(heads: MedusaHeads, tensors: Mapping[str, Any]) -> None:
    """Put the tensors in; all must be there and fit."""
    try:
        heads.load_state_dict(dict(tensors), assign=True)
    except RuntimeError as failure:
        raise ValueError("Medusa heads must all be of one shape: " + " ".join(str(failure).split())) from None
