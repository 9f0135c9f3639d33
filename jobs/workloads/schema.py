"""Owns the way from `workload.json_schema` to the schema's text. Does not own whether an answer keeps it (`validity`)."""

from __future__ import annotations

import json

from jobs.errors import BadInput
from jobs.provenance import local_path
from jobs.spec import Workload
from jobs.workloads.validity import fault_of


def schema_text(workload: Workload) -> str:
    """The JSON schema that every answer must keep, as its file has it; "" = free text. `BadInput` when it is no schema."""
    if not workload.json_schema:
        return ""
    path = local_path(workload.json_schema)
    try:
        text = path.read_text(encoding="utf-8")
        schema = json.loads(text)
        if fault := fault_of(schema) if isinstance(schema, dict) else "it is no object":
            raise ValueError(fault)
    except (OSError, ValueError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error).partition("\n")[0]
        raise BadInput(
            f"`workload.json_schema` must name a file with a JSON schema: got {path} ({why}). Give its path, or leave it "
            "out."
        ) from None
    return text
