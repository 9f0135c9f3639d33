"""Owns where the files of a model come from: a local folder, the hub, or a GGUF file that is converted once and kept.

Does not own loading a model: no torch, no engine is imported. A conversion runs as a child in the engine's environment.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import partial
from pathlib import Path

import huggingface_hub  # what fetches is loaded when asked for: it takes half a second
from filelock import FileLock
from huggingface_hub import errors as hub_errors

from jobs.errors import BadInput
from jobs.provenance import PROJECT_ROOT, local_path

PACKAGE = "package:"
HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt", "medusa_lm_head.pt"]
"""What engines read; the hub often has the same weights again in older formats, but Medusa heads only in that."""
DESCRIPTION = [name for name in HUB_FILES if name not in ("*.safetensors", "medusa_lm_head.pt")]
"""Of these, what tells of a model without its weights: configuration, tokenizer, chat template. A few MB."""
HUB_TIMEOUT_S = 10
HUB_FAILURES = (OSError, ValueError, hub_errors.HTTPError)  # type: ignore[attr-defined]  # of whichever client it uses

CONVERTER = PROJECT_ROOT / "jobs/engines/host/convert_gguf.py"
CONVERTER_VERSION = 1  # in the cached folder's name: raise it when the converter writes something else
CONVERSION_LIMIT_S = 1800
LOOK_LIMIT_S = 60.0  # for an interpreter to start, be it on a slow file system

FIND_PACKAGE = (
    "import importlib.util, sys; s = importlib.util.find_spec(sys.argv[1]); print(s.submodule_search_locations[0])"
)


def resolve(path: str, revision: str = "", key: str = "model.path") -> Path:
    """A local folder with the configuration, weights and tokenizer of this model.

    `path` is a folder or a GGUF file (relative to the project's root), a hub id, or `package:NAME/FILE.gguf`. A model of the
    hub is downloaded and a GGUF file is converted the first time, which takes a while. Raises `BadInput`, which names `key`.
    """
    found = locate(path, revision, key)
    if found is None:
        return from_hub(path, revision, key)
    return found if found.is_dir() else converted(found)


def locate(path: str, revision: str = "", key: str = "model.path") -> Path | None:
    """The folder or GGUF file that `path` means on this machine; None = it is the hub's. Fetches and converts nothing.

    Raises `BadInput` for what is not there.
    """
    local = local_path(path)
    is_hub_id = HUB_ID.fullmatch(path) is not None and not local.exists()
    if revision and not is_hub_id:
        section = key.partition(".")[0]
        raise BadInput(f"`{section}.revision` is for models of the hub: got {revision!r} with {path!r}. Leave it out.")
    if path.startswith(PACKAGE):
        return find_in_package(path, key)
    if path and local.is_dir():
        return checked(local)
    if local.suffix == ".gguf" and local.is_file():
        return local
    if is_hub_id:
        return None
    raise BadInput(
        f"`{key}` must be a folder, a GGUF file, a hub id or {PACKAGE}NAME/FILE.gguf: got {path!r}. "
        f"There is no {local}. Name one that exists."
    )


def described_here(path: str, revision: str = "") -> Path | None:
    """A folder with the model's configuration and tokenizer: its own, where it is on this machine already, converted or
    downloaded; else what the hub gives of it without its weights. None where neither is to be had.
    """
    try:
        found = locate(path, revision)
    except BadInput:
        return None
    if found is None:
        return _kept_by_hub(path, revision) or _described_by_hub(path, revision)
    folder = found if found.is_dir() else converted_folder(found)
    return folder if folder.is_dir() else None


def _kept_by_hub(path: str, revision: str, cache: Path | None = None) -> Path | None:
    """The snapshot that a cache (None = the hub's own) has."""
    try:
        return Path(
            huggingface_hub.snapshot_download(path, revision=revision or None, cache_dir=cache, local_files_only=True)
        )
    except HUB_FAILURES:
        return None


def _described_by_hub(path: str, revision: str) -> Path | None:
    """Kept in a cache of its own: a snapshot without weights in the hub's would look like the model."""
    cache, at = cache_folder() / "descriptions", revision or None
    fetch = partial(huggingface_hub.snapshot_download, path, revision=at, allow_patterns=DESCRIPTION, cache_dir=cache)
    try:
        huggingface_hub.HfApi().model_info(path, revision=at, timeout=HUB_TIMEOUT_S)  # fails at once, a download does not
        return Path(fetch(etag_timeout=HUB_TIMEOUT_S))
    except HUB_FAILURES:
        return _kept_by_hub(path, revision, cache)


def checked(folder: Path) -> Path:
    """The folder, if it is a model's."""
    if not (folder / "config.json").is_file():
        found = ", ".join(sorted(item.name for item in folder.iterdir())[:8]) or "nothing"
        raise BadInput(f"a model's folder must hold a config.json: {folder} has {found}. Name the folder that holds it.")
    return folder


def from_hub(path: str, revision: str, key: str = "model.path") -> Path:
    """The snapshot in the hub's own cache, downloaded if need be."""
    try:
        folder = huggingface_hub.snapshot_download(
            path, revision=revision or None, allow_patterns=HUB_FILES, etag_timeout=HUB_TIMEOUT_S
        )
    except HUB_FAILURES as failure:
        at = f" at revision {revision!r}" if revision else ""
        raise BadInput(
            f"`{key}` must be a folder, or a model that the hub gives: got {path!r}{at}. {reason_of(failure)}. "
            "Check the name, the network, HF_HUB_OFFLINE, and HF_TOKEN for gated models; or name a local folder."
        ) from None
    return checked(Path(folder))


def reason_of(failure: BaseException) -> str:
    """What went wrong, as the first line of the failure at the root of this one."""
    root = failure.__cause__ or failure
    lines = str(root).strip().splitlines()
    return f"{type(root).__name__}: {lines[0]}".rstrip(".") if lines else type(root).__name__


def find_in_package(path: str, key: str = "model.path") -> Path:
    """The file that `package:NAME/FILE` means, in this environment or the engine's. The package is not imported."""
    name, _, file = path.removeprefix(PACKAGE).partition("/")
    if not name.isidentifier() or not file:
        raise BadInput(f"`{key}` must read {PACKAGE}NAME/FILE.gguf: got {path!r}. Name a package and a file in it.")
    folders = package_folders(name)
    for folder in folders:
        if (folder / file).is_file():
            return folder / file
    if has := sorted(item.name for folder in folders for item in folder.glob("*.gguf")):
        remedy = f"The package has {', '.join(has)}. Name one of these."
    else:
        remedy = (
            f"Neither {sys.executable} nor {engine_python()} has it. Install the package in one of them, or run `make env`."
        )
    raise BadInput(f"`{key}` must name a file of an installed package: got {path!r}. {remedy}")


def package_folders(name: str) -> list[Path]:
    """Where the environments keep this package, ours first."""
    ours = importlib.util.find_spec(name)
    folders = [Path(folder) for folder in (ours.submodule_search_locations or ())] if ours else []
    if Path(engine_python()).is_file():
        command = [engine_python(), "-I", "-c", FIND_PACKAGE, name]
        with suppress(subprocess.TimeoutExpired):
            told = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LOOK_LIMIT_S)
            folders += [Path(line) for line in told.stdout.splitlines()]
    return folders


def engine_python() -> str:
    """The interpreter of the environment that has torch and transformers: this node's, or the one that `make env` makes."""
    return os.environ.get("SPECSWEEP_TRANSFORMERS_PYTHON") or str(PROJECT_ROOT / ".venvs/transformers/bin/python")


def cache_folder() -> Path:
    """Where converted models are kept: SPECSWEEP_CACHE, or the user's cache folder."""
    if own := os.environ.get("SPECSWEEP_CACHE"):
        return Path(os.path.expanduser(own))  # noqa: PTH111 (pathlib's raises)
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg) / "specsweep"
    return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "specsweep"


