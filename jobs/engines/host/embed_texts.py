"""Owns texts → vectors: `python embed_texts.py FOLDER TEXTS.json VECTORS.npz`, where torch is. Does not own the cache.

The model is as sentence-transformers lays it out: a transformer, pooling, and perhaps a normalisation; without
`modules.json` the mean over the tokens is taken, as that library does. The last word on stderr says what is wrong.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoModel, AutoTokenizer

TOKENS = 16384  # of a batch, padding counted in
AT_ONCE = 256  # texts that are tokenized to be counted: those of a large pool together would take tens of GB


def mean(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    weights = mask.unsqueeze(-1).to(states.dtype)
    return (states * weights).sum(1) / weights.sum(1)


def first(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return states[torch.arange(len(states)), mask.argmax(1)]


def last(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    places = torch.arange(mask.shape[1], device=mask.device)
    return states[torch.arange(len(states)), (mask * places).argmax(1)]


def largest(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return states.masked_fill(mask.unsqueeze(-1) == 0, -torch.inf).amax(1)


POOLINGS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "mean": mean,
    "mean_tokens": mean,
    "cls": first,
    "cls_token": first,
    "lasttoken": last,
    "max": largest,
    "max_tokens": largest,
}


def main() -> None:
    folder, source, target = map(Path, sys.argv[1:4])
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    pool = pooling_of(folder)
    prefix = prefix_of(folder)
    texts = [prefix + text for text in json.loads(source.read_bytes())]
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModel.from_pretrained(folder, local_files_only=True, dtype=torch.float32).to(device).eval()
    limit = limit_of(folder, tokenizer, model.config)
    lengths = lengths_of(tokenizer, texts)
    vectors: Any = None
    done = 0
    for batch in batches(lengths, limit):
        encoded = tokenizer(
            [texts[n] for n in batch], truncation=True, max_length=limit, padding=True, return_tensors="pt"
        ).to(device)
        with torch.inference_mode():
            found = pool(model(**encoded).last_hidden_state, encoded["attention_mask"])
        if vectors is None:
            vectors = np.empty((len(texts), found.shape[1]), np.float32)
        vectors[batch] = torch.nn.functional.normalize(found, dim=1).cpu().numpy()
        done += len(batch)
        print(done, flush=True)  # noqa: T201 - the parent shows it
    np.savez(target, vectors=vectors, limit=limit, cut=sum(length > limit for length in lengths))


def read_json(path: Path) -> Any:
    return json.loads(path.read_bytes()) if path.is_file() else {}


def pooling_of(folder: Path) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """How the states of the tokens become one vector; ends with a word for a model that does it in another way."""
    modules = {module["type"].rpartition(".")[2]: module["path"] for module in read_json(folder / "modules.json") or []}
    if unknown := sorted(set(modules) - {"Transformer", "Pooling", "Normalize"}):
        sys.exit(f"it has modules {', '.join(unknown)}, and Transformer, Pooling and Normalize are known")
    config = read_json(folder / modules["Pooling"] / "config.json") if "Pooling" in modules else {"pooling_mode": "mean"}
    modes = [name.removeprefix("pooling_mode_") for name, on in config.items() if name.startswith("pooling_mode_") and on]
    modes = modes or [config.get("pooling_mode", "")]
    if len(modes) != 1 or modes[0] not in POOLINGS:
        sys.exit(f"its pooling is {' + '.join(modes)}, and one of {', '.join(POOLINGS)} is known")
    return POOLINGS[modes[0]]


def prefix_of(folder: Path) -> str:
    """What the model wants before each text, where it has a default."""
    config = read_json(folder / "config_sentence_transformers.json")
    return str((config.get("prompts") or {}).get(config.get("default_prompt_name"), ""))


def limit_of(folder: Path, tokenizer: Any, config: Any) -> int:
    """Most tokens of a text: of the model as it was trained for this, of its tokenizer, and of its positions."""
    given = read_json(folder / "sentence_bert_config.json").get("max_seq_length")
    positions = getattr(config, "max_position_embeddings", None)
    return int(given or min(tokenizer.model_max_length, positions or tokenizer.model_max_length))


def lengths_of(tokenizer: Any, texts: Sequence[str]) -> list[int]:
    """Tokens of each text, however long."""
    parts = (list(texts[start : start + AT_ONCE]) for start in range(0, len(texts), AT_ONCE))
    told = (tokenizer(part, return_attention_mask=False, return_token_type_ids=False)["input_ids"] for part in parts)
    return [len(ids) for part in told for ids in part]


def batches(lengths: Sequence[int], limit: int) -> Iterator[list[int]]:
    """Places of texts, the longest first, at most TOKENS at once: what is in a batch is padded to its longest."""
    order = sorted(range(len(lengths)), key=lambda n: -lengths[n])
    while order:
        count = max(1, TOKENS // max(1, min(lengths[order[0]], limit)))
        yield order[:count]
        order = order[count:]


if __name__ == "__main__":
    main()
