"""Owns the way from `workload.json_schema` to the schema's text. Does not own whether an answer keeps it (`validity`)."""

from __future__ import annotations

import json
from pathlib import Path

from jobs.errors import BadInput
from jobs.spec import Workload


def schema_text(workload: Workload) -> str:
    """The JSON schema that every answer must keep, as its file has it; "" = free text. `BadInput` when it is no object."""
    if not workload.json_schema:
        return ""
    path = Path(workload.json_schema)
    try:
        text = path.read_text(encoding="utf-8")
        if not isinstance(json.loads(text), dict):
            raise ValueError("it is no object")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise BadInput(
            f"`workload.json_schema` must name a file with a JSON schema: got {path} ({why}). Give its path, or leave it "
            "out."
        ) from None
    return text
