"""The cases about quantized models: widths that groups do not divide, and how well small print is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from examples.demo_model.pages import write_pages
from examples.demo_model.tasks import evaluation_samples
from kaminari.config import EngineSettings, ModelSettings, NoQuantization, PackFolder, PackFormat, Settings
from kaminari.engine.conversation import Conversation
from kaminari.engine.engine import Engine
from kaminari.engine.loading import DEMO_FOLDER
from kaminari.model.kernels.linears import linear_kernel
from kaminari.model.packs.rounding import Method, quantize_int4
from kaminari.model.packs.writing import Recipe
from kaminari.model.quantized import Int4Weight
from kaminari.verify.pages import ask, read_pages, score
from kaminari.verify.replay import open_frontend
from tests.cases import loading
from tests.model.kernels.quantized_weights import activation_bound, rounding_bound
from tests.model.packs.packs import load_packed, pack_of, reopened
from tests.model.steps import CPU, load

GROUPS = [64, 128]


def off_by_rounding(weight: Int4Weight, rows: Tensor) -> bool:
    """Whether every weight is within half a step of its own, and what bfloat16 makes of scale and zero."""
    steps = weight.scales.float().repeat_interleave(weight.group_size, dim=1)[:, : weight.in_features]
    bound = steps * (0.5 + 15 * 2**-9) + rows.abs().amax() * 2**-8
    return bool(((weight.dequantize() - rows).abs() <= bound).all())


@pytest.mark.parametrize("group_size", GROUPS)
@pytest.mark.parametrize(("inputs", "outputs"), [(4304, 1152), (1152, 4304), (100, 64)])
def test_q_groups_the_last_group_of_a_row_is_shorter(inputs: int, outputs: int, group_size: int) -> None:
    draw = torch.Generator().manual_seed(inputs)
    rows = torch.randn(outputs, inputs, generator=draw) / inputs**0.5
    weight = quantize_int4(rows, group_size, Method.RTN)
    assert weight.scales.shape == (outputs, -(-inputs // group_size))
    assert off_by_rounding(weight, rows)
    kernel = linear_kernel(weight, CPU, torch.float32)
    assert kernel is not None
    x = torch.randn(3, inputs, generator=draw)
    plain = weight.dequantize()
    exact = x.double() @ plain.double().T
    bound = activation_bound(x, plain, group_size) * (1 + 2**-10)
    bound += rounding_bound(x, plain, exact, torch.float32)
    assert bool(((kernel.multiply(x) - exact).abs() <= bound).all())


@pytest.mark.parametrize("group_size", GROUPS)
@pytest.mark.parametrize("variant", ["untied-wide", "qwen3_5-untied"])
def test_q_groups_a_model_of_such_widths_loads(
    variant: str, group_size: int, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = checkpoint(variant)
    pack_of(folder, Recipe(PackFormat.INT4, group_size, Method.RTN), tmp_path / "pack")
    pack = reopened(folder, tmp_path / "pack")
    originals = load_file(folder / "model.safetensors")
    widths = {originals[target.source].shape[1] for target in pack.header.targets.values()}
    assert any(width % group_size for width in widths)
    with torch.inference_mode():
        packed: Any = load_packed(folder, pack)
        logits = packed.head(torch.randn(2, packed.network.text.embedding.weight.shape[1]))
    assert logits.isfinite().all()


def demo(pack: Path | None) -> Settings:
    quantization = NoQuantization() if pack is None else PackFolder(pack)
    return Settings(
        model=ModelSettings(dtype="float32", quantization=quantization),
        engine=EngineSettings(threads=1, slots=8),
    )


def test_q_quality_int4_reads_as_well_within_a_point_and_leaves_tower_and_head_alone(tmp_path: Path) -> None:
    """The demo cannot read the case's pictures to the letter, and reads pages of its own kinds instead. Of
    the case's, the tower's rows are those of the model without a pack to the bit.
    """
    pack_of(DEMO_FOLDER, Recipe(PackFormat.INT4), tmp_path / "pack")
    pages = read_pages(write_pages(evaluation_samples(3, 0, ["line", "total", "receipt"]), tmp_path))
    rates = []
    for pack in (None, tmp_path / "pack"):
        with Engine.load(demo(pack)) as engine:
            readings = score(pages, ask(engine, pages, lambda: None))
        rates.append(sum(each.edits for each in readings) / sum(each.characters for each in readings))
    assert 0 < rates[0] < 0.5
    assert rates[1] <= rates[0] + 0.01
    frontend = open_frontend(DEMO_FOLDER, 1)
    with torch.inference_mode():
        own, packed = load(DEMO_FOLDER), load_packed(DEMO_FOLDER, reopened(DEMO_FOLDER, tmp_path / "pack"))
        for name in loading.case("q-quality").input["files"]:
            (shown,) = frontend.prepare(Conversation.ask("Read.", loading.file_bytes(name))).pictures
            mine, other = own.encode_picture(shown), packed.encode_picture(shown)
            assert torch.equal(mine.embeddings, other.embeddings)
            assert torch.equal(mine.deepstack, other.deepstack)
            assert torch.equal(own.head(mine.embeddings), packed.head(mine.embeddings))
