"""Owns the workload `synthetic`: real text of exactly the length that is asked for, in the target's own tokens, by entropy.

Does not own the texts (data/), templates or tokenizers. The length can only be had where there is a tokenizer: a prompt
comes with a recipe, and `jobs.workloads.tokenize` has it made.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jobs.errors import BadInput
from jobs.spec import Workload
from jobs.workloads.base import Prompt, Template, question_id_of, refuse_meaningless
from jobs.workloads.fit import fit

DATA = Path(__file__).parent / "data"
SOURCE = "specsweep/synthetic"
PROMPTS_A_TIER = 512  # as many as a tier of SPEED-Bench's throughput split has

MEANINGLESS = {
    "split": "its prompts are one set",
    "path": "its texts are part of SpecSweep",
    "revision": "its texts are part of SpecSweep",
    "columns": "it reads no file of yours",
}


@dataclass(frozen=True)
class Task:
    """What is to be done with a text: `{place}` becomes one of PLACES."""

    text: str  # of TEXTS
    opening: str
    order: str  # comes last, where models heed it most


TASKS: dict[str, dict[str, Task]] = {
    "low": {
        "sorting": Task(
            "sentences", "Lines:", "Sort the lines above by the alphabet and write every one of them out unchanged."
        ),
        "copying": Task("prose", "Text:", "Copy the text above word for word, from its first word on. Write nothing else."),
        "code_edits": Task(
            "code",
            "File:",
            "Write the file above out in full, with `old_` put before the name of each function that it defines.",
        ),
    },
    "mixed": {
        "summary": Task("prose", "Text:", "Sum up the text above in ten sentences. Name things as the text names them."),
        "questions": Task("prose", "Text:", "Ask five questions that the text above answers, and quote the answer to each."),
        "review": Task(
            "code", "File:", "Say what each function above does; then write the one out anew that you would improve."
        ),
    },
    "high": {
        "novel": Task(
            "prose",
            "A manual:",
            "The manual above lies open {place}. Write the first scene of a novel that begins there. Quote nothing of it.",
        ),
        "letter": Task(
            "prose",
            "A page:",
            "Somebody {place} reads the page above and thinks of the past. Invent the letter that they write to a friend.",
        ),
        "dialogue": Task(
            "code",
            "A print-out:",
            "Two strangers find the print-out above {place} and mistake it for something else. Write what they say.",
        ),
    },
}
"""Tier → what an answer copies, partly copies, and makes up."""

CATEGORIES = {"low": "low_entropy", "mixed": "mixed", "high": "high_entropy"}
"""Tier → category, called as SPEED-Bench calls it."""

PLACES = (
    *("in a lighthouse", "on a night train", "in a shut-down cinema", "at a mountain pass", "in a bakery before dawn"),
    *("on a canal boat", "in a school attic", "at a desert petrol station", "in a clockmaker's shop", "on an empty beach"),
    *(
        "in a greenhouse in winter",
        "at the edge of a fair",
        "in a harbour office",
        "under a railway bridge",
        "in an old library",
    ),
)


@dataclass(frozen=True)
class LongPrompt:
    """The recipe: as much of a text as makes the whole prompt `isl` tokens long."""

    isl: int
    task: Task
    place: str
    salt: str  # of the order in which the pieces of the text come

    def made(self, template: Template) -> tuple[str, list[int]]:
        text = "\n\n".join(_shuffled(self.task.text, self.salt))

        def turn(n_characters: int) -> str:
            return f"{self.task.opening}\n\n{text[:n_characters]}\n\n{self.task.order.format(place=self.place)}"

        def ids(n_characters: int) -> list[int]:
            return template.encode([{"role": "user", "content": turn(n_characters)}])

        n_characters = fit(self.isl, lambda n: len(ids(n)), len(text))
        return turn(n_characters), ids(n_characters)


def read_prompts(workload: Workload) -> list[Prompt]:
    """The prompts of the tier that is asked for, or of all three; `BadInput` without a length."""
    refuse_meaningless(workload, MEANINGLESS)
    if not workload.isl:
        raise BadInput("`workload.isl` must be given for `synthetic`, in tokens or thousands: got 0. Use 1k, for example.")
    tiers = [workload.entropy] if workload.entropy else list(TASKS)
    return [prompt for tier in tiers for prompt in _prompts(tier, workload)]


def _prompts(tier: str, workload: Workload) -> Iterator[Prompt]:
    tasks = list(TASKS[tier].items())
    for n in range(PROMPTS_A_TIER):
        name, task = tasks[n % len(tasks)]
        src_id = f"{tier}-{n:03d}"
        question_id = question_id_of(SOURCE, src_id, f"isl={workload.isl}", f"seed={workload.seed}")
        place = PLACES[int(question_id, 16) % len(PLACES)]
        yield Prompt(
            question_id,
            CATEGORIES[tier],
            turns=(task.order.format(place=place),),
            sub_category=name,
            source=SOURCE,
            src_id=src_id,
            recipe=LongPrompt(workload.isl, task, place, salt=question_id),
        )


def _shuffled(text: str, salt: str) -> list[str]:
    """The pieces of a text, each once, in an order of chance: a text that repeats itself would flatter an n-gram draft."""
    return sorted(pieces(text), key=lambda piece: hashlib.sha256(f"{salt}/{piece}".encode()).digest())


@cache
def pieces(text: str) -> tuple[str, ...]:
    """Paragraphs, sentences or functions."""
    if text == "code":
        return tuple((DATA / "python_code.txt").read_text(encoding="utf-8").rstrip("\n").split("\n\n\n"))
    paragraphs = (DATA / "python_reference.txt").read_text(encoding="utf-8").rstrip("\n").split("\n\n")
    if text == "prose":
        return tuple(paragraphs)
    return tuple(
        dict.fromkeys(line for item in paragraphs for line in item.replace(". ", ".\n").split("\n") if len(line) > 40)
    )
