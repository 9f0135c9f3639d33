"""Engines' own options: as they were recorded from the sources, and what is refused because of them."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.engines.base import Site
from jobs.engines.options import Option, known_of, option_rules, words_of
from jobs.engines.prometheus import Sample, labels_of, samples_in, total
from jobs.engines.sglang import SGLangEngine
from jobs.spec import Deployment, Draft, Engine, Model

sys.path.insert(0, str(Path(__file__).parent))

from record_options import llama_options, sglang_options  # a module of this folder, which is no package

SGLANG = "0.5.23"
OPTIONS = {
    "on": Option("switch", "--on"),
    "pair": Option("bool", "--pair", "--no-pair"),
    "count": Option("int", "--count"),
    "share": Option("float", "--share", nullable=True),
    "kind": Option("str", "--kind", choices=("a", "b")),
    "many": Option("list", "--many"),
}


@pytest.fixture(scope="session")
def wheel() -> Path:
    """The real wheel of SGLang, kept in the user's cache folder; skips where it can't be had."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specsweep/wheels"
    if not list(folder.glob(f"sglang-{SGLANG}-*.whl")):
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--only-binary",
            ":all:",
            "--python-version",
            "3.11",
        ]
        command += ["--platform", "manylinux_2_34_x86_64", "--quiet", "--dest", str(folder), f"sglang=={SGLANG}"]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=120)
        except (OSError, subprocess.SubprocessError) as failure:
            pytest.skip(f"the wheel of SGLang {SGLANG} (39 MB) cannot be had: {failure}")
    return next(folder.glob(f"sglang-{SGLANG}-*.whl"))


def test_what_is_known_of_sglang_is_what_its_wheel_has(wheel: Path) -> None:
    recorded = {name: option for name, option in sglang_options(wheel).items()}
    known = known_of("sglang", SGLANG).sections["server"]
    assert set(known) == set(recorded)
    for name, told in recorded.items():
        assert known[name] == Option(**{**told, "choices": tuple(told.get("choices", ()))}), name


def test_sglang_reads_the_name_and_the_key_from_their_file(wheel: Path, tmp_path: Path) -> None:
    """By its own code for that, which needs nothing else of it."""
    source = zipfile.ZipFile(wheel).read("sglang/srt/utils/server_args_config_parser.py")
    namespace: dict[str, Any] = {"__name__": "config_parser"}
    exec(source, namespace)
    deployment = Deployment(Model("m", "m"), Engine("sglang", cuda_graphs=False), Draft())
    how = SGLangEngine().launch(deployment, Site(4711, "nonce-1", Path("/m"), None, tmp_path))
    (tmp_path / "key.yaml").write_text(how.files["key.yaml"])
    parser = argparse.ArgumentParser()
    for name in ("config", "api-key", "served-model-name", "port"):
        parser.add_argument(f"--{name}")
    told, _ = parser.parse_known_args(namespace["ConfigArgumentMerger"](parser).merge_config_with_args(list(how.argv[3:])))
    assert (told.api_key, told.served_model_name, told.port) == ("nonce-1", "nonce-1", "4711")


def test_a_recorded_version_is_the_default_and_of_others_nothing_is_known() -> None:
    assert known_of("sglang").version == SGLANG
    assert known_of("sglang", "0.4.0").sections == {}
    assert all(known_of(name).source for name in ("sglang", "tensorrt_llm", "llama_cpp"))


ARG_CPP = """
    add_opt(common_arg(
        {"-c", "--ctx-size"}, "N",
        string_format("size (default: %d)", params.n_ctx),
        [](common_params & params, int value) {
            params.n_ctx = value;
        }
    ).set_env("X"));
    add_opt(common_arg(
        {"--cache-prompt"},
        {"--no-cache-prompt"},
        "whether",
        [](common_params & params, bool value) {
            params.cache_prompt = value;
        }
    ).set_examples({LLAMA_EXAMPLE_SERVER}));
    add_opt(common_arg(
        {"--bench-only"}, "N",
        "of another program",
        [](common_params & params, const std::string & value) {
        }
    ).set_examples({LLAMA_EXAMPLE_BENCH}));
    add_opt(common_arg(
        {"--draft"}, "N",
        "the argument has been removed. use another",
        [](common_params & /*params*/, int /*value*/) {
        }
    ).set_examples({LLAMA_EXAMPLE_SERVER}));
"""


