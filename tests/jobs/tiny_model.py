"""A script for the engine's environment: `python tiny_model.py FOLDER LAYERS SEED` saves a random Llama of 64 tokens.

Its EOS is a token that its greedy answer to [1, 2, 3] comes to after at least 4 others, so that it has a natural end. That
answer goes into greedy.json. Its generation settings are such as many models bring: they must not leak into a request.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM


def main() -> None:
    folder, layers, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.manual_seed(seed)
    size = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(
        vocab_size=64, num_hidden_layers=layers, max_position_embeddings=4096, initializer_range=0.4, **size
    )
    model = LlamaForCausalLM(config).eval()
    ids = greedy_answer(model)
    end = next(i for i, token in enumerate(ids) if i >= 4 and token not in ids[:i])
    model.generation_config = GenerationConfig(
        eos_token_id=ids[end], pad_token_id=0, do_sample=True, temperature=0.1, repetition_penalty=3.0
    )
    model.save_pretrained(folder)
    (Path(folder) / "greedy.json").write_text(json.dumps(ids[: end + 1]))


def greedy_answer(model: LlamaForCausalLM) -> list[int]:
    prompt = torch.tensor([[1, 2, 3]])
    model.generation_config = GenerationConfig(pad_token_id=0, max_new_tokens=40)
    ids: list[int] = model.generate(prompt, attention_mask=torch.ones_like(prompt))[0, 3:].tolist()
    return ids


if __name__ == "__main__":
    main()
