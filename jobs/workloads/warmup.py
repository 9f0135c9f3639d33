"""Owns the conversations that warm an engine up. Does not own any that is measured: none of these is in a workload."""

from __future__ import annotations

from jobs.workloads.base import Conversation, Prompt
from jobs.workloads.tokenize import ChatTokenizer, conversations

CATEGORY = "warmup"

TEXTS = (
    "How does a sundial tell the time, and why must it be set for the place where it stands? Explain it in two paragraphs.",
    "Repeat this list, unchanged, three times:\n\n"
    + "\n".join(f"- shelf {n}: {n * 12} jars of plum jam" for n in range(1, 9)),
    "Write a function in Python that takes a list of temperatures, one per hour, and returns the longest run of hours in "
    "which it did not get colder. Then write two tests for it.",
    "A narrow boat waits below a lock. Describe each step until it has left at the upper gate, with what the crew does, "
    "what the water does, and what would happen if somebody opened both gates.",
)
"""Prose, copying and code: what drafts find hard and easy, so that every path of an engine has run once."""


def warmup_conversations(count: int, tokenizer: ChatTokenizer) -> list[Conversation]:
    """`count` conversations of one turn, no two alike: the number comes first, so that no prefix cache can shorten one."""
    prompts = [
        Prompt(question_id=f"warmup-{i}", category=CATEGORY, turns=(f"{i + 1}. {TEXTS[i % len(TEXTS)]}",))
        for i in range(count)
    ]
    return conversations(prompts, tokenizer)