def converted_folder(gguf: Path) -> Path:
    """Where the conversion of this file is kept, once it is done."""
    return cache_folder() / "models" / f"{gguf.stem}-{sha256_of(gguf)[:16]}-v{CONVERTER_VERSION}"


def converted(gguf: Path) -> Path:
    """The folder with this GGUF file's model as safetensors. Two processes at once: one converts, the other waits."""
    folder = converted_folder(gguf)
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):
            if not folder.is_dir():
                convert(gguf, folder)
    except OSError as failure:
        raise BadInput(
            f"converted models must fit into the cache folder {cache_folder()}: {reason_of(failure)}. "
            "Make room or make it writable, or name another folder in SPECSWEEP_CACHE."
        ) from None
    return folder


def convert(gguf: Path, folder: Path) -> None:
    """Make the folder, whole or not at all. The caller holds its lock, so what others left half made is nobody's."""
    for leftover in folder.parent.glob(f"{folder.name}.part-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    part = Path(tempfile.mkdtemp(prefix=f"{folder.name}.part-", dir=folder.parent))
    try:
        run_converter(gguf, part)
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def run_converter(gguf: Path, folder: Path) -> None:
    python = engine_python()
    if not Path(python).is_file():
        raise BadInput(
            f"a GGUF model needs an environment with torch to be converted: there is no {python}. "
            "Run `make env`, or name its interpreter in SPECSWEEP_TRANSFORMERS_PYTHON."
        )
    command = [python, "-I", str(CONVERTER), str(gguf), str(folder)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=CONVERSION_LIMIT_S)
    except subprocess.SubprocessError as failure:
        said = (getattr(failure, "stderr", None) or str(failure)).strip().splitlines()
        raise BadInput(f"the GGUF file must be one that transformers can open: {gguf}. It says: {said[-1]}") from None


def sha256_of(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
