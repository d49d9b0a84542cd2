"""Case q-tied: the head that is stored is the head; flags and files that contradict each other are named."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from kaminari.model.family import CheckpointError, LoadOptions, find_family
from kaminari.model.tied_head import EMBEDDING, HEAD
from tests.engine.harness import hand_loop
from tests.engine.test_loop import PROMPTS, conversation, golden_answer
from tests.model.packs.packs import INT8_HEAD, load_packed, pack_of, reopened
from tests.model.steps import CPU
from tests.reference import assert_same_tokens, reference

FAMILIES = ["tied-grouped", "untied-grouped", "qwen3_5", "qwen3_5-untied", "minicpm_v"]
FLAGS = [(True, True), (True, False), (False, True), (False, False)]


@pytest.fixture
def make(checkpoint: Callable[[str], Path], tmp_path: Path) -> Callable[..., Path]:
    """A copy of a checkpoint with these flags, at the top and in `text_config`, and this head."""

    def made(variant: str, flags: tuple[bool, bool], head: str) -> Path:
        folder = Path(shutil.copytree(checkpoint(variant), tmp_path / "checkpoint"))
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        config["tie_word_embeddings"], config["text_config"]["tie_word_embeddings"] = flags
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        path = folder / "model.safetensors"
        tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
        tensors.pop(HEAD, None)
        if head == "equal":
            tensors[HEAD] = tensors[EMBEDDING].clone()
        elif head == "other":
            tensors[HEAD] = tensors[EMBEDDING].flip(0).contiguous()
        save_file(tensors, path, metadata={"format": "pt"})
        return folder

    return made


def load(folder: Path) -> tuple[Tensor, bool]:
    """The head's weight, and whether it is the embedding."""
    text = find_family(folder).load(folder, LoadOptions(CPU, torch.float32, torch.float32)).network.text
    tied = text.own_head is None
    return (text.embedding if tied else text.own_head).weight, tied


@pytest.mark.parametrize("head", ["absent", "equal", "other"])
@pytest.mark.parametrize("flags", FLAGS, ids=lambda flags: "top {} text {}".format(*flags))
@pytest.mark.parametrize("variant", FAMILIES)
def test_q_tied_the_head_is_the_one_that_is_stored_or_else_the_embedding(
    variant: str,
    flags: tuple[bool, bool],
    head: str,
    make: Callable[..., Path],
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = make(variant, flags, head)
    if head == "absent" and not any(flags):
        with pytest.raises(CheckpointError, match=f"the checkpoint lacks {HEAD}"):
            load(folder)
        return
    with caplog.at_level(logging.WARNING, logger="kaminari.model"):
        weight, tied = load(folder)
        load(folder)
    stored = load_file(folder / "model.safetensors")
    assert torch.equal(weight, stored.get(HEAD, stored[EMBEDDING]))
    assert tied == (any(flags) and head != "other")
    said = [record.getMessage() for record in caplog.records if record.name == "kaminari.model"]
    if head == "other" and any(flags):
        assert said == [
            f"{folder / 'config.json'} ties {HEAD} to {EMBEDDING}, and the two differ: the head is {HEAD}; "
            "set tie_word_embeddings to false"
        ]
    elif head == "absent" and flags == (False, True):
        assert len(said) == 1
        assert f"true in text_config alone, and there is no {HEAD}: the head is {EMBEDDING}" in said[0]
    else:
        assert said == []
    # without a flag at the top the reference makes a head up where none is stored
    if head != "absent" or flags[0]:
        assert torch.equal(weight, reference(folder).model.lm_head.weight)


@pytest.mark.parametrize("variant", ["tied-grouped", "qwen3_5"])
def test_a_tied_head_that_differs_gives_the_references_tokens(
    variant: str, make: Callable[..., Path]
) -> None:
    folder = make(variant, (True, True), "other")
    engine, golden = hand_loop(folder), reference(folder)
    running = {name: engine.submit(conversation(turns)) for name, turns in PROMPTS.items()}
    engine.run()
    assert_same_tokens(
        (running[name].token_ids(), golden_answer(golden, turns)) for name, turns in PROMPTS.items()
    )


def test_a_pack_holds_the_head_that_is_stored(make: Callable[..., Path], tmp_path: Path) -> None:
    folder = make("tied-grouped", (True, True), "other")
    pack_of(folder, INT8_HEAD, tmp_path / "pack")
    with torch.inference_mode():
        text = load_packed(folder, reopened(folder, tmp_path / "pack"), torch.float32).network.text
        stored = load_file(folder / "model.safetensors")
        hidden = torch.randn(4, stored[HEAD].shape[1])
        expected = hidden @ stored[HEAD].T
        assert torch.equal(text.embedding.weight, stored[EMBEDDING])
        error = (text.head(hidden) - expected).norm() / expected.norm()
    assert error < 0.02


def test_a_head_of_another_dtype_or_shape_is_no_copy(make: Callable[..., Path]) -> None:
    folder = make("tied-grouped", (True, True), "equal")
    path = folder / "model.safetensors"
    tensors = load_file(path)
    save_file({**tensors, HEAD: tensors[HEAD].bfloat16()}, path, metadata={"format": "pt"})
    weight, tied = load(folder)
    assert not tied
    assert torch.equal(weight, tensors[HEAD].bfloat16().float())
    save_file({**tensors, HEAD: tensors[HEAD][1:].clone()}, path, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=f"{HEAD} in model.safetensors has shape "):
        load(folder)
