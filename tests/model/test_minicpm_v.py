"""MiniCPM-V's pictures and checkpoint: one count, budgets, letterbox, tags, and what is refused."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from kaminari.model.family import CheckpointError, PictureBudget, PictureError, find_family
from kaminari.model.minicpm_v.pictures import SlicedFitter, pad_to_aspect
from kaminari.model.minicpm_v.prompt import MiniCPMVPromptFormat
from kaminari.model.picture import Picture
from tests.hybrid_checkpoints import MINICPM_V_VARIANTS
from tests.model.steps import load, noise_picture
from tests.reference import OLD_SLICES, Reference

FOURFOLD = pytest.param(
    "minicpm_v-4x",
    marks=pytest.mark.skipif(OLD_SLICES, reason="older references round both down-sampling modes alike"),
)
WIDE = PictureBudget(max_tokens=1 << 20)


@pytest.fixture
def folder(checkpoint: Callable[[str], Path], tmp_path: Path) -> Path:
    """A copy of the checkpoint, to be changed."""
    return Path(shutil.copytree(checkpoint("minicpm_v"), tmp_path / "checkpoint"))


def edit(path: Path, **values: Any) -> None:
    content = json.loads(path.read_text())
    content.update(values)
    path.write_text(json.dumps(content))


def random_size(rng: random.Random) -> tuple[int, int]:
    """Sizes of all scales and orientations: log-uniform sides, one in ten a thin strip."""
    width, height = (round(2 ** rng.uniform(0, 11.5)) for _ in range(2))
    return (width, max(1, height // 40)) if rng.random() < 0.1 else (width, height)


@pytest.mark.parametrize("variant", ["minicpm_v", FOURFOLD])
def test_placeholders_are_as_many_as_vision_rows_for_1000_sizes(
    variant: str, checkpoint: Callable[[str], Path]
) -> None:
    prompt_format = MiniCPMVPromptFormat.from_folder(checkpoint(variant))
    fitter, model = prompt_format._fitter, load(checkpoint(variant))
    rng = random.Random(1)
    rows_of: dict[object, int] = {}
    refused = 0
    for index in range(1000):
        width, height = random_size(rng)
        budget = rng.choice([1 << 20, 1 << 20, 64, 16, 5, 1])
        try:
            plan = fitter.plan(height, width, budget)
        except PictureError:
            assert max(width, height) > 100 * min(width, height)
            assert budget <= 5
            refused += 1
            continue
        tokens = fitter.count_tokens(plan.grids)
        assert 1 <= tokens <= budget, (width, height)
        patches = sum(rows * columns for _, rows, columns in plan.grids)
        blank = np.zeros((patches, 3 * 14 * 14), dtype=np.float32)
        picture = Picture(blank, plan.grids, tokens, (width, height), b"", plan.layout)
        ids, flags = prompt_format.expand_marker(index % 12, picture)
        if plan.grids not in rows_of:
            rows_of[plan.grids] = model.encode_picture(picture).embeddings.shape[0]
        assert sum(flags) == tokens == rows_of[plan.grids], (width, height)
        assert len(ids) == len(flags)
    assert len(rows_of) > 100
    assert refused < 20


def test_slices_and_pixels_are_the_references(
    checkpoint: Callable[[str], Path], golden: Callable[[str], Reference]
) -> None:
    fitter = SlicedFitter.from_folder(checkpoint("minicpm_v"))
    processor = golden("minicpm_v").processor.image_processor
    rng = random.Random(2)
    for seed in range(60):
        width, height = (min(600, side) for side in random_size(rng))
        image = noise_picture(seed, width, height)
        ours = fitter.prepare(image, WIDE)
        theirs = processor.preprocess(images=[image])
        assert [list(grid[1:]) for grid in ours.grids] == theirs["target_sizes"].tolist()
        assert list(ours.layout) == list(theirs["grids"][0])
        packed = theirs["pixel_values"][0]
        side = packed.shape[1]
        for number in (0, len(ours.pixels) // 2, len(ours.pixels) - 1):
            patch = packed[:, :, number * side : (number + 1) * side]
            assert np.array_equal(ours.pixels[number], patch.reshape(-1))


@pytest.mark.parametrize("variant", ["minicpm_v", FOURFOLD, "minicpm_v-released-sizes"])
@pytest.mark.parametrize("most", [1, 2, 4, 16, 64, 256])
def test_a_budget_takes_slices_away_first(variant: str, most: int, checkpoint: Callable[[str], Path]) -> None:
    fitter = SlicedFitter.from_folder(checkpoint(variant))
    own = fitter.processor.scale_resolution
    for size in ((30, 40), (3 * own, 2 * own), (2 * own, 3 * own), (own, own), (500, 10)):
        plan = fitter.plan(size[1], size[0], most)
        free = fitter.plan(size[1], size[0], 1 << 20)
        assert fitter.count_tokens(plan.grids) <= most
        if fitter.count_tokens(free.grids) <= most:
            assert plan == free
        if plan.layout != (0, 0):
            assert plan.resolution == own


def test_a_strip_that_fits_no_budget_is_refused(checkpoint: Callable[[str], Path]) -> None:
    fitter = SlicedFitter.from_folder(checkpoint("minicpm_v"))
    assert fitter.count_tokens(fitter.plan(20000, 1, 256).grids) <= 256
    with pytest.raises(PictureError, match="1 x 20000 takes more than 1 tokens"):
        fitter.prepare(Image.new("RGB", (1, 20000)), PictureBudget(1))


def test_what_is_made_differently_has_another_digest(checkpoint: Callable[[str], Path]) -> None:
    fitter = SlicedFitter.from_folder(checkpoint("minicpm_v"))
    images = [noise_picture(1, 200, 200), noise_picture(2, 200, 200)]
    budgets = [WIDE, PictureBudget(8), PictureBudget(1 << 20, letterbox=True)]
    made = {fitter.prepare(image, budget).digest for image in images for budget in budgets}
    assert len(made) == 6
    assert fitter.prepare(images[0], WIDE).digest == fitter.prepare(images[0], WIDE).digest


def test_letterboxed_pictures_take_few_shapes(checkpoint: Callable[[str], Path]) -> None:
    fitter = SlicedFitter.from_folder(checkpoint("minicpm_v"))
    rng = random.Random(3)
    shapes, native = set(), set()
    for _ in range(300):
        width, height = rng.randint(20, 120), rng.randint(20, 120)
        page = pad_to_aspect(Image.new("RGB", (width, height)))
        assert page.width >= width
        assert page.height >= height
        shapes.add(fitter.plan(page.height, page.width, 1 << 20).grids)
        native.add(fitter.plan(height, width, 1 << 20).grids)
    assert len(shapes) < len(native)
    white = np.asarray(pad_to_aspect(Image.new("RGB", (100, 90))))
    assert white[0, 0].tolist() == ([255, 255, 255] if white.shape != (90, 100, 3) else [0, 0, 0])


def test_a_budget_below_one_token_is_a_mistake(checkpoint: Callable[[str], Path]) -> None:
    fitter = SlicedFitter.from_folder(checkpoint("minicpm_v"))
    with pytest.raises(ValueError, match="at least one token"):
        fitter.prepare(noise_picture(1, 20, 20), PictureBudget(0))


def test_pictures_without_numbers(folder: Path) -> None:
    edit(folder / "preprocessor_config.json", use_image_id=False, slice_mode=False)
    prompt_format = MiniCPMVPromptFormat.from_folder(folder)
    picture = prompt_format.prepare_picture(noise_picture(1, 300, 300), WIDE)
    assert picture.layout == (0, 0)
    ids, flags = prompt_format.expand_marker(3, picture)
    assert flags == [False] + [True] * picture.tokens + [False]
    assert len(set(ids)) == 3


def test_positions_count_tokens(checkpoint: Callable[[str], Path]) -> None:
    prompt_format = MiniCPMVPromptFormat.from_folder(checkpoint("minicpm_v"))
    positions, offset = prompt_format.positions([5, 6, 7], [False, True, False], [])
    assert positions.tolist() == [[0, 1, 2]] * 3
    assert offset == 0


@pytest.mark.parametrize("variant", MINICPM_V_VARIANTS)
def test_the_footprint_is_what_loading_takes(variant: str, checkpoint: Callable[[str], Path]) -> None:
    folder = checkpoint(variant)
    footprint = find_family(folder).footprint(folder, torch.float32, torch.bfloat16)
    model = load(folder, torch.float32, torch.bfloat16)
    assert footprint.weights == sum(each.nbytes for each in model.network.parameters())  # type: ignore[attr-defined]
    assert model.new_cache(2, 9).nbytes() == 2 * (footprint.cache_per_slot + 9 * footprint.cache_per_token)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"downsample_mode": "8x"}, "downsample_mode '8x'"),
        ({"merge_kernel_size": [4, 4]}, "merge_kernel_size"),
        ({"merger_times": 2}, "merger_times 2"),
        ({"insert_layer_id": 3}, "insert_layer_id 3"),
        ({"quantization_config": {"bits": 4}}, "quantized"),
        ({"text_config": None}, "lacks text_config"),
    ],
)
def test_what_the_family_cannot_honour_is_refused(values: dict[str, Any], message: str, folder: Path) -> None:
    edit(folder / "config.json", **values)
    with pytest.raises(CheckpointError, match=message) as caught:
        load(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"downsample_mode": "4x"}, "disagree on downsample_mode"),
        ({"downsample_mode": "2x"}, "unsupported downsample_mode"),
        ({"patch_size": 16}, "disagree on the patch size"),
        ({"max_slice_nums": 0}, "impossible picture sizes"),
    ],
)
def test_a_preprocessor_that_does_not_fit_is_refused(
    values: dict[str, Any], message: str, folder: Path
) -> None:
    edit(folder / "preprocessor_config.json", **values)
    with pytest.raises(CheckpointError, match=message):
        MiniCPMVPromptFormat.from_folder(folder)


def test_missing_files_and_tags_are_refused(folder: Path) -> None:
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    del config["extra_special_tokens"]["slice_end_token"]
    path.write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="names no slice_end_token"):
        MiniCPMVPromptFormat.from_folder(folder)
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(CheckpointError, match=r"no preprocessor_config\.json"):
        MiniCPMVPromptFormat.from_folder(folder)
