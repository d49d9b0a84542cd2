"""Stage by stage against the reference in float32, in the order of computation.

Tolerances are 1e-5 relative plus, absolute: 2e-5 for the patch embedding, where a linear stands for the
reference's convolution and sums in another order; 1e-4 for the tower behind it and 2e-4 for the decoder on
our vision rows, which carry that difference through their layers; 2e-5 for the decoder on the reference's
own vision rows, in torch's operators; 1e-4 with our own kernels, which sum in another order: the reference
lies up to 8e-5 from its layers in float64, and so does our decoder. Activations reach tens, and a mistake
shows as a difference above 1e-2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kaminari.verify.recording
from kaminari.model.batch import FeatureRows, RowLengths, StepBatch
from kaminari.model.kernels.native.build import allow_native
from kaminari.model.qwen_stages import QwenStages, reference_stages
from kaminari.model.stages import Stage
from tests.checkpoints import VARIANTS
from tests.model.steps import load, make_picture, noise_picture
from tests.reference import Reference

TEXT = "<|im_start|>user\nA <|vision_start|><|image_pad|><|vision_end|> and " + (
    "<|vision_start|><|image_pad|><|vision_end|> B<|im_end|>\n<|im_start|>assistant\n"
)


Records = dict[str, tuple[Tensor, Tensor]]


@contextmanager
def recorded(stages: dict[str, nn.Module]) -> Iterator[Records]:
    """Record (first input, output) of modules by stage name, one picture or prompt behind the other.

    They are there once the `with` is left, in the order of the stages.
    """
    seen: dict[str, Any] = dict.fromkeys(stages)
    with kaminari.verify.recording.recorded([Stage(*each) for each in stages.items()]) as records:
        yield seen
    seen.update({name: (record.entering, record.output) for name, record in records.items()})


def split(stages: Sequence[Stage]) -> tuple[dict[str, nn.Module], dict[str, nn.Module]]:
    """A family's stages as modules by name: the vision tower's, and the decoder's."""
    names = [stage.name for stage in stages]
    first = names.index("token embedding")
    modules = [(stage.name, stage.module) for stage in stages]
    return dict(modules[:first]), dict(modules[first:])


def compare(ours: dict[str, Any], theirs: dict[str, Any], atol: float) -> None:
    assert list(ours) == list(theirs)
    for name, (entering, output) in theirs.items():
        for which, mine, wanted in (("input", ours[name][0], entering), ("output", ours[name][1], output)):
            torch.testing.assert_close(
                mine, wanted, atol=atol, rtol=1e-5, msg=lambda m, n=name, w=which: f"{w} of {n}: {m}"
            )


@pytest.fixture
def kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    """Whose kernels run: torch's or our own."""
    allow_native(request.param == "own")
    yield request.param
    allow_native(True)


