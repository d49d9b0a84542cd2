"""Qwen3-VL pictures: the reference's pixels and grids, within any token budget; few shapes if letterboxed."""

from __future__ import annotations

import json
import math
import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize

import kaminari
from kaminari.engine.picture_decoding import decode_picture
from kaminari.model.family import CheckpointError, PictureBudget, PictureError
from kaminari.model.picture import Picture
from kaminari.model.qwen_pictures import (
    LETTERBOX_ASPECTS,
    PictureFitter,
    closest_cells,
    count_tokens,
    letterbox_cells,
    native_cells,
)
from tests.cases import loading

DEMO = Path(kaminari.__file__).parent / "demo"
AMPLE = PictureBudget(100_000)
SIZES = [
    *[(1, 1), (2, 2), (1, 28), (31, 639), (639, 31), (5, 995), (995, 5), (32, 32), (33, 31), (47, 48)],
    *[(48, 49), (64, 64), (16, 17), (100, 60), (60, 100), (256, 256), (257, 255), (640, 480), (480, 640)],
    *[(1000, 30), (300, 700), (1084, 820), (2000, 11)],
]


def noise(size: tuple[int, int], seed: int = 0) -> Image.Image:
    width, height = size
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@pytest.fixture(scope="module", params=["demo", "tiny"])
def folder(request: pytest.FixtureRequest, tiny_checkpoint: Path) -> Path:
    return DEMO if request.param == "demo" else tiny_checkpoint


@pytest.fixture(scope="module")
def fitter(folder: Path) -> PictureFitter:
    return PictureFitter.from_folder(folder)


@pytest.fixture(scope="module")
def processor(folder: Path) -> Qwen2VLImageProcessorPil:
    return Qwen2VLImageProcessorPil.from_pretrained(folder)


def assert_references(picture: Picture, image: Image.Image, processor: Qwen2VLImageProcessorPil) -> None:
    golden = processor(images=[image], return_tensors="np")
    assert picture.grids == tuple(map(tuple, golden["image_grid_thw"].tolist()))
    assert picture.pixels.dtype == np.float32
    assert np.array_equal(picture.pixels, golden["pixel_values"])


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_native_pictures_are_the_references_bit_for_bit(
    fitter: PictureFitter, processor: Qwen2VLImageProcessorPil, size: tuple[int, int]
) -> None:
    assert_references(fitter.prepare(noise(size), AMPLE), noise(size), processor)


@pytest.mark.parametrize("name", ["receipt.png", "grid_1084x820.png", "px_31x639.png", "wide_2270x40.png"])
def test_img_resize_filter_and_img_wide_grid(
    fitter: PictureFitter, processor: Qwen2VLImageProcessorPil, name: str
) -> None:
    image = decode_picture(loading.file_bytes(name), 10**8)
    assert_references(fitter.prepare(image, AMPLE), image, processor)


