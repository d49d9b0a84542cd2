"""The families with the hybrid decoder, stage by stage against the reference in float32.

Tolerances are 1e-5 relative plus, absolute: 2e-5 for the patch embedding and 1e-4 for the tower behind it, as
in `tests.model.test_stages`; 5e-5 for each text layer on the reference's own input. Errors of layers behind
one another add up, and the recurrence's sums have no order of their own: the reference parts from itself by
2.2e-4 where its chunk is 32 instead of 64. So through all layers, on the reference's own vision rows, it is
5e-4. A mistake shows above 1e-2.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn

from kaminari.model.batch import FeatureRows, RowLengths, StepBatch
from kaminari.model.family import PictureBudget, find_family
from tests.hybrid_checkpoints import MINICPM_V_VARIANTS, QWEN3_5_VARIANTS
from tests.model.steps import load, noise_picture
from tests.model.test_stages import compare, recorded
from tests.reference import Reference

IMAGES = [noise_picture(1, 96, 128), noise_picture(2, 260, 200)]
MARKERS = {"qwen3_5": "<|vision_start|><|image_pad|><|vision_end|>", "minicpm_v": "<|image_pad|>"}


def vision_stages(half: Any, family: str) -> dict[str, nn.Module]:
    """Stages of our vision half, or of the reference's model that holds the same modules."""
    if family == "qwen3_5":
        tower = half.visual if hasattr(half, "visual") else half
        stages = {"patch embedding": tower.patch_embed}
        stages |= {f"vision layer {number}": block for number, block in enumerate(tower.blocks)}
        return stages | {"vision rows": tower.merger}
    tower = half.vision_tower if hasattr(half, "vision_tower") else half.tower
    stages = {f"vision layer {number}": layer for number, layer in enumerate(tower.encoder.layers)}
    return stages | {"last norm": tower.post_layernorm, "vision rows": half.merger.mlp[0]}


def in_order(images: list[Image.Image], folder: Path) -> list[Any]:
    prompt_format = find_family(folder).prompt_format(folder)
    return [prompt_format.prepare_picture(image, PictureBudget(4096)) for image in images]


@pytest.mark.parametrize("variant", [*QWEN3_5_VARIANTS, *MINICPM_V_VARIANTS])
def test_every_stage_agrees_with_the_reference(
    variant: str, checkpoint: Callable[[str], Path], golden: Callable[[str], Reference]
) -> None:
    folder, reference, model = checkpoint(variant), golden(variant), load(checkpoint(variant))
    network: Any = model.network  # type: ignore[attr-defined]
    family = "qwen3_5" if variant in QWEN3_5_VARIANTS else "minicpm_v"
    marker = MARKERS[family]
    inputs = reference.inputs(f"<|im_start|>user\nA {marker} and {marker} B<|im_end|>\n", IMAGES)

    their_text = reference.model.model.language_model
    their_stages = {"token embedding": their_text.embed_tokens}
    their_stages |= {f"text layer {number}": layer for number, layer in enumerate(their_text.layers)}
    their_stages |= {"final norm": their_text.norm, "logits": reference.model.lm_head}
    with (
        torch.inference_mode(),
        recorded(vision_stages(reference.model.model, family)) as their_vision,
        recorded(their_stages) as theirs,
    ):
        reference.model(**inputs)

    with torch.inference_mode(), recorded(vision_stages(network.vision, family)) as our_vision:
        rows = [model.encode_picture(picture) for picture in in_order(IMAGES, folder)]
    if family == "qwen3_5":
        first = "patch embedding"
        compare({first: our_vision[first]}, {first: their_vision[first]}, atol=2e-5)
    compare(our_vision, their_vision, atol=1e-4)
    embeddings = torch.cat([each.embeddings for each in rows])
    assert torch.equal(embeddings, our_vision["vision rows"][1])

    tokens = inputs["input_ids"][0]
    length = len(tokens)
    index = (tokens == reference.model.config.image_token_id).nonzero()[:, 0]
    positions = torch.arange(length).expand(3, -1)
    if family == "qwen3_5":
        positions = reference.model.model.get_rope_index(
            inputs["input_ids"],
            mm_token_type_ids=inputs["mm_token_type_ids"],
            image_grid_thw=inputs["image_grid_thw"],
        )[0][:, 0]
    text = network.text
    our_stages = {"token embedding": text.embedding}
    our_stages |= {f"text layer {number}": layer for number, layer in enumerate(text.layers)}
    our_stages |= {"final norm": text.norm}
    vision_rows = their_vision["vision rows"][1]
    batch = StepBatch(
        tokens=tokens,
        positions=positions,
        slots=torch.tensor([1]),
        q_lens=torch.tensor([length], dtype=torch.int32),
        kv_lens=torch.tensor([length], dtype=torch.int32),
        logit_rows=torch.arange(length),
        host=RowLengths((1,), (length,), (length,)),
        features=FeatureRows(index, vision_rows, vision_rows.new_empty(0, *vision_rows.shape)),
    )
    with torch.inference_mode(), recorded(our_stages) as ours:
        hidden = model.forward(batch, model.new_cache(2, length + 3))
        ours["logits"] = (hidden, model.head(hidden))
    ours["token embedding"] = (theirs["token embedding"][0], ours["token embedding"][1])
    compare(ours, theirs, atol=5e-4)

    cache = model.new_cache(2, length + 3)
    with torch.inference_mode():
        rotation = text.rotary(positions, torch.float32)
        for number, (layer, state) in enumerate(zip(text.layers, cache.layers, strict=True)):
            entering, wanted = theirs[f"text layer {number}"]
            output = layer(entering, rotation, state, batch)
            torch.testing.assert_close(output, wanted, atol=5e-5, rtol=1e-5)
