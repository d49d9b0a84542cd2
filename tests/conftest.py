"""Shared fixtures: one thread, quiet libraries, and tiny checkpoints that are built once per session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
import transformers

from kaminari.config import DtypeChoice, EngineSettings, ModelSettings, Settings
from kaminari.engine.engine import Engine
from tests.checkpoints import VARIANTS, build_qwen3_vl
from tests.hybrid_checkpoints import build_hybrid
from tests.openai_api.harness import serving
from tests.reference import Reference, reference

# these have environments of their own: `scripts/test --clients`
collect_ignore = ["clients"]

torch.set_num_threads(1)
transformers.utils.logging.disable_progress_bar()


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the folder of a variant of any family; do not write into it."""

    def build(variant: str) -> Path:
        folder = tmp_path_factory.mktemp("checkpoint") / variant
        builder = build_qwen3_vl if variant in VARIANTS else build_hybrid
        return builder(folder, variant)

    return cache(build)


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


@pytest.fixture(scope="session")
def demo_url() -> Iterator[str]:
    """The base URL of a real server on the demo model, in float32."""
    settings = Settings(
        model=ModelSettings(dtype=DtypeChoice.FLOAT32), engine=EngineSettings(slots=4, threads=1)
    )
    with Engine.load(settings) as engine, serving(engine) as running:
        yield f"{running.url}/v1"
