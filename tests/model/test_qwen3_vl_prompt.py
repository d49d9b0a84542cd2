"""Qwen3-VL's prompt side: what it reads from a checkpoint, and positions that are the reference's."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import Qwen3VLConfig, Qwen3VLModel

import kaminari
from kaminari.model.family import CheckpointError, PictureBudget
from kaminari.model.picture import Picture
from kaminari.model.qwen3_vl.prompt import Qwen3VLPromptFormat

DEMO = Path(kaminari.__file__).parent / "demo"
AMPLE = PictureBudget(100_000)


@pytest.fixture(scope="module")
def format_() -> Qwen3VLPromptFormat:
    return Qwen3VLPromptFormat.from_folder(DEMO)


@pytest.fixture(scope="module")
def reference_model(tiny_checkpoint: Path) -> Qwen3VLModel:
    config = Qwen3VLConfig.from_pretrained(tiny_checkpoint)
    with torch.device("meta"):
        return Qwen3VLModel(config)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The demo's files without its weights, free to be spoilt."""
    shutil.copytree(DEMO, tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors", "__*"))
    return tmp_path / "model"


def edit(path: Path, **changes: Any) -> None:
    """Set or (with None) drop keys; `a__b` is key b of object a."""
    content = json.loads(path.read_text())
    for name, value in changes.items():
        target, _, leaf = name.rpartition("__")
        holder = content[target] if target else content
        holder.pop(leaf, None)
        if value is not None:
            holder[leaf] = value
    path.write_text(json.dumps(content))


def test_marker_ends_and_context_come_from_the_checkpoint(
    format_: Qwen3VLPromptFormat, tiny_checkpoint: Path
) -> None:
    assert (format_.marker, format_.max_context) == ("<|image_pad|>", 2048)
    assert format_.end_token_ids == {752, 750}
    tiny = Qwen3VLPromptFormat.from_folder(tiny_checkpoint)
    assert tiny.max_context == 4096
    assert tiny.end_token_ids.isdisjoint(format_.end_token_ids)


def test_another_spelling_of_the_marker_is_taken_from_the_tokenizer(copy: Path) -> None:
    path = copy / "tokenizer.json"
    path.write_text(path.read_text().replace("<|image_pad|>", "<|picture|>"))
    edit(
        copy / "tokenizer_config.json",
        additional_special_tokens=["<|picture|>", "<|endoftext|>", "<|im_end|>"],
    )
    assert Qwen3VLPromptFormat.from_folder(copy).marker == "<|picture|>"


@pytest.mark.parametrize(
    ("eos", "expected"), [(752, {752}), ([752], {752}), ([750, 752], {750, 752}), (None, {750, 752})]
)
def test_end_tokens_are_those_of_generation_config(copy: Path, eos: Any, expected: set[int]) -> None:
    edit(copy / "generation_config.json", eos_token_id=eos)
    assert Qwen3VLPromptFormat.from_folder(copy).end_token_ids == expected


def test_without_generation_config_both_of_qwens_end_tokens_end_an_answer(copy: Path) -> None:
    (copy / "generation_config.json").unlink()
    assert Qwen3VLPromptFormat.from_folder(copy).end_token_ids == {750, 752}


def test_each_placeholder_is_the_marker_and_there_is_one_per_row(format_: Qwen3VLPromptFormat) -> None:
    picture = format_.prepare_picture(Image.new("RGB", (96, 64)), AMPLE)
    ids, flags = format_.expand_marker(0, picture)
    assert ids == [756] * picture.tokens
    assert flags == [True] * picture.tokens


def random_prompt(
    chance: random.Random, format_: Qwen3VLPromptFormat
) -> tuple[list[int], list[bool], list[Picture]]:
    ids, flags, pictures = [], [], []
    for _ in range(chance.randint(0, 5)):
        text = chance.randint(1, 9)
        ids += [chance.randint(0, 200) for _ in range(text)]
        flags += [False] * text
        size = (chance.randint(1, 300), chance.randint(2, 300))
        picture = format_.prepare_picture(Image.new("RGB", size), AMPLE)
        more, marks = format_.expand_marker(len(pictures), picture)
        ids += more
        flags += marks
        pictures.append(picture)
    tail = chance.randint(1, 9)
    return ids + [1] * tail, flags + [False] * tail, pictures


def test_positions_are_the_references_for_any_number_of_pictures(
    tiny_checkpoint: Path, reference_model: Qwen3VLModel
) -> None:
    format_ = Qwen3VLPromptFormat.from_folder(tiny_checkpoint)
    chance = random.Random(1)
    for _ in range(60):
        ids, flags, pictures = random_prompt(chance, format_)
        grids = [grid for picture in pictures for grid in picture.grids]
        golden, delta = reference_model.get_rope_index(
            torch.tensor([ids]),
            mm_token_type_ids=torch.tensor([flags], dtype=torch.int32),
            image_grid_thw=torch.tensor(grids) if grids else None,
        )
        positions, offset = format_.positions(ids, flags, pictures)
        assert positions.dtype == np.int64
        assert positions.shape == (3, len(ids))
        assert np.array_equal(positions, golden[:, 0].numpy())
        assert offset == delta.item() == positions.max() + 1 - len(ids)


def test_a_placeholder_that_was_not_marked_as_one_is_text(format_: Qwen3VLPromptFormat) -> None:
    positions, offset = format_.positions([756, 1, 756], [False] * 3, [])
    assert positions.tolist() == [[0, 1, 2]] * 3
    assert offset == 0


@pytest.mark.parametrize(
    ("file", "changes", "words"),
    [
        ("config.json", {"image_token_id": None}, "image_token_id"),
        ("config.json", {"image_token_id": 5}, "not a control token"),
        ("config.json", {"image_token_id": 100_000}, "not a control token"),
        ("config.json", {"text_config__max_position_embeddings": None}, "max_position_embeddings"),
        ("config.json", {"vision_config__patch_size": 14}, "disagree"),
        ("generation_config.json", {"eos_token_id": ["x"]}, "end token"),
    ],
)
def test_an_incomplete_checkpoint_says_what_it_lacks(
    copy: Path, file: str, changes: dict[str, Any], words: str
) -> None:
    edit(copy / file, **changes)
    with pytest.raises(CheckpointError, match=words):
        Qwen3VLPromptFormat.from_folder(copy)


@pytest.mark.parametrize("content", [None, "{", '{"version": "1.0"}'])
def test_an_unusable_tokenizer_is_a_checkpoint_error_of_one_line(copy: Path, content: str | None) -> None:
    (copy / "tokenizer.json").unlink()
    if content is not None:
        (copy / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointError) as error:
        Qwen3VLPromptFormat.from_folder(copy)
    assert "\n" not in str(error.value)


def test_a_garbled_generation_config_is_a_checkpoint_error(copy: Path) -> None:
    (copy / "generation_config.json").write_text("[")
    with pytest.raises(CheckpointError, match="generation_config"):
        Qwen3VLPromptFormat.from_folder(copy)
