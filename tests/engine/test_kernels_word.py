"""Whose kernels run, as `kaminari doctor` and the ready line say it: on a card, after trying them there."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kaminari.engine import loading
from kaminari.engine.loading import kernels_word, plan_model
from kaminari.model.row_attention import HeadSizes
from tests.engine.harness import settings

CARD = torch.device("cuda", 0)


def unasked() -> str:
    raise AssertionError("a card has no use for native kernels, which take time to build")


@pytest.mark.parametrize("variant", ["tied-grouped", "qwen3_5", "minicpm_v"])
def test_a_cards_attention_is_tried_with_the_models_own_heads(
    variant: str, checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoint(variant)
    plan = plan_model(settings(folder))
    text = json.loads((folder / "config.json").read_text())["text_config"]
    tried: list[tuple[torch.device, torch.dtype, HeadSizes]] = []
    monkeypatch.setattr(loading.attention, "cuda_word", lambda *asked: tried.append(asked) or "tried")
    monkeypatch.setattr(loading.delta_kernels, "cuda_word", lambda device, dtype: f"{dtype} tried")
    word = "tried" if variant == "tied-grouped" else "tried, torch.float32 tried"
    assert kernels_word(replace(plan, device=CARD), unasked) == word
    sizes = HeadSizes(text["num_attention_heads"], text["num_key_value_heads"], text["head_dim"])
    assert tried == [(CARD, torch.float32, sizes)]


def test_without_attention_there_is_nothing_to_try(tiny_checkpoint: Path) -> None:
    plan = plan_model(settings(tiny_checkpoint))
    bare = replace(plan, device=CARD, footprint=replace(plan.footprint, heads=None))
    assert kernels_word(bare, unasked) == ""
    assert kernels_word(plan, lambda: "native") == "native"
