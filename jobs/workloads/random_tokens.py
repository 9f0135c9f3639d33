"""Owns the workload `random_tokens`: uniformly drawn token ids, as much used as misleading. Does not own any text.

It is kept to show by how much it misleads: a model has nothing to say to it, so its answers are trivial or repeat
themselves, and drafts have an easy time with them. `conf/grid/random_vs_real.yaml` measures it beside real text of the same
length.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from jobs.errors import BadInput
from jobs.spec import Workload
from jobs.workloads.base import Prompt, Template, question_id_of, refuse_meaningless

SOURCE = "specsweep/random_tokens"
CATEGORY = "random"
PROMPTS = 512
BYTES_A_DRAW = 8

MEANINGLESS = {
    "split": "its prompts are one set",
    "path": "its prompts are drawn, not read",
    "revision": "its prompts are drawn, not read",
    "columns": "its prompts are drawn, not read",
    "entropy": "random ids are of one kind",
}


@dataclass(frozen=True)
class RandomIds:
    """The recipe: ids in the place of the user's turn, so that the whole prompt has `isl` of them. No text is encoded."""

    isl: int
    salt: str

    def made(self, template: Template) -> tuple[str, list[int]]:
        before, after = template.around()
        n_drawn = self.isl - len(before) - len(after)
        if n_drawn < 1:
            raise BadInput(
                f"`workload.isl` must leave room for a random token: got {self.isl}, and the chat template alone takes "
                f"{len(before) + len(after)} tokens of this model. Use more."
            )
        return f"{n_drawn} random tokens", [*before, *self._drawn(n_drawn, template), *after]

    def _drawn(self, n: int, template: Template) -> list[int]:
        """Of a hash, not a generator of random numbers: the same on every version of Python."""
        ordinary = template.ordinary_ids
        stream = hashlib.shake_256(self.salt.encode()).digest(n * BYTES_A_DRAW)
        starts = range(0, len(stream), BYTES_A_DRAW)
        return [ordinary[int.from_bytes(stream[at : at + BYTES_A_DRAW], "big") % len(ordinary)] for at in starts]


def read_prompts(workload: Workload) -> list[Prompt]:
    """Prompts of `workload.isl` tokens; `BadInput` without a length."""
    refuse_meaningless(workload, MEANINGLESS)
    if not workload.isl:
        raise BadInput(
            "`workload.isl` must be given for `random_tokens`, in tokens or thousands: got 0. Use 1k, for example."
        )
    return [_prompt(n, workload) for n in range(PROMPTS)]


def _prompt(n: int, workload: Workload) -> Prompt:
    src_id = f"random-{n:03d}"
    question_id = question_id_of(SOURCE, src_id, f"isl={workload.isl}", f"seed={workload.seed}")
    recipe = RandomIds(workload.isl, salt=question_id)
    return Prompt(question_id, CATEGORY, turns=("random tokens",), source=SOURCE, src_id=src_id, recipe=recipe)
