"""A model from a pack is the model with its weights dequantized by hand, and never holds them in full."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from kaminari.engine.loading import DEMO_FOLDER
from kaminari.model.family import LoadOptions, VisionLanguageModel, find_family
from kaminari.model.kernels import linears
from kaminari.model.kernels.dequantizing import DequantizingKernel
from kaminari.model.kernels.linears import linear_kernel
from kaminari.model.linear import Matrix
from kaminari.model.packs import placing
from kaminari.model.packs.placing import PackedMatrices
from kaminari.model.packs.reading import Pack
from kaminari.model.packs.targets import matrices_by_parameter
from kaminari.model.packs.writing import Recipe
from kaminari.model.quantized import QuantizedWeight
from kaminari.model.stages import LOGITS, find_stages
from kaminari.verify.prompts import built_in
from kaminari.verify.replay import Replayer, open_frontend
from tests import checkpoints
from tests.model.packs.packs import INT4, INT4_HEAD, INT8, INT8_HEAD, load_packed, pack_of
from tests.model.steps import CPU, load

FAMILIES = ["tied-grouped", "untied-wide", "sharded", "qwen3_5", "qwen3_5-untied", "minicpm_v"]


@pytest.fixture
def plain_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that multiply by the dequantized weight, and round no more than that."""

    def kernel(weight: Tensor | QuantizedWeight, device: torch.device, dtype: torch.dtype) -> Any:
        return None if isinstance(weight, Tensor) else DequantizingKernel(weight, dtype)

    whole_kernels(monkeypatch, kernel)


def whole_kernels(monkeypatch: pytest.MonkeyPatch, kernel: Callable[..., Any]) -> None:
    """Let `kernel` make the kernels of all weights, which it takes whole."""
    for module in (placing, linears):
        monkeypatch.setattr(module, "linear_kernel", kernel)
    monkeypatch.setattr(placing, "begin_kernel", linears.WholeFilling)


def dequantized_by_hand(checkpoint: Path, pack: Pack, folder: Path) -> Path:
    """A checkpoint of one file with the pack's values in place of its weights, those of a tied head twice."""
    shutil.copytree(checkpoint, folder, ignore=shutil.ignore_patterns("*.safetensors*"))
    tensors: dict[str, Tensor] = {}
    for path in checkpoint.glob("*.safetensors"):
        tensors.update(load_file(path))
    with safe_open(pack.file, "pt") as file:
        for name, target in pack.header.targets.items():
            tensors[target.source] = pack.read(file, name).dequantize()
            if f"{name}.weight" in tensors:
                tensors[f"{name}.weight"] = tensors[target.source].clone()
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


def replayer(checkpoint: Path, model: VisionLanguageModel) -> Replayer:
    return Replayer(model, find_stages(checkpoint), open_frontend(checkpoint, 2))


def answers(checkpoint: Path, model: VisionLanguageModel) -> list[tuple[int, ...]]:
    """Greedy answers to the built-in prompts, with pictures and without."""
    asked = replayer(checkpoint, model)
    return [asked.greedy(asked.prepare(prompt), 12) for prompt in built_in()]


def logits(checkpoint: Path, model: VisionLanguageModel, rows: int = 4) -> Tensor:
    """Logits [R, vocab] of the last `rows` tokens of each of the built-in prompts."""
    asked = replayer(checkpoint, model)
    return torch.cat([asked.observe(asked.prepare(each), rows=rows)[LOGITS].output for each in built_in()])


def distance(ours: Tensor, theirs: Tensor) -> float:
    return float((ours.float() - theirs).norm() / theirs.norm())


