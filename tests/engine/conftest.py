"""What the engine's tests share."""

from __future__ import annotations

import pytest

from kaminari.engine.pipeline import MAX_DEPTH
from tests.engine import harness


@pytest.fixture(params=range(1, MAX_DEPTH + 1), ids=lambda depth: f"depth {depth}")
def depth(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run a test with loops of every depth."""
    monkeypatch.setattr(harness, "DEPTH", request.param)
    return int(request.param)
