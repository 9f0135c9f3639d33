"""What is read from answers: where thoughts end, and whether the answer is valid."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from jobs.errors import BadInput
from jobs.workloads.base import Prompt
from jobs.workloads.outputs import MARKS, thoughts_of, with_outputs_read
from jobs.workloads.tokenize import ChatTokenizer, conversations
from storage.rows import RequestRow

TEMPLATE = (
    "{% for m in messages %}<|im|>{{ m['role'] }}\n{{ m['content'] }}{% endfor %}<|im|>assistant\n"
    "{% if mode == 'open' %}<think>{% elif mode == 'closed' %}<think>\n\n</think>{% endif %}"
)
SCHEMA = '{"type": "array"}'


def tokenizer_with(tokens: Sequence[str], folder: Path, template: str = TEMPLATE) -> ChatTokenizer:
    """Every byte a token, and these."""
    alphabet = {character: n for n, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in ["<|im|>", *tokens]])
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 300}))
    return ChatTokenizer(folder)


@pytest.fixture
def thinker(tmp_path: Path) -> ChatTokenizer:
    return tokenizer_with(["<think>", "</think>"], tmp_path / "thinker")


def row(output_ids: Sequence[int], error: str = "") -> RequestRow:
    return RequestRow("c", 1, 0, 0, "q", "qa", "", 1, "", 0, 0, output_ids=output_ids, error=error)


def read(answer: str, tokenizer: ChatTokenizer, expects: str = "", schema: str = "", error: str = "") -> RequestRow:
    prompts = conversations([Prompt("q", "qa", ("Why?",), expects=expects)], tokenizer)
    (found,) = with_outputs_read([row(tokenizer.plain_ids(answer), error)], prompts, tokenizer, schema)
    return found


@pytest.mark.parametrize(
    ("mode", "answer", "n_thinking"),
    [
        pytest.param("", "<think>ab</think>yes", 4, id="thoughts, then an answer"),
        pytest.param("", "<think>abcd", 5, id="cut in its thoughts"),
        pytest.param("", "yes", 0, id="no thoughts"),
        pytest.param("open", "ab</think>yes", 3, id="begun by the template"),
        pytest.param("open", "abcd", 4, id="begun by the template, and cut"),
        pytest.param("closed", "yes", 0, id="forbidden by the template"),
        pytest.param("", "<think></think>", 2, id="no answer"),
    ],
)
def test_thoughts_end_with_their_mark(mode: str, answer: str, n_thinking: int, thinker: ChatTokenizer) -> None:
    tokenizer = thinker.with_args({"mode": mode} if mode else {})
    assert read(answer, tokenizer).n_thinking_tokens == n_thinking


@pytest.mark.parametrize("marks", [pytest.param(marks, id=marks[0]) for marks in MARKS])
def test_every_known_mark_is_found_in_a_vocabulary_that_has_it(marks: tuple[str, str], tmp_path: Path) -> None:
    pieces = [piece + ">" for mark in marks for piece in mark.split(">") if "<" in piece] if "|" in marks[0] else marks
    added = dict.fromkeys("<" + piece.partition("<")[2] if "<" in piece else piece for piece in pieces)
    tokenizer = tokenizer_with(list(added), tmp_path / "model", "{{ messages[0].content }}")
    found = read(f"{marks[0]}ab{marks[1]}yes", tokenizer)
    assert len(found.output_ids) - (found.n_thinking_tokens or 0) == len("yes")


def test_a_model_without_marks_has_no_thoughts_to_tell(tmp_path: Path) -> None:
    """Letters that spell a mark are no mark."""
    plain = tokenizer_with([], tmp_path / "plain")
    assert thoughts_of(plain) is None
    assert read("<think>ab</think>yes", plain).n_thinking_tokens is None


@pytest.mark.parametrize(
    ("answer", "schema", "error", "valid"),
    [
        pytest.param("[1]", SCHEMA, "", True, id="kept"),
        pytest.param("{}", SCHEMA, "", False, id="broken"),
        pytest.param("<think>[</think>[1]", SCHEMA, "", True, id="thoughts are no part of it"),
        pytest.param("<think>[1]", SCHEMA, "", False, id="only thoughts"),
        pytest.param("[1]", SCHEMA, "reset by peer", None, id="a request that failed"),
        pytest.param("[1]", "", "", None, id="nothing expected"),
    ],
)
def test_an_answer_is_judged_without_its_thoughts(
    answer: str, schema: str, error: str, valid: bool | None, thinker: ChatTokenizer
) -> None:
    assert read(answer, thinker, schema=schema, error=error).output_valid is valid


def test_what_a_prompt_expects_comes_before_what_all_answers_must_keep(thinker: ChatTokenizer) -> None:
    query = json.dumps({"kind": "sql", "tables": "CREATE TABLE t (a INTEGER);"})
    assert read("SELECT a FROM t", thinker, expects=query, schema=SCHEMA).output_valid is True


def test_an_engine_that_tells_no_ids_leaves_both_unknown(thinker: ChatTokenizer) -> None:
    found = read("", thinker, schema=SCHEMA)
    assert (found.n_thinking_tokens, found.output_valid) == (None, None)


def test_arguments_of_the_template_change_the_ids_and_unread_ones_are_refused(thinker: ChatTokenizer) -> None:
    prompt = Prompt("q", "qa", ("Why?",))
    plain, opened = (conversations([prompt], thinker.with_args(args))[0].ids([]) for args in ({}, {"mode": "open"}))
    assert opened == [*plain, *thinker.plain_ids("<think>")]
    assert thinker.template_args == {}, "the session's own is left as it was"
    with pytest.raises(
        BadInput, match=r"that the model's chat template reads: got thinking, of which the template in .* says"
    ):
        thinker.with_args({"thinking": True})
