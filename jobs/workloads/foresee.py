"""Owns which prompts can be refused before anything starts: those of a model whose tokenizer is here, or comes from the hub.

Does not own the rules (`jobs.workloads.tokenize`), nor what a session's own node then finds, which decides.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jobs.errors import BadInput
from jobs.models import described_here
from jobs.spec import Cell, Workload
from jobs.workloads import reading_once
from jobs.workloads.base import Prompt
from jobs.workloads.tokenize import ChatTokenizer, check_lengths, conversations, longest_of

PER_MESSAGE = 100  # bytes that a template may put around a message besides what it says in full


def refuse_unfit_prompts(cells: Sequence[Cell]) -> None:
    """`BadInput` for the first cell whose prompts do not fit into its engine, or into its model's template."""
    seen, read = set(), reading_once()
    for cell in cells:
        model, engine = cell.deployment.model, cell.deployment.engine
        key = json.dumps([model.path, model.revision, engine.max_length, repr(cell.workload)])
        if key not in seen:
            _check(cell, read(cell.workload))
        seen.add(key)


def _check(cell: Cell, prompts: Sequence[Prompt]) -> None:
    """What is asked for in tokens needs no model to be too long."""
    model, limit = cell.deployment.model, cell.deployment.engine.max_length
    _check_asked_lengths(prompts, cell.workload.output_limit, limit)
    if folder := _folder(model.path, model.revision):
        _check_with(folder, cell.workload, prompts, limit or longest_of(folder))


def _check_with(folder: Path, workload: Workload, prompts: Sequence[Prompt], limit: int) -> None:
    """A tokenizer takes seconds to load: only where lengths are close, or only it can tell."""
    _check_asked_lengths(prompts, workload.output_limit, limit)
    asked = sorted(
        (prompt for prompt in prompts if prompt.recipe), key=lambda prompt: prompt.recipe.isl if prompt.recipe else 0
    )
    extremes = [*asked[:1], *asked[-1:]]  # where these can be made, all can
    saying = {(bool(prompt.opening), bool(prompt.recorded), bool(prompt.tools)): prompt for prompt in prompts}
    extremes += [
        prompt for kinds, prompt in saying.items() if any(kinds)
    ]  # what only a template can say, it may not be able to
    close = [
        prompt for prompt in prompts if not prompt.recipe and _most_tokens(prompt, folder, workload.output_limit) > limit > 0
    ]
    if close or extremes or workload.template_args:
        tokenizer = _tokenizer(folder).with_args(workload.template_args)
        check_lengths(conversations([*close, *extremes], tokenizer), workload.output_limit, limit)


def _check_asked_lengths(prompts: Sequence[Prompt], output_limit: int, limit: int) -> None:
    asked = [(prompt.recipe.isl, prompt.limit(output_limit)) for prompt in prompts if prompt.recipe]
    isl, answer = max(asked, key=sum, default=(0, 0))
    if isl + answer > limit > 0:
        raise BadInput(
            f"`workload.isl` and `workload.output_limit` must fit into {limit} tokens (`engine.max_length`, or the model's "
            f"own limit): got {isl} and {answer}, {isl + answer} in all. Use less, or raise `engine.max_length` to "
            f"{isl + answer} where the model allows it."
        )


def _most_tokens(prompt: Prompt, folder: Path, output_limit: int) -> int:
    """No fewer than the conversation needs: no token is shorter than a byte, and a template says no more than it holds."""
    messages = [*prompt.opening, *(message for part in prompt.recorded for message in part), *prompt.tools, *prompt.turns]
    n_messages = len(messages) + len(prompt.turns)
    said = len(json.dumps(messages, ensure_ascii=False).encode())
    answers = len(prompt.turns) * prompt.limit(output_limit)
    return said + answers + (n_messages + 1) * (_template_bytes(folder) + PER_MESSAGE)


@cache
def _folder(path: str, revision: str) -> Path | None:
    return described_here(path, revision)


@cache
def _tokenizer(folder: Path) -> ChatTokenizer:
    return ChatTokenizer(folder)


@cache
def _template_bytes(folder: Path) -> int:
    own, settings = folder / "chat_template.jinja", folder / "tokenizer_config.json"
    if own.is_file():
        return own.stat().st_size
    told: dict[str, Any] = json.loads(settings.read_text(encoding="utf-8")) if settings.is_file() else {}
    return len(json.dumps(told.get("chat_template") or ""))
