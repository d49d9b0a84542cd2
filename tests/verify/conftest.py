"""Traces, shared by this folder's tests."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.verify.harness import Traced, traced


@pytest.fixture(scope="session")
def trace_of(checkpoint: Callable[[str], Path]) -> Callable[[str], Traced]:
    """Return a variant's folder with its trace."""
    return cache(lambda variant: traced(checkpoint(variant)))
