"""Owns what identifies a value: a hash of those of its fields that are not at their defaults. Does not own such values."""

from __future__ import annotations

import hashlib
import json
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

NOT_IN_ID = {"in_id": False}
"""Metadata of a field that changes where or how patiently something runs, not what is measured."""


def digest(value: object) -> str:
    """16 hex digits of the SHA-256 of the canonical JSON of the non-default fields of a dataclass."""
    text = json.dumps(identity(value), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def identity(value: object) -> Any:
    """The non-default, identifying fields as plain JSON values; what new defaults may be added to without changing ids."""
    if is_dataclass(value) and not isinstance(value, type):
        kept = {f.name: identity(getattr(value, f.name)) for f in fields(value) if _identifies(value, f)}
        return {name: item for name, item in kept.items() if item != {}}
    if isinstance(value, dict):
        return {str(key): identity(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [identity(item) for item in value]
    return value


def default_of(item: Any) -> Any:
    """The default of a dataclass field, made anew when it has a factory."""
    if item.default_factory is not MISSING:
        return item.default_factory()
    return item.default


def _identifies(value: object, item: Any) -> bool:
    is_in_id: bool = item.metadata.get("in_id", True)
    return is_in_id and bool(getattr(value, item.name) != default_of(item))
