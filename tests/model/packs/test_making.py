"""Packs hold what they should, all of it and nothing else, and appear whole or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from kaminari.model.family import CheckpointError, find_family
from kaminari.model.packs import writing
from kaminari.model.packs.format import PACK_FILE
from kaminari.model.packs.rounding import Method, quantize_int4, quantize_int8
from kaminari.model.packs.targets import matrices_by_parameter
from kaminari.model.packs.tensor_file import TensorFile
from kaminari.model.packs.writing import Recipe, make_pack
from tests.model.packs.packs import (
    INT4,
    INT4_HEAD,
    INT8,
    INT8_HEAD,
    header_of,
    load_packed,
    pack_of,
    reopened,
)

FAMILIES = ["tied-grouped", "untied-wide", "sharded", "qwen3_5", "qwen3_5-untied", "minicpm_v"]


@pytest.mark.parametrize("variant", FAMILIES)
@pytest.mark.parametrize("recipe", [INT8_HEAD, INT4], ids=["int8", "int4"])
def test_a_pack_holds_the_decoders_projections_rounded(
    variant: str, recipe: Recipe, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = checkpoint(variant)
    made = pack_of(folder, recipe, tmp_path / "pack")
    originals = {}
    for path in folder.glob("*.safetensors"):
        originals.update(load_file(path))
    stored = load_file(tmp_path / "pack" / PACK_FILE)
    targets = made.pack.header.targets
    projections = {
        name.removesuffix(".weight")
        for name in originals
        if "language_model.layers" in name
        and name.endswith(".weight")
        and not any(part in name for part in ("norm", "conv1d", "in_proj_a", "in_proj_b"))
    }
    assert projections, "nothing to compare"
    assert set(targets) == projections | ({"lm_head"} if recipe.head else set())
    for name, target in targets.items():
        rows = originals[target.source]
        if target.format == "int8":
            wanted = quantize_int8(rows)
        else:
            wanted = quantize_int4(rows, recipe.group_size, recipe.method)
            assert torch.equal(stored.pop(f"{name}.zeros"), wanted.zeros)
        assert torch.equal(stored.pop(f"{name}.codes"), wanted.codes)
        assert torch.equal(stored.pop(f"{name}.scales"), wanted.scales)
        off = (wanted.dequantize() - rows).norm() / rows.norm()
        assert made.errors[name] == pytest.approx(float(off), rel=1e-4)
    assert not stored
    assert made.pack.nbytes == sum(each.nbytes for each in load_file(tmp_path / "pack" / PACK_FILE).values())


def test_the_same_checkpoint_gives_the_same_bytes_whatever_the_threads_and_blocks(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack_of(tiny_checkpoint, INT4_HEAD, tmp_path / "whole")
    torch.set_num_threads(2)
    monkeypatch.setattr(writing, "BLOCK_VALUES", 1000)
    try:
        pack_of(tiny_checkpoint, INT4_HEAD, tmp_path / "blocks")
    finally:
        torch.set_num_threads(1)
    assert (tmp_path / "whole" / PACK_FILE).read_bytes() == (tmp_path / "blocks" / PACK_FILE).read_bytes()


def test_progress_goes_from_nothing_to_all(tiny_checkpoint: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    family = find_family(tiny_checkpoint)
    make_pack(
        family.open(tiny_checkpoint),
        INT8,
        tmp_path / "pack",
        model="m",
        family=family.name,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen[0][0] == 0
    assert seen[-1][0] == seen[-1][1] > 0
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})


def test_a_pack_replaces_a_pack(tiny_checkpoint: Path, tmp_path: Path) -> None:
    folder = tmp_path / "pack"
    pack_of(tiny_checkpoint, INT8, folder)
    writing.save_report(folder, "{}")
    pack_of(tiny_checkpoint, INT4, folder)
    assert header_of(folder)["format"] == "int4"
    assert [path.name for path in tmp_path.iterdir()] == ["pack"]
    assert [path.name for path in folder.iterdir()] == [PACK_FILE]


@pytest.mark.parametrize("kind", ["other things", "a file", "a pack and more", "no pack's tensors"])
def test_what_is_no_pack_is_never_replaced(kind: str, tiny_checkpoint: Path, tmp_path: Path) -> None:
    folder = tmp_path / "precious"
    if kind == "a file":
        folder.write_text("mine")
    else:
        folder.mkdir()
        if kind == "a pack and more":
            pack_of(tiny_checkpoint, INT8, tmp_path / "other")
            shutil.copy(tmp_path / "other" / PACK_FILE, folder)
        if kind == "no pack's tensors":
            save_file({"x": torch.zeros(1)}, folder / PACK_FILE)
        else:
            (folder / "thesis.txt").write_text("mine")
    before = sorted(folder.rglob("*"))
    with pytest.raises(CheckpointError, match="precious"):
        pack_of(tiny_checkpoint, INT4, folder)
    assert sorted(folder.rglob("*")) == before


def test_a_failure_leaves_nothing_and_the_old_pack_in_place(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "pack"
    pack_of(tiny_checkpoint, INT8, folder)

    def full(self: TensorFile, *rest: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(TensorFile, "write_rows", full)
    with pytest.raises(OSError, match="No space"):
        pack_of(tiny_checkpoint, INT4, folder)
    assert [path.name for path in tmp_path.iterdir()] == ["pack"]
    assert header_of(folder)["format"] == "int8"
    reopened(tiny_checkpoint, folder)


@pytest.mark.parametrize("end", [KeyboardInterrupt, OSError(28, "No space left on device")])
@pytest.mark.parametrize("verb", ["write_rows", "describe"])
def test_nothing_of_an_interrupted_pack_is_left(
    verb: str, end: BaseException, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However far it came: the first of its rows, and all of them but what closes it."""

    def ends(self: TensorFile, *rest: object) -> None:
        raise end

    monkeypatch.setattr(TensorFile, verb, ends)
    with pytest.raises((KeyboardInterrupt, OSError)):
        pack_of(tiny_checkpoint, INT4, tmp_path / "new" / "pack")
    assert list((tmp_path / "new").iterdir()) == []