def test_a_thousand_sizes_have_as_many_rows_as_tokens_and_fit_every_budget(fitter: PictureFitter) -> None:
    chance = random.Random(0)
    cell = fitter.cell
    merge = fitter.processor.merge_size
    for _ in range(1000):
        width = chance.randint(1, 400)
        height = chance.randint(math.ceil(width / 200), min(400, width * 200))
        budget = PictureBudget(chance.randint(1, 70), letterbox=chance.random() < 0.5)
        picture = fitter.prepare(Image.new("RGB", (width, height)), budget)
        ((frames, rows, columns),) = picture.grids
        assert 1 <= picture.tokens <= budget.max_tokens
        assert (
            picture.tokens
            == frames * (rows // merge) * (columns // merge)
            == count_tokens(picture.grids, merge)
        )
        assert len(picture.pixels) == frames * rows * columns == picture.tokens * merge**2
        assert rows % merge == columns % merge == 0
        assert picture.size == (width, height)
        if budget.letterbox:
            most = min(budget.max_tokens, fitter.processor.size["longest_edge"] // cell**2)
            assert (rows // merge, columns // merge) in letterbox_cells(most)


@settings(max_examples=1000, deadline=None)
@given(
    height=st.integers(1, 20_000),
    width=st.integers(1, 20_000),
    cell=st.sampled_from([28, 32]),
    least=st.integers(1, 300),
    most=st.integers(0, 20_000),
    max_tokens=st.integers(1, 20_000) | st.integers(1, 80),
)
def test_native_cells_never_pass_the_budget_and_equal_the_reference_where_it_does_not_bind(
    height: int, width: int, cell: int, least: int, most: int, max_tokens: int
) -> None:
    if max(height, width) > 200 * min(height, width):
        return
    pixels = {"min_pixels": least * cell**2, "max_pixels": (least + most) * cell**2}
    rows, columns = native_cells(height, width, cell=cell, max_tokens=max_tokens, **pixels)
    assert rows >= 1
    assert columns >= 1
    assert rows * columns <= max_tokens
    golden = smart_resize(height, width, factor=cell, **pixels)
    if golden[0] * golden[1] // cell**2 <= max_tokens:
        assert (rows * cell, columns * cell) == golden


def test_img_1x1_and_the_strip_that_rounds_past_a_small_budget() -> None:
    """By the reference's arithmetic 31x639 takes 74 tokens where 64 were meant to be both least and most."""
    bounds = {"cell": 32, "min_pixels": 65_536, "max_pixels": 16_777_216}
    assert native_cells(639, 31, max_tokens=100, **bounds) == (37, 2)
    assert native_cells(639, 31, max_tokens=64, **bounds) == (32, 2)
    assert native_cells(31, 639, max_tokens=64, **bounds) == (2, 32)
    assert native_cells(995, 5, max_tokens=16, **bounds) == (16, 1)
    assert native_cells(1, 1, max_tokens=1, **bounds) == (1, 1)


def test_lim_image_budget_a_picture_is_scaled_down_to_its_budget(fitter: PictureFitter) -> None:
    image = decode_picture(loading.file_bytes("grid_1084x820.png"), 10**8)
    for letterbox in (False, True):
        picture = fitter.prepare(image, PictureBudget(16, letterbox))
        assert 8 <= picture.tokens <= 16


@pytest.mark.parametrize("letterbox", [False, True])
@pytest.mark.parametrize("size", [(5, 1005), (3000, 1), (1, 201)])
def test_img_ratio_past_two_hundred_is_refused_by_name(
    fitter: PictureFitter, letterbox: bool, size: tuple[int, int]
) -> None:
    with pytest.raises(PictureError, match=rf"{max(size) // min(size)}:1 \({size[0]} x {size[1]}\).*200:1"):
        fitter.prepare(Image.new("RGB", size), PictureBudget(64, letterbox))
    fitter.prepare(Image.new("RGB", (5, 1000)), PictureBudget(64, letterbox))


def test_letterbox_grids_are_few_fill_the_budget_and_come_in_pairs() -> None:
    for budget in (1, 2, 3, 5, 16, 64, 100, 256, 512, 1000, 4096):
        grids = letterbox_cells(budget)
        assert len(grids) <= 2 * len(LETTERBOX_ASPECTS)
        assert {(columns, rows) for rows, columns in grids} == set(grids)
        assert all(1 <= rows * columns <= budget for rows, columns in grids)
        if budget >= 64:
            assert all(rows * columns >= 0.9 * budget for rows, columns in grids)
    assert (16, 32) in letterbox_cells(512)  # 1024 x 512 pixels


@given(st.floats(0.005, 200), st.integers(1, 3000))
def test_the_closest_grid_is_the_closest(aspect: float, budget: int) -> None:
    grids = letterbox_cells(budget)
    chosen = closest_cells(aspect, grids)
    gap = abs(math.log(chosen[1] / chosen[0] / aspect))
    assert all(gap <= abs(math.log(columns / rows / aspect)) + 1e-12 for rows, columns in grids)


def unpatched(picture: Picture, fitter: PictureFitter) -> np.ndarray:
    """The picture's pixels 0..255 [height, width, 3], put together again from its patches."""
    merge, patch = fitter.processor.merge_size, fitter.processor.patch_size
    ((_, rows, columns),) = picture.grids
    blocks = picture.pixels.reshape(
        rows // merge, columns // merge, merge, merge, 3, fitter.processor.temporal_patch_size, patch, patch
    )
    whole = blocks[:, :, :, :, :, 0].transpose(0, 2, 5, 1, 3, 6, 4).reshape(rows * patch, columns * patch, 3)
    return np.rint((whole * 0.5 + 0.5) * 255)


def test_a_letterboxed_picture_is_resized_once_and_centred_on_white(fitter: PictureFitter) -> None:
    image = noise((120, 90))
    picture = fitter.prepare(image, PictureBudget(8, letterbox=True))
    whole = unpatched(picture, fitter)
    height, width = whole.shape[:2]
    scale = min(width / 120, height / 90)
    inner = image.resize((round(120 * scale), round(90 * scale)), Image.Resampling.BICUBIC)
    page = Image.new("RGB", (width, height), "white")
    page.paste(inner, ((width - inner.width) // 2, (height - inner.height) // 2))
    assert (width, height) != inner.size
    assert np.array_equal(whole, np.asarray(page))


@pytest.mark.parametrize("letterbox", [False, True])
def test_the_digest_names_pixels_grids_and_settings(fitter: PictureFitter, letterbox: bool) -> None:
    image = Image.new("RGB", (64, 64), "red")
    base = fitter.prepare(image, PictureBudget(64, letterbox))
    assert len(base.digest) == 32
    assert fitter.prepare(image.copy(), PictureBudget(64, letterbox)).digest == base.digest
    nearly = image.copy()
    nearly.putpixel((63, 63), (254, 0, 0))
    others = [
        fitter.prepare(nearly, PictureBudget(64, letterbox)),
        fitter.prepare(image, PictureBudget(64, not letterbox)),
        fitter.prepare(image, PictureBudget(63, letterbox)),
        fitter.prepare(Image.new("RGB", (32, 128), "red"), PictureBudget(64, letterbox)),
    ]
    assert len({base.digest, *(other.digest for other in others)}) == 5


def test_palette_twins_have_different_digests(fitter: PictureFitter) -> None:
    twins = [decode_picture(loading.file_bytes(f"palette_{name}.png"), 10**8) for name in "ab"]
    first, second = (fitter.prepare(twin, AMPLE) for twin in twins)
    assert first.digest != second.digest


def test_threads_share_a_fitter(fitter: PictureFitter) -> None:
    images = [noise((40 + 7 * n, 90 - 5 * n), n) for n in range(12)]
    alone = [fitter.prepare(image, AMPLE).digest for image in images]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda image: fitter.prepare(image, AMPLE).digest, images * 3))
    assert together == alone * 3


@pytest.mark.parametrize(
    "content",
    [
        None,
        "not json",
        json.dumps({"patch_size": 16, "size": {"shortest_edge": 0, "longest_edge": 65536}}),
        json.dumps({"patch_size": 16, "size": {"shortest_edge": 65536, "longest_edge": 4096}}),
        json.dumps({"patch_size": 16, "size": {"shortest_edge": 1, "longest_edge": 100}}),
        json.dumps({"patch_size": 16, "size": {"height": 224, "width": 224}}),
    ],
    ids=["missing", "garbled", "zero", "swapped", "less-than-a-token", "other-keys"],
)
def test_an_unusable_processor_file_is_a_checkpoint_error(tmp_path: Path, content: str | None) -> None:
    shutil.copytree(DEMO, tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors", "pre*", "__*"))
    if content is not None:
        (tmp_path / "model" / "preprocessor_config.json").write_text(content)
    with pytest.raises(CheckpointError, match="preprocessor_config"):
        PictureFitter.from_folder(tmp_path / "model")


def test_a_budget_of_nothing_is_a_mistake_of_the_caller(fitter: PictureFitter) -> None:
    with pytest.raises(ValueError, match="at least one token"):
        fitter.prepare(Image.new("RGB", (8, 8)), PictureBudget(0))
