"""Compiled decode steps: the reference's tokens in every company, from two graphs of each part."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters

from tests.engine.harness import Mode, hand_loop, poison
from tests.engine.test_loop import PROMPTS, check, conversation, golden_answer
from tests.reference import Reference

VARIANTS = {"tied-grouped": 2, "qwen3_5": 4}
"""Checkpoints, and the parts that their layers run in."""


@pytest.mark.usefixtures("compiling")
@pytest.mark.parametrize("variant", VARIANTS)
def test_compiled_steps_give_the_references_tokens(
    variant: str,
    checkpoint: Callable[[str], Path],
    golden: Callable[[str], Reference],
) -> None:
    torch.compiler.reset()
    counters.clear()
    engine = hand_loop(checkpoint(variant), slots=5, mode=Mode(compiled=True))
    with torch.inference_mode():
        engine.loop.runner.warm_up()
    graphs = counters["stats"]["unique_graphs"]
    assert graphs == 2 * VARIANTS[variant], "one for a single token and one for several, for all layers"
    poison(engine.loop.runner.cache)
    running = {name: engine.submit(conversation(turns)) for name, turns in PROMPTS.items()}
    engine.run()
    expected = {name: golden_answer(golden(variant), turns) for name, turns in PROMPTS.items()}
    check({name: one.token_ids() for name, one in running.items()}, expected)
    assert counters["stats"]["unique_graphs"] == graphs, "nothing compiles once the engine is warm"
    assert engine.is_clean()
