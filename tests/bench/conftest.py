"""Limits that take no time to measure."""

from __future__ import annotations

import pytest

from kaminari.bench import bench


@pytest.fixture(autouse=True)
def _quick_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the machine can do is set; `test_limits.py` measures it."""
    monkeypatch.setattr(bench, "read_rate", lambda device, dtype, step_bytes: (1e10, step_bytes))
    monkeypatch.setattr(bench, "multiply_rate", lambda device, dtype: 1e11)
