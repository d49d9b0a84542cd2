"""Qwen3.5's checkpoint: what of it is loaded, what is ignored by name, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from kaminari.model.family import CheckpointError, find_family
from tests.hybrid_checkpoints import QWEN3_5_VARIANTS
from tests.model.steps import load


@pytest.fixture
def folder(checkpoint: Callable[[str], Path], tmp_path: Path) -> Path:
    """A copy of the checkpoint, to be changed."""
    return Path(shutil.copytree(checkpoint("qwen3_5"), tmp_path / "checkpoint"))


def edit_tensors(folder: Path, edit: Callable[[dict[str, Tensor]], object]) -> None:
    path = folder / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    edit(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def edit_text(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["text_config"].update(values)
    path.write_text(json.dumps(config))


@pytest.mark.parametrize("variant", QWEN3_5_VARIANTS)
def test_the_footprint_is_what_loading_takes(variant: str, checkpoint: Callable[[str], Path]) -> None:
    folder = checkpoint(variant)
    footprint = find_family(folder).footprint(folder, torch.float32, torch.float32)
    model = load(folder)
    assert footprint.weights == sum(each.nbytes for each in model.network.parameters())  # type: ignore[attr-defined]
    for slots, capacity in ((1, 7), (3, 50)):
        wanted = slots * (footprint.cache_per_slot + capacity * footprint.cache_per_token)
        assert model.new_cache(slots, capacity).nbytes() == wanted


def test_the_state_is_float32_whatever_the_dtype(checkpoint: Callable[[str], Path]) -> None:
    """Case hyb-state-dtype."""
    folder = checkpoint("qwen3_5")
    model = load(folder, torch.bfloat16, torch.bfloat16)
    cache = model.new_cache(2, 8)
    assert cache.layers[0].state.dtype == torch.float32  # type: ignore[attr-defined]
    assert cache.layers[0].tail.dtype == torch.bfloat16  # type: ignore[attr-defined]
    footprint = find_family(folder).footprint(folder, torch.bfloat16, torch.bfloat16)
    assert cache.nbytes() == 2 * (footprint.cache_per_slot + 8 * footprint.cache_per_token)


def test_multi_token_prediction_weights_are_ignored_by_name(folder: Path) -> None:
    edit_tensors(folder, lambda tensors: tensors.update({"mtp.fc.weight": torch.ones(4, 8)}))
    load(folder)
    edit_tensors(folder, lambda tensors: tensors.update({"mtq.fc.weight": torch.ones(4, 8)}))
    with pytest.raises(CheckpointError, match=r"does not use: mtq\.fc\.weight"):
        load(folder)


def test_a_missing_tensor_is_named(folder: Path) -> None:
    name = "model.language_model.layers.0.linear_attn.dt_bias"
    edit_tensors(folder, lambda tensors: tensors.pop(name))
    with pytest.raises(CheckpointError, match=f"lacks {name}"):
        load(folder)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"linear_num_value_heads": 3}, "3 value heads cannot share 2 key heads"),
        ({"num_attention_heads": 3, "num_key_value_heads": 2}, "3 heads cannot share"),
        ({"layer_types": ["full_attention", "sliding_attention"] * 2}, "layer_types"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"linear_conv_kernel_dim": 0}, "linear_conv_kernel_dim is 0"),
        ({"model_type": "qwen3_vl_text"}, "qwen3_vl_text|not a valid config"),
        ({"head_dim": 12}, "channels of a head"),
    ],
)
def test_what_the_decoder_cannot_honour_is_refused(
    values: dict[str, Any], message: str, folder: Path
) -> None:
    edit_text(folder, **values)
    with pytest.raises(CheckpointError, match=message) as caught:
        load(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("rope_type", ["dynamic", "yarn", "linear"])
def test_other_rope_types_are_refused(rope_type: str, folder: Path) -> None:
    rope = json.loads((folder / "config.json").read_text())["text_config"]["rope_parameters"]
    edit_text(folder, rope_parameters={**rope, "rope_type": rope_type, "factor": 2.0})
    with pytest.raises(CheckpointError, match="rope type"):
        load(folder)
