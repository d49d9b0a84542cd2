"""What the engine's tests share."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kaminari.config.folders import CODE_CACHE
from kaminari.engine.pipeline import MAX_DEPTH
from tests.engine import harness
from tests.engine.harness import MODES, Mode

MODELS = 64
"""Graphs of a layer's part that a session of tests may compile: one or two for every tiny checkpoint."""


@pytest.fixture(params=range(1, MAX_DEPTH + 1), ids=lambda depth: f"depth {depth}")
def depth(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run a test with loops of every depth."""
    monkeypatch.setattr(harness, "MODE", Mode(depth=request.param))
    return int(request.param)


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Mode:
    """Run a test with loops of every mode."""
    chosen = MODES[request.param]
    if chosen.compiled:
        request.getfixturevalue("compiling")
    monkeypatch.setattr(harness, "MODE", chosen)
    return chosen


@pytest.fixture(scope="session")
def code_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where compiled code is kept for as long as the tests run."""
    with warnings.catch_warnings():
        # torch's own inductor still uses torch.jit where it is imported
        warnings.filterwarnings("ignore", "`torch.jit.script_method` is deprecated", DeprecationWarning)
        import torch._inductor.compile_fx  # noqa: F401 - for the warning that it brings
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture
def compiling(code_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let a test compile the layers of as many models as it likes; each is compiled once in a session."""
    monkeypatch.setenv(CODE_CACHE, str(code_cache))
    with torch._dynamo.config.patch(recompile_limit=MODELS):
        yield