def test_a_pack_that_was_killed_half_way_does_not_load(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a power cut leaves has its header and its length, and is refused by its first weight."""
    half = tmp_path / "half"

    def left(self: TensorFile, *rest: object) -> None:
        self._file.flush()
        shutil.copytree(next(tmp_path.glob(".pack.*")) / "new", half, dirs_exist_ok=True)

    monkeypatch.setattr(TensorFile, "describe", left)
    with pytest.raises(CheckpointError, match="its digest differs"):
        pack_of(tiny_checkpoint, INT4, tmp_path / "pack")
    assert not (tmp_path / "pack").exists()
    with pytest.raises(
        CheckpointError, match=r"_proj in .*half.* is not what was written: its digest differs"
    ):
        load_packed(tiny_checkpoint, reopened(tiny_checkpoint, half))


class Even:
    """Moments of inputs that say nothing of each other."""

    def __init__(self, checkpoint: Path) -> None:
        self._matrices = matrices_by_parameter(find_family(checkpoint).open(checkpoint).network)
        self.asked: list[str] = []

    def of(self, parameter: str) -> torch.Tensor:
        self.asked.append(parameter)
        return torch.eye(self._matrices[parameter].in_features)


def test_gptq_asks_once_for_each_linear(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Where inputs say nothing of each other it is the same pack but for its name."""
    moments = Even(tiny_checkpoint)
    made = pack_of(tiny_checkpoint, Recipe(INT4.format, 32, Method.GPTQ), tmp_path / "gptq", moments)
    fit = pack_of(tiny_checkpoint, Recipe(INT4.format, 32, Method.FIT), tmp_path / "fit")
    assert (made.pack.header.method, fit.pack.header.method) == ("gptq", "fit")
    assert made.errors == fit.errors
    assert len(moments.asked) == len(set(moments.asked)) > 4
    with pytest.raises(ValueError, match="gptq needs the moments"):
        pack_of(tiny_checkpoint, Recipe(INT4.format, 32, Method.GPTQ), tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_weights_that_are_not_finite_are_named(tiny_checkpoint: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_checkpoint, tmp_path / "checkpoint"))
    tensors = {name: tensor.clone() for name, tensor in load_file(folder / "model.safetensors").items()}
    name = next(name for name in tensors if name.endswith("down_proj.weight"))
    tensors[name][3, 5] = float("nan")
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(
        CheckpointError, match=f"{name} in model.safetensors holds values that are not finite"
    ):
        pack_of(folder, Recipe(INT4.format, 32, Method.FIT), tmp_path / "pack")
    assert not (tmp_path / "pack").exists()


@pytest.mark.parametrize(
    ("first_row", "rows"),
    [(0, torch.zeros(1, 3)), (0, torch.zeros(1, 2, dtype=torch.int8)), (2, torch.zeros(2, 2))],
)
def test_a_tensor_file_takes_no_rows_of_another_tensor(
    first_row: int, rows: torch.Tensor, tmp_path: Path
) -> None:
    with (
        TensorFile(tmp_path / "x", {"a": ("F32", (3, 2))}, {}) as file,
        pytest.raises(ValueError, match="a "),
    ):
        file.write_rows("a", first_row, rows)


def test_a_tensor_file_is_described_anew_in_the_same_length(tmp_path: Path) -> None:
    with TensorFile(tmp_path / "x", {"a": ("U8", (2,))}, {"key": "value"}) as file:
        file.write_rows("a", 0, torch.tensor([3, 4], dtype=torch.uint8))
        file.describe({"key": "other"})
        with pytest.raises(ValueError, match=r"a header of .* bytes cannot become one of"):
            file.describe({"key": "a much longer value than before"})
    assert load_file(tmp_path / "x")["a"].tolist() == [3, 4]
    with safe_open(tmp_path / "x", "pt") as read:
        assert read.metadata() == {"key": "other"}


def test_a_tensor_file_is_a_safetensors_file(tmp_path: Path) -> None:
    tensors = {
        "odd": torch.arange(7, dtype=torch.uint8),
        "wide": torch.randn(3, 2),
        "half": torch.randn(5, 3).bfloat16(),
        "small": torch.tensor([[-3], [4]], dtype=torch.int8),
    }
    kinds = {torch.uint8: "U8", torch.float32: "F32", torch.bfloat16: "BF16", torch.int8: "I8"}
    shapes = {name: (kinds[each.dtype], tuple(each.shape)) for name, each in tensors.items()}
    with TensorFile(tmp_path / "file", shapes, {"key": "value"}) as file:
        for name, each in tensors.items():
            for row in reversed(range(each.shape[0])):
                file.write_rows(name, row, each[row : row + 1])
    read = load_file(tmp_path / "file")
    assert set(read) == set(tensors)
    assert all(torch.equal(read[name], each) for name, each in tensors.items())
