"""What takes the place of Ray where a test needs none."""

from __future__ import annotations

from typing import Any

import pytest
import ray
from without_ray import BOX

from orchestrator.schedule import sessions


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The actors that were killed, in place of Ray's own doing."""
    found: list[Any] = []
    monkeypatch.setattr(ray, "kill", found.append)
    monkeypatch.setattr(ray, "wait", lambda asked, **how: ([], asked))
    monkeypatch.setattr(sessions.Fleet, "nodes", lambda fleet: [BOX])
    return found