@pytest.mark.parametrize("variant", FAMILIES)
@pytest.mark.parametrize(
    "recipe", [INT8, INT4, INT8_HEAD, INT4_HEAD], ids=["int8", "int4", "int8 head", "int4 head"]
)
@pytest.mark.usefixtures("plain_kernels")
def test_tokens_are_those_of_the_weights_dequantized_by_hand(
    variant: str, recipe: Recipe, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = checkpoint(variant)
    pack = pack_of(folder, recipe, tmp_path / "pack").pack
    by_hand = dequantized_by_hand(folder, pack, tmp_path / "by hand")
    found = answers(folder, load_packed(folder, pack))
    assert found == answers(by_hand, load(by_hand))
    assert len({token for answer in found for token in answer}) > 3, "the answers say too little"


@pytest.mark.parametrize("recipe", [INT8_HEAD, INT4_HEAD], ids=["int8", "int4"])
def test_every_kernel_gives_the_same_token_where_one_leads_by_more_than_their_difference(
    recipe: Recipe, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    pack = pack_of(DEMO_FOLDER, recipe, tmp_path / "pack").pack
    ours = logits(DEMO_FOLDER, load_packed(DEMO_FOLDER, pack), rows=32)
    request.getfixturevalue("plain_kernels")
    plain = logits(DEMO_FOLDER, load_packed(DEMO_FOLDER, pack), rows=32)
    # what rounding activations to int8 may change in a logit, in parts of the logits' spread
    bound = 0.1 * plain.std()
    assert (ours - plain).abs().max() <= bound
    first, second = plain.topk(2).values.unbind(-1)
    led = first - second > 2 * bound
    assert led.float().mean() > 0.5
    assert torch.equal(ours.argmax(-1)[led], plain.argmax(-1)[led])


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("variant", ["tied-grouped", "qwen3_5"])
@pytest.mark.parametrize("recipe", [INT8_HEAD, INT4_HEAD], ids=["int8", "int4"])
@pytest.mark.usefixtures("plain_kernels")
def test_on_cuda_tokens_are_those_of_the_weights_dequantized_on_the_cpu(
    variant: str,
    recipe: Recipe,
    checkpoint: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = checkpoint(variant)
    pack = pack_of(folder, recipe, tmp_path / "pack").pack
    wanted = answers(folder, load_packed(folder, pack))
    whole_kernels(monkeypatch, linear_kernel)
    device = torch.device("cuda", torch.cuda.current_device())
    options = LoadOptions(device, torch.float32, torch.float32, pack=pack)
    assert answers(folder, find_family(folder).load(folder, options)) == wanted


@pytest.mark.parametrize("variant", FAMILIES)
@pytest.mark.parametrize("recipe", [INT8_HEAD, INT4_HEAD], ids=["int8", "int4"])
def test_every_kernel_multiplies_by_its_own_rows(
    variant: str, recipe: Recipe, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = checkpoint(variant)
    pack = pack_of(folder, recipe, tmp_path / "pack").pack
    packed: Any = load_packed(folder, pack)
    by_hand: Any = load(dequantized_by_hand(folder, pack, tmp_path / "by hand"))
    wanted = matrices_by_parameter(by_hand.network)
    found = matrices_by_parameter(packed.network)
    assert found.keys() == wanted.keys()
    draw = torch.Generator().manual_seed(1)
    for name, matrix in wanted.items():
        x = torch.randn(3, matrix.in_features, generator=draw)
        # the native kernels round activations to int8: half a step in 127 of the largest of each group
        assert distance(found[name].multiply(x), matrix.multiply(x)) < 0.02, name
    x = torch.randn(3, wanted["text.embedding.weight"].in_features, generator=draw)
    assert distance(packed.head(x), by_hand.head(x)) < 0.02


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("variant", FAMILIES)
def test_a_tied_head_and_its_embedding_are_one_table(
    variant: str, dtype: torch.dtype, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """Its rows are those of the pack to the bit; an embedding that is not the head's stays as it is."""
    folder = checkpoint(variant)
    pack = pack_of(folder, INT8_HEAD, tmp_path / "pack").pack
    by_hand: Any = load(dequantized_by_hand(folder, pack, tmp_path / "by hand"))
    packed: Any = load_packed(folder, pack, dtype)
    text, rows = packed.network.text, by_hand.network.text.embedding.weight
    tokens = torch.cat([torch.arange(rows.shape[0]), torch.tensor([3, 3, 0])])
    assert torch.equal(text.embedding(tokens), rows[tokens].to(dtype))
    tied = by_hand.network.text.own_head is None
    assert (text.own_head is None) is tied
    assert (text.embedding.weight is None) is tied
    assert not tied or text.embedding.kernel is text.embedding.table


@pytest.mark.parametrize("variant", FAMILIES)
@pytest.mark.parametrize("recipe", [INT4, INT4_HEAD], ids=["int4", "int4 head"])
def test_nothing_else_changes(
    variant: str, recipe: Recipe, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """Every parameter that is left equals that of the plain model, and only those of targets are lost."""
    folder = checkpoint(variant)
    pack = pack_of(folder, recipe, tmp_path / "pack").pack
    plain: Any = load(folder)
    packed: Any = load_packed(folder, pack)
    kept = dict(packed.network.named_parameters())
    lost = {name for name, _ in plain.network.named_parameters()} - set(kept)
    matrices = set(matrices_by_parameter(plain.network))
    tied = "text.own_head.weight" not in matrices
    head = {"text.embedding.weight" if tied else "text.own_head.weight"}
    assert lost == (matrices - {"text.embedding.weight", "text.own_head.weight"}) | (
        head if recipe.head else set()
    )
    for name, parameter in plain.network.named_parameters():
        assert name in lost or torch.equal(parameter, kept[name]), name
    for name, buffer in plain.network.named_buffers():
        assert torch.equal(buffer, packed.network.get_buffer(name)), name


@pytest.mark.parametrize("variant", FAMILIES)
@pytest.mark.parametrize("recipe", [INT8_HEAD, INT4_HEAD, INT4], ids=["int8 head", "int4 head", "int4"])
@pytest.mark.usefixtures("plain_kernels")
def test_the_footprint_counts_what_is_held(
    variant: str, recipe: Recipe, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = checkpoint(variant)
    family = find_family(folder)
    pack = pack_of(folder, recipe, tmp_path / "pack").pack
    plain = family.footprint(folder, torch.float32, torch.float32)
    planned = PackedMatrices(family.open(folder), pack).footprint(plain, torch.float32)
    model: Any = load_packed(folder, pack)
    matrices = [part for part in model.network.text.modules() if isinstance(part, Matrix)]
    # a kernel of a weight that is there multiplies by that
    kernels = [part.kernel for part in matrices if part.kernel is not None and part.weight is None]
    held = sum(parameter.nbytes for parameter in model.network.parameters())
    assert planned.weights == held + sum(kernel.nbytes for kernel in kernels)
    assert planned.cache_per_token == plain.cache_per_token


def test_progress_counts_the_bytes_that_are_read(tiny_checkpoint: Path, tmp_path: Path) -> None:
    pack = pack_of(tiny_checkpoint, INT8_HEAD, tmp_path / "pack").pack
    seen: list[tuple[int, int]] = []
    options = LoadOptions(CPU, torch.float32, torch.float32, lambda *each: seen.append(each), pack)
    find_family(tiny_checkpoint).load(tiny_checkpoint, options)
    assert seen[0][0] == 0
    assert seen[-1][0] == seen[-1][1]
    assert {total for _, total in seen} == {seen[-1][1]}
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is told by Linux' /proc")
def test_the_full_weights_are_never_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = checkpoints.Shape(True, 4, 2, 32, (6, 5, 5), layers=6, hidden=256, intermediate=8192)
    monkeypatch.setitem(checkpoints.VARIANTS, "big", shape)
    folder = checkpoints.build_qwen3_vl(tmp_path / "big", "big")
    pack = pack_of(folder, INT4, tmp_path / "pack").pack
    weights = 6 * 3 * 256 * 8192 * 4
    packed, plain = json.loads(elsewhere("print_peaks", folder, pack.folder))
    assert plain > 0.9 * weights
    assert packed < 0.35 * weights


def test_a_pack_loads_with_other_threads_dtype_and_cpu_features(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    pack = pack_of(tiny_checkpoint, INT4_HEAD, tmp_path / "pack").pack
    here = logits(tiny_checkpoint, load_packed(tiny_checkpoint, pack))
    elsewhere("save_logits", tiny_checkpoint, pack.folder, tmp_path / "out", ATEN_CPU_CAPABILITY="default")
    single, half = torch.load(tmp_path / "out")
    assert distance(single, here) < 0.05
    assert distance(half, here) < 0.1


def elsewhere(function: str, *paths: Path, **environ: str) -> str:
    """Run one of `tests.model.packs.elsewhere` in a process of its own, with two threads; what it prints."""
    code = (
        "import sys; from tests.model.packs import elsewhere; getattr(elsewhere, sys.argv[1])(*sys.argv[2:])"
    )
    process = subprocess.run(
        [sys.executable, "-c", code, function, *map(str, paths)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
        env=os.environ | environ,
    )
    return process.stdout