def test_the_options_of_llama_server_are_read_from_its_source() -> None:
    assert llama_options(ARG_CPP) == {
        "cache_prompt": {"kind": "bool", "flag": "--cache-prompt", "off": "--no-cache-prompt"},
        "ctx_size": {"kind": "int", "flag": "--ctx-size"},
    }


@pytest.mark.parametrize(
    ("name", "value", "wrong"),
    [
        pytest.param("onn", True, r"`args` must hold options that the engine has: got 'onn'\. Alike: on", id="unknown"),
        pytest.param("ours", 1, r"`args\.ours` must be left to SpecSweep: use engine\.batch\.", id="ours"),
        pytest.param("on", False, r"`args\.on` must be true \(leave it out for false\): got False", id="no opposite"),
        pytest.param("count", True, r"`args\.count` must be a whole number: got True", id="a truth is no number"),
        pytest.param("count", 1.5, r"`args\.count` must be a whole number: got 1\.5", id="a part of a number"),
        pytest.param("count", None, r"`args\.count` must be a whole number: got None", id="null"),
        pytest.param("share", "a", r"`args\.share` must be a number or null: got 'a'", id="text for a number"),
        pytest.param("kind", "c", r"`args\.kind` must be one of a, b: got 'c'", id="a choice that is none"),
        pytest.param("many", "a", r"`args\.many` must be a list: got 'a'", id="one for many"),
    ],
)
def test_options_that_are_refused(name: str, value: Any, wrong: str) -> None:
    options = {**OPTIONS, "ours": Option("int", "--ours")}
    with pytest.raises(ValueError, match=wrong):
        raise ValueError(
            "\n".join(
                text for holds, text in option_rules("args", {name: value}, {"ours": "engine.batch"}, options) if not holds
            )
        )


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        pytest.param("on", True, ["--on"], id="switch"),
        pytest.param("on", False, [], id="switch that is off"),
        pytest.param("pair", False, ["--no-pair"], id="opposite"),
        pytest.param("count", 3, ["--count", "3"], id="number"),
        pytest.param("many", ["a", 1], ["--many", "a", "1"], id="list"),
        pytest.param("some_map", {"a": 1}, ["--some-map", '{"a": 1}'], id="an option that was not recorded"),
    ],
)
def test_options_in_the_words_of_a_command_line(name: str, value: Any, words: list[str]) -> None:
    assert list(words_of(name, value, OPTIONS)) == words
    rules = option_rules("args", {name: value}, {}, {})
    assert all(holds for holds, _ in rules), "of an engine of which nothing is known, everything is let through"


PAGE = """
# HELP a:b_total Something.
# TYPE a:b_total counter
a:b_total{name="x \\"y\\" \\\\ z",pos="0"} 3.0
a:b_total{name="other",pos="1"} 1e3
up 1
nan_one NaN
config_info{k="4",quoted="a}b"} 1.0 1395066363000
"""


def test_a_page_of_metrics() -> None:
    samples = samples_in(PAGE)
    assert samples[0] == Sample("a:b_total", {"name": 'x "y" \\ z', "pos": "0"}, 3.0)
    assert total(samples, "a:b_total") == 1003.0
    assert total(samples, "absent") is None
    assert labels_of(samples, "config_info") == {"k": "4", "quoted": "a}b"}
    assert labels_of(samples, "absent") == {}
    assert [sample.name for sample in samples] == ["a:b_total", "a:b_total", "up", "nan_one", "config_info"]


@given(
    st.dictionaries(
        st.from_regex(r"[a-z]{1,5}", fullmatch=True),
        st.text(st.characters(blacklist_characters="\r\n\x85\u2028\u2029", blacklist_categories=["Cc", "Cs"])),
        max_size=3,
    )
)
def test_labels_are_read_as_they_were_written(labels: dict[str, str]) -> None:
    escaped = {name: value.replace("\\", "\\\\").replace('"', '\\"') for name, value in labels.items()}
    line = "m{" + ",".join(f'{name}="{value}"' for name, value in escaped.items()) + "} 1\n"
    assert samples_in(line) == [Sample("m", labels, 1.0)]
