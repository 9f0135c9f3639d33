"""A script for the engine's environment: `python tiny_embedder.py FOLDER LIMIT TEXTS CASES` embeds with a random BERT.

A case (of CASES, JSON: name → its files) is a copy of the model with other files in it, FOLDER/name. Each runs as
`embed_texts.py` does, in one process, because torch takes long to import: it leaves vectors.npz, or in refused.txt why not.
FOLDER/states.json has, for each text alone, cut to LIMIT tokens, the state of every token: by these, poolings are checked.
FOLDER/counted.json says how it counts the tokens of many texts.
"""

import json
import runpy
import shutil
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "red", "green", "blue")
SCRIPT = Path(__file__).resolve().parents[2] / "jobs/engines/host/embed_texts.py"


def main() -> None:
    folder, limit, texts, cases = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3]), json.loads(sys.argv[4])
    states = saved(folder / "model", limit, texts)
    (folder / "states.json").write_text(json.dumps(states))
    (folder / "texts.json").write_text(json.dumps(texts))
    for name, files in cases.items():
        shutil.copytree(folder / "model", folder / name)
        for file, content in files.items():
            (folder / name / file).parent.mkdir(exist_ok=True)
            (folder / name / file).write_text(json.dumps(content))
        run(folder / name, folder / "texts.json")
    (folder / "counted.json").write_text(json.dumps(counted(1000)))


def counted(n_texts: int) -> tuple[list[int], list[int]]:
    """Of texts of 1, 2, ... words: the lengths that are told, and how many texts the tokenizer got each time."""
    got = []

    def tokenizer(texts: list[str], **options: bool) -> dict[str, list[list[int]]]:
        got.append(len(texts))
        return {"input_ids": [[0] * len(text.split()) for text in texts]}

    return runpy.run_path(str(SCRIPT))["lengths_of"](tokenizer, ["red " * n for n in range(1, n_texts + 1)]), got


def saved(folder: Path, limit: int, texts: list[str]) -> list[list[list[float]]]:
    """Save the model; the states of the tokens of each text."""
    torch.manual_seed(0)
    words = Tokenizer(models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]", model_max_length=64)
    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    model = BertModel(BertConfig(vocab_size=len(WORDS), max_position_embeddings=64, initializer_range=0.5, **size)).eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    states = []
    for text in texts:
        ids = tokenizer(text, truncation=True, max_length=limit, return_tensors="pt")
        with torch.inference_mode():
            states.append(model(**ids).last_hidden_state[0].tolist())
    return states


def run(folder: Path, texts: Path) -> None:
    sys.argv = [str(SCRIPT), str(folder), str(texts), str(folder / "vectors.npz")]
    try:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    except SystemExit as refused:
        (folder / "refused.txt").write_text(str(refused.code))


if __name__ == "__main__":
    main()
