"""Owns the way from prompts to token ids: chat templates, encoding, and answers fed back. Does not own prompts, or sending.

Every engine gets these ids, so that no engine's own template or tokenizer can make a difference.
"""

from __future__ import annotations

import json
import os
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import Any

from jobs.errors import BadInput
from jobs.workloads.base import Conversation, Message, Prompt

FIXED_DAY = (
    "{%- macro strftime_now(format) %}{{ format | replace('%d', '01') | replace('%m', '01') | replace('%b', 'Jan')"
    " | replace('%B', 'January') | replace('%Y', '2025') }}{% endmacro -%}"
)
"""Put before every chat template. Some (Llama 3, gpt-oss) write today's date into the system prompt, which would make the
prompts of a sweep that is resumed tomorrow others than its baseline's."""

PLACE = "\ue000"  # no template, and no text that we write, has this character


class ChatTokenizer:
    """The tokenizer and the chat template of a model, without the model.

    `template_args` go to the template as they are (`{"enable_thinking": False}`). A model without a template gets the last
    user turn as plain text, with the special tokens that its tokenizer adds by itself.
    """

    def __init__(self, model_dir: Path, template_args: Mapping[str, Any] | None = None) -> None:
        self.model_dir = model_dir
        self.template_args = dict(template_args or {})
        self._tokenizer = _load(model_dir)
        config = model_config(model_dir)
        self.vocabulary_size = int(config.get("vocab_size") or len(self._tokenizer))
        """Ids must be smaller. The model's own size, where its folder tells it: that of its embedding."""
        self.max_length = longest_of(model_dir)
        """Prompt and output tokens that the model was made for; 0 = its folder does not tell."""

    def with_args(self, template_args: Mapping[str, Any]) -> ChatTokenizer:
        """The same tokenizer with other arguments of the template; `BadInput` for one that the template does not read."""
        self._refuse_unread(template_args)
        other = copy(self)
        other.template_args = dict(template_args)
        return other

    @property
    def has_template(self) -> bool:
        return bool(self._tokenizer.chat_template)

    @cached_property
    def ordinary_ids(self) -> Sequence[int]:
        """Ids that are text: neither special nor added to the vocabulary, and known to the model."""
        added = set(self._tokenizer.added_tokens_decoder) | set(self._tokenizer.all_special_ids)
        return sorted(id_ for id_ in set(self._tokenizer.get_vocab().values()) - added if id_ < self.vocabulary_size)

    def can_say(self, what: str) -> bool:
        """Whether the chat template has a place for tools, or else whether there is one at all."""
        return self.has_template and (what != "tools" or "tools" in self._tokenizer.get_chat_template())

    def around(self) -> tuple[list[int], list[int]]:
        """The ids that the chat template puts before and after a user's only turn; none where there is no template."""
        if not self.has_template:
            return [], []
        before, _, after = self._render([{"role": "user", "content": PLACE}]).partition(PLACE)
        return self.plain_ids(before), self.plain_ids(after)

    def plain_ids(self, text: str) -> list[int]:
        """The ids of a text as it stands: no template, and no special tokens but those that it spells."""
        ids: list[int] = self._tokenizer.encode(
            text, add_special_tokens=False, verbose=False
        )  # a length that is too long, we refuse
        return ids

    def is_added(self, id_: int) -> bool:
        """Whether the id stands for a token that was added to the vocabulary, as those of templates are."""
        return id_ in self._tokenizer.added_tokens_decoder

    def encode(self, messages: Sequence[Message], tools: Sequence[Message] = ()) -> list[int]:
        """Token ids of a dialogue up to where the model's answer begins."""
        if self.has_template:
            ids = self.plain_ids(self._render(messages, tools))  # the template has set the special tokens
        else:
            ids = self._tokenizer.encode(messages[-1]["content"], verbose=False)
        return self.checked(ids)

    def decode(self, answer: Sequence[int]) -> str:
        """The text of an answer without its special tokens. Thoughts stay: what becomes of them, the template says."""
        text: str = self._tokenizer.decode(list(answer), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def _render(self, messages: Sequence[Message], tools: Sequence[Message] = ()) -> str:
        from jinja2 import TemplateError

        try:
            text: str = self._tokenizer.apply_chat_template(
                list(messages),
                tools=list(tools) or None,
                chat_template=FIXED_DAY + self._tokenizer.get_chat_template(),
                tokenize=False,
                add_generation_prompt=True,
                **self.template_args,
            )
        except (TemplateError, TypeError) as error:  # the latter where it adds up what a message lacks
            raise BadInput(
                f"The chat template must accept turns of user and assistant in turn: the one in {self.model_dir} says "
                f"{error}. Check the template's arguments, or leave prompts of several turns out."
            ) from error
        return text

    def _refuse_unread(self, template_args: Mapping[str, Any]) -> None:
        if ours := sorted(
            set(template_args) & set(signature(self._tokenizer.apply_chat_template).parameters) - {"documents"}
        ):
            raise BadInput(
                "`workload.template_args` must leave to SpecSweep what it gives to every template itself: got "
                f"{', '.join(ours)}. Leave them out."
            )
        template = self._tokenizer.get_chat_template() if self.has_template else ""
        if unread := [name for name in template_args if not re.search(rf"\b{re.escape(name)}\b", template)]:
            raise BadInput(
                f"`workload.template_args` must be arguments that the model's chat template reads: got {', '.join(unread)}, "
                f"of which the template in {self.model_dir} says nothing. Leave them out."
            )

    def checked(self, ids: list[int]) -> list[int]:
        """The ids, if the model knows them all; `BadInput` if not."""
        if not ids or max(ids) >= self.vocabulary_size:
            raise BadInput(
                f"Token ids must be below the model's vocabulary size: got {max(ids, default='none')}, and it is "
                f"{self.vocabulary_size}. The tokenizer in {self.model_dir} is not the model's. Use the one it came with."
            )
        return ids


@dataclass(frozen=True)
class ChatConversation:
    """A prompt as token ids. The first turn is encoded ahead of time: it costs nothing while a cell is measured."""

    prompt: Prompt
    tokenizer: ChatTokenizer = field(repr=False)
    opening: array[int] = field(repr=False)  # 4 bytes an id, where a list of numbers takes 36

    @property
    def n_turns(self) -> int:
        return len(self.prompt.turns)

    def ids(self, answers: Sequence[Sequence[int]]) -> list[int]:
        """Token ids of turn `len(answers)`. Answers go through their text, as when a user's client sends them back."""
        if not answers:
            return list(self.opening)
        texts = [self.tokenizer.decode(answer) for answer in answers]
        return self.tokenizer.encode(self.prompt.messages(texts), self.prompt.tools)


def conversations(prompts: Sequence[Prompt], tokenizer: ChatTokenizer) -> list[Conversation]:
    """The prompts as conversations, in their order; those with a recipe are made here, for this tokenizer."""
    return [_conversation(prompt, tokenizer) for prompt in prompts]


def _conversation(prompt: Prompt, tokenizer: ChatTokenizer) -> Conversation:
    _refuse_without_template(prompt, tokenizer)
    if prompt.recipe is None:
        ids = tokenizer.encode(prompt.messages([]), prompt.tools)
    else:
        turn, ids = prompt.recipe.made(tokenizer)
        ids = tokenizer.checked(ids)
        prompt = replace(prompt, turns=(turn,))
    return ChatConversation(prompt, tokenizer, array("I", ids))


def _refuse_without_template(prompt: Prompt, tokenizer: ChatTokenizer) -> None:
    """What only a template can say to a model would be dropped without a word."""
    says = {"a system prompt": prompt.opening, "recorded answers": prompt.recorded, "tools": prompt.tools}
    lost = [what for what, value in says.items() if value and not tokenizer.can_say(what)]
    if lost:
        raise BadInput(
            f"The model must have a chat template for what a prompt has beside its turns: question {prompt.question_id} has "
            f"{' and '.join(lost)}, which that of {tokenizer.model_dir} does not have a place for. Use a chat model, or "
            "leave those prompts out."
        )


def prompt_tokens(conversation: Conversation) -> int:
    """Tokens of the longest prompt of a conversation with empty answers: of all its turns, where there is a template."""
    return max(len(conversation.ids([()] * turn)) for turn in range(conversation.n_turns))


def check_lengths(conversations: Sequence[Conversation], output_limit: int, max_length: int) -> None:
    """Raise `BadInput` when a conversation may not fit into `max_length` tokens (0 = not known, nothing is checked).

    A conversation needs all its turns and all its answers, each as long as the limit allows. Nothing is ever cut.
    """
    needs = {
        item.prompt.question_id: prompt_tokens(item) + _answers(item) * item.prompt.limit(output_limit)
        for item in conversations
    }
    too_long = [item for item in conversations if needs[item.prompt.question_id] > max_length > 0]
    if not too_long:
        return
    worst = max(too_long, key=lambda item: needs[item.prompt.question_id])
    need, limit = needs[worst.prompt.question_id], worst.prompt.limit(output_limit)
    raise BadInput(
        f"Prompt and answers must fit into {max_length} tokens (`engine.max_length`, or the model's own limit): question "
        f"{worst.prompt.question_id} has {prompt_tokens(worst)} tokens and {_answers(worst)} × {limit} for answers, "
        f"{need} in all. {len(too_long)} of {len(needs)} questions do not fit. Raise `engine.max_length` to {need} where "
        "the model allows it, lower `workload.output_limit`, or leave categories out."
    )


def _answers(conversation: Conversation) -> int:
    """How many answers may stand in the longest prompt, the last one included; recorded ones are in the prompt already."""
    return 1 if conversation.prompt.recorded else conversation.n_turns


def _load(model_dir: Path) -> Any:
    """transformers' tokenizer of a local folder. Imported here: it takes seconds, and most commands need none."""
    if not model_dir.is_dir():
        raise BadInput(f"A tokenizer needs the model's folder: {model_dir} does not exist. Check `model.path`.")
    with _quiet_transformers():
        from transformers import AutoTokenizer

        try:
            return AutoTokenizer.from_pretrained(str(model_dir), local_files_only=True)
        except (OSError, ValueError, KeyError) as error:
            reason = str(error).partition("\n")[0].strip(" .:") or type(error).__name__
            raise BadInput(
                f"The model's folder must hold a tokenizer (tokenizer.json, tokenizer_config.json): {model_dir} does not "
                f"({reason}). Save the tokenizer there."
            ) from error


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Without its advice that PyTorch is missing: it is meant to be, here. The environment is as before afterwards."""
    name = "TRANSFORMERS_NO_ADVISORY_WARNINGS"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def longest_of(model_dir: Path) -> int:
    """Prompt and output tokens that the model was made for; 0 = its folder does not tell."""
    return int(model_config(model_dir).get("max_position_embeddings") or 0)


def model_config(model_dir: Path) -> dict[str, Any]:
    """The text model's part of config.json; {} where the folder has none."""
    path = model_dir / "config.json"
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise BadInput(f"A model's config.json must be JSON: {path} is not ({error}). Copy the model anew.") from None
    return config.get("text_config") or config
