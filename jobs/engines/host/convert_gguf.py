"""Owns GGUF → safetensors: `python convert_gguf.py FILE.gguf FOLDER`, in an environment with torch. Does not own the cache.

Weights are written as float32; the engine's `dtype` decides at load. The tokenizer comes along with its chat template.
transformers keeps GGUF weights packed unless it is told to, and packed ones cannot be saved.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig


def main() -> None:
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    where = {"pretrained_model_name_or_path": source.parent, "gguf_file": source.name, "local_files_only": True}
    model = AutoModelForCausalLM.from_pretrained(
        **where, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
    )
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(**where).save_pretrained(target)


if __name__ == "__main__":
    main()
