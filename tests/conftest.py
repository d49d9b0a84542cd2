"""Shared fixtures: one thread, quiet libraries, and tiny checkpoints that are built once per session."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
import transformers

from tests.checkpoints import build_qwen3_vl
from tests.reference import Reference, reference

torch.set_num_threads(1)
transformers.utils.logging.disable_progress_bar()


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the folder of a variant of `tests.checkpoints.VARIANTS`; do not write into it."""
    return cache(lambda variant: build_qwen3_vl(tmp_path_factory.mktemp("checkpoint") / variant, variant))


@pytest.fixture(scope="session")
def golden(checkpoint: Callable[[str], Path]) -> Callable[[str], Reference]:
    """Return the reference model and processor of a variant."""
    return cache(lambda variant: reference(checkpoint(variant)))


@pytest.fixture(scope="session")
def tiny_checkpoint(checkpoint: Callable[[str], Path]) -> Path:
    """The folder of the `tied-grouped` variant."""
    return checkpoint("tied-grouped")


@pytest.fixture(scope="session")
def tiny_reference(golden: Callable[[str], Reference]) -> Reference:
    """The reference of the `tied-grouped` variant."""
    return golden("tied-grouped")