@pytest.mark.parametrize("kernels", ["torch", "own"], indirect=True)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_stage_agrees_with_the_reference(
    variant: str, kernels: str, checkpoint: Callable[[str], Path], golden: Callable[[str], Reference]
) -> None:
    reference, model = golden(variant), load(checkpoint(variant))
    our_tower, our_decoder = split(QwenStages().ours(model))
    their_tower, their_decoder = split(reference_stages(reference.model))
    images = [noise_picture(1, 96, 128), noise_picture(2, 230, 70)]
    inputs = reference.inputs(TEXT, images)
    grids = inputs["image_grid_thw"].tolist()

    with (
        torch.inference_mode(),
        recorded(their_tower) as their_vision,
        recorded(their_decoder) as theirs,
    ):
        reference.model(**inputs)

    patches = inputs["pixel_values"].split([f * r * c for f, r, c in grids])
    with recorded(our_tower) as our_vision:
        rows = [model.encode_picture(make_picture(*each)) for each in zip(patches, grids, strict=True)]
    # The interpolated positions enter between the patch embedding and the first layer, so inputs cover them.
    first = "patch embedding"
    compare({first: our_vision[first]}, {first: their_vision[first]}, atol=2e-5)
    compare(our_vision, their_vision, atol=1e-4)
    embeddings = torch.cat([each.embeddings for each in rows])
    deepstack = torch.cat([each.deepstack for each in rows], dim=1)
    assert torch.equal(embeddings, our_vision["vision rows"][1])
    assert len(deepstack) == len(VARIANTS[variant].deepstack)
    for number, feature in enumerate(deepstack):
        assert torch.equal(feature, our_vision[f"deepstack {number}"][1])

    their_embeddings = their_vision["vision rows"][1]
    their_deepstack = torch.stack(
        [their_vision[f"deepstack {number}"][1] for number in range(len(deepstack))]
    )
    positions, _ = reference.model.model.get_rope_index(
        inputs["input_ids"],
        mm_token_type_ids=inputs["mm_token_type_ids"],
        image_grid_thw=inputs["image_grid_thw"],
    )
    tokens = inputs["input_ids"][0]
    length = len(tokens)
    index = (inputs["mm_token_type_ids"][0] == 1).nonzero()[:, 0]
    for features, atol in (
        (FeatureRows(index, their_embeddings, their_deepstack), {"torch": 2e-5, "own": 1e-4}[kernels]),
        (FeatureRows(index, embeddings, deepstack), 2e-4),
    ):
        batch = StepBatch(
            tokens=tokens,
            positions=positions[:, 0],
            slots=torch.tensor([1]),
            q_lens=torch.tensor([length], dtype=torch.int32),
            kv_lens=torch.tensor([length], dtype=torch.int32),
            logit_rows=torch.arange(length),
            host=RowLengths((1,), (length,), (length,)),
            features=features,
        )
        with recorded(our_decoder) as ours:
            hidden = model.forward(batch, model.new_cache(2, length + 3))
        ours["token embedding"] = (theirs["token embedding"][0], ours["token embedding"][1])
        ours["logits"] = (hidden, model.head(hidden))
        compare(ours, theirs, atol)


def test_bfloat16_stays_close_to_float32(tiny_checkpoint: Path, tiny_reference: Reference) -> None:
    """A smoke test: 8 bits of mantissa through three layers, so a tenth of the logits' own spread."""
    inputs = tiny_reference.inputs(TEXT, [noise_picture(1, 96, 128), noise_picture(2, 230, 70)])
    pixels, grid = inputs["pixel_values"], inputs["image_grid_thw"][0].tolist()
    picture = make_picture(pixels[: grid[0] * grid[1] * grid[2]], grid)
    wide, narrow = load(tiny_checkpoint), load(tiny_checkpoint, torch.bfloat16, torch.bfloat16)
    mixed = load(tiny_checkpoint, torch.bfloat16, torch.float32)
    logits = {}
    for model in (wide, narrow, mixed):
        rows = model.encode_picture(picture)
        assert rows.embeddings.dtype == rows.deepstack.dtype == model.dtype
        count = picture.tokens
        tokens = torch.cat((torch.full((count,), 262), torch.arange(40)))
        length = count + 40
        batch = StepBatch(
            tokens=tokens,
            positions=torch.arange(length).expand(3, -1),
            slots=torch.tensor([0]),
            q_lens=torch.tensor([length], dtype=torch.int32),
            kv_lens=torch.tensor([length], dtype=torch.int32),
            logit_rows=torch.arange(length),
            host=RowLengths((0,), (length,), (length,)),
            features=FeatureRows(torch.arange(count), rows.embeddings, rows.deepstack),
        )
        cache = model.new_cache(1, length)
        assert cache.layers[0].keys.dtype == model.dtype
        out = model.head(model.forward(batch, cache))
        assert out.dtype == model.dtype
        assert torch.isfinite(out).all()
        logits[model] = out.float()
    spread = logits[wide].std()
    for model in (narrow, mixed):
        error = (logits[model] - logits[wide]).pow(2).mean().sqrt()
        assert 0 < error < 0.1 * spread
