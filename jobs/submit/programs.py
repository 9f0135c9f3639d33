"""Owns how a text is handed to a scheduler's own program. Does not own the text, or what becomes of it there."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from jobs.errors import BadInput
from jobs.submit.values import first_line

ANSWER_LIMIT_S = 120.0


def hand_to(command: Sequence[str], text: str) -> str:
    """What the program says; `BadInput` when it refuses, or says nothing for long."""
    try:
        done = subprocess.run(command, input=text, text=True, capture_output=True, check=False, timeout=ANSWER_LIMIT_S)
    except subprocess.TimeoutExpired:
        raise BadInput(
            f"{command[0]} must answer within {ANSWER_LIMIT_S:g} s: it did not. It may have taken the job: look there first."
        ) from None
    if done.returncode:
        raise BadInput(f"{command[0]} refused: {first_line(done.stderr)}")
    return done.stdout.strip()
