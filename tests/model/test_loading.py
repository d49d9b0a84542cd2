"""Loading: every tensor has its place, and every bad checkpoint says in one line what is wrong with it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import NoneType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from kaminari.model.family import CheckpointError, LoadOptions, find_family
from kaminari.model.kernels.cpu_linear import BFloatLinear, FloatLinear
from kaminari.model.kernels.native.build import native_kernels
from kaminari.model.layers import Embedding
from kaminari.model.linear import Linear
from kaminari.model.loading import read_headers
from kaminari.model.qwen3_vl import FAMILY
from tests.checkpoints import VARIANTS
from tests.model.kernels.quantized_weights import rounding_bound
from tests.model.steps import CPU, load

EMBEDDING = "model.language_model.embed_tokens.weight"
HEAD = "lm_head.weight"
NORM = "model.language_model.norm.weight"
Q_PROJ = "model.language_model.layers.1.self_attn.q_proj.weight"


@pytest.fixture
def folder(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    """A copy of the tied checkpoint, to be broken."""
    return Path(shutil.copytree(tiny_checkpoint, tmp_path / "checkpoint"))


def edit_tensors(folder: Path, edit: Callable[[dict[str, Tensor]], object]) -> None:
    path = folder / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    edit(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def edit_config(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    edit(config)
    path.write_text(json.dumps(config))


def refusal(folder: Path) -> str:
    """The one line that both ways into a checkpoint refuse it with."""
    messages = []
    for attempt in (lambda: load(folder), lambda: FAMILY.footprint(folder, torch.float32, torch.float32)):
        with pytest.raises(CheckpointError) as caught:
            attempt()
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert "\n" not in messages[0]
    return messages[0]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    ("dtype", "vision_dtype"), [(torch.float32, torch.float32), (torch.bfloat16, torch.float32)]
)
def test_every_parameter_is_loaded_and_counted(
    variant: str, dtype: torch.dtype, vision_dtype: torch.dtype, checkpoint: Callable[[str], Path]
) -> None:
    folder = checkpoint(variant)
    model = find_family(folder).load(folder, LoadOptions(CPU, dtype, vision_dtype))
    network = model.network
    held = [*network.parameters(), *network.buffers()]
    assert not any(tensor.is_meta or tensor.requires_grad for tensor in held)
    assert {parameter.dtype for parameter in network.text.parameters()} == {dtype}
    assert {parameter.dtype for parameter in network.vision.parameters()} == {vision_dtype}
    assert network.text.rotary.inv_freq.dtype == torch.float32
    assert network.vision.rotary_pos_emb.inv_freq.dtype == torch.float32
    footprint = FAMILY.footprint(folder, dtype, vision_dtype)
    assert footprint.weights == sum(parameter.nbytes for parameter in network.parameters())
    cache = model.new_cache(3, 17)
    assert cache.nbytes() == 3 * 17 * footprint.cache_per_token + 3 * footprint.cache_per_slot


@pytest.mark.parametrize("variant", VARIANTS)
def test_decoders_in_bfloat16_multiply_by_native_kernels(
    variant: str, checkpoint: Callable[[str], Path]
) -> None:
    folder = checkpoint(variant)
    text = find_family(folder).load(folder, LoadOptions(CPU, torch.bfloat16, torch.float32)).network.text
    tied = text.own_head is None
    linears = [part for part in text.modules() if isinstance(part, Linear)]
    heads = [text.embedding] if tied else []
    there = native_kernels().library is not None and native_kernels().level != "portable"
    assert {type(part.kernel) for part in [*linears, *heads]} == {BFloatLinear if there else NoneType}
    x = torch.randn(3, linears[0].in_features).bfloat16()
    plain = F.linear(x.float(), linears[0].weight.float())
    assert torch.allclose(linears[0](x).float(), plain, rtol=2**-8, atol=1e-5)
    hidden = torch.randn(2, text.embedding.weight.shape[1]).bfloat16()
    head = text.embedding.weight if tied else text.own_head.weight
    logits = F.linear(hidden.float(), head.float())
    assert torch.allclose(text.head(hidden).float(), logits, rtol=2**-8, atol=1e-5)


def test_linears_in_float32_have_native_kernels_too(tiny_checkpoint: Path) -> None:
    text = load(tiny_checkpoint).network.text
    parts = [part for part in text.modules() if isinstance(part, Linear | Embedding)]
    there = native_kernels().library is not None
    # the head is tied to the embedding or a linear of its own
    kernels = {type(part.kernel) for part in parts if isinstance(part, Linear) or text.own_head is None}
    assert kernels == {FloatLinear if there else NoneType}


def test_fused_weights_hold_their_parts_in_order(tiny_checkpoint: Path) -> None:
    stored = load_file(tiny_checkpoint / "model.safetensors")
    layer = load(tiny_checkpoint).network.text.layers[1]
    parts = [stored[Q_PROJ.replace("q_proj", name)] for name in ("q_proj", "k_proj", "v_proj")]
    assert torch.equal(layer.attention.qkv.weight, torch.cat(parts))
    mlp = "model.language_model.layers.1.mlp."
    assert torch.equal(
        layer.mlp.gate_up.weight,
        torch.cat((stored[mlp + "gate_proj.weight"], stored[mlp + "up_proj.weight"])),
    )


def test_progress_goes_from_nothing_to_every_byte_of_the_files(checkpoint: Callable[[str], Path]) -> None:
    folder = checkpoint("sharded")
    seen: list[tuple[int, int]] = []
    options = LoadOptions(CPU, torch.float32, torch.float32, lambda done, total: seen.append((done, total)))
    FAMILY.load(folder, options)
    total = sum(stored.nbytes for stored in read_headers(folder).values())
    assert seen[0] == (0, total)
    assert seen[-1] == (total, total)
    assert all(before[0] < after[0] for before, after in pairwise(seen))


@pytest.mark.parametrize("stored_dtype", [torch.float16, torch.bfloat16])
def test_stored_halves_are_cast(folder: Path, stored_dtype: torch.dtype) -> None:
    edit_tensors(folder, lambda tensors: tensors.update({k: t.to(stored_dtype) for k, t in tensors.items()}))
    stored = load_file(folder / "model.safetensors")
    norm = load(folder).network.text.norm.weight
    assert norm.dtype == torch.float32
    assert torch.equal(norm, stored[NORM].float())


def test_the_released_spelling_of_rope_is_read_alike(folder: Path) -> None:
    """Released configs say `rope_theta` and `rope_scaling` in `text_config`."""
    wanted = load(folder).network.text.rotary

    def respell(config: dict[str, Any]) -> None:
        rope = config["text_config"].pop("rope_parameters")
        config["text_config"]["rope_theta"] = rope.pop("rope_theta")
        config["text_config"]["rope_scaling"] = rope

    edit_config(folder, respell)
    got = load(folder).network.text.rotary
    assert torch.equal(got.inv_freq, wanted.inv_freq)
    assert torch.equal(got.axes, wanted.axes)


def test_a_tied_head_may_be_stored_again_if_it_is_the_embedding(folder: Path) -> None:
    edit_tensors(folder, lambda tensors: tensors.update({HEAD: tensors[EMBEDDING].clone()}))
    model = load(folder)
    hidden = torch.randn(2, model.network.text.embedding.weight.shape[1])
    weight = model.network.text.embedding.weight
    exact = hidden.double() @ weight.double().t()
    # a native kernel sums in another order than torch
    assert ((model.head(hidden) - exact).abs() <= rounding_bound(hidden, weight, exact, torch.float32)).all()


def test_an_untied_checkpoint_needs_its_head(folder: Path) -> None:
    def untie(config: dict[str, Any]) -> None:
        config["tie_word_embeddings"] = config["text_config"]["tie_word_embeddings"] = False

    edit_config(folder, untie)
    assert refusal(folder) == f"the checkpoint lacks {HEAD}"


@pytest.mark.parametrize("name", [NORM, Q_PROJ, "model.visual.patch_embed.proj.weight", EMBEDDING])
def test_a_missing_tensor_is_named(folder: Path, name: str) -> None:
    edit_tensors(folder, lambda tensors: tensors.pop(name))
    assert refusal(folder) == f"the checkpoint lacks {name}"


def test_many_missing_tensors_are_counted(folder: Path) -> None:
    edit_tensors(folder, lambda tensors: [tensors.pop(k) for k in list(tensors) if "layers.1." in k])
    assert "and 8 more" in refusal(folder)


@pytest.mark.parametrize("name", ["model.language_model.layers.3.mlp.up_proj.weight", "mtp.fc.weight"])
def test_an_unused_tensor_is_named(folder: Path, name: str) -> None:
    edit_tensors(folder, lambda tensors: tensors.update({name: torch.zeros(2, 2)}))
    assert refusal(folder) == f"the checkpoint holds tensors that this model does not use: {name}"


@pytest.mark.parametrize("name", [NORM, Q_PROJ, "model.visual.patch_embed.proj.weight"])
def test_a_wrong_shape_is_named(folder: Path, name: str) -> None:
    edit_tensors(folder, lambda tensors: tensors.update({name: tensors[name][1:].clone()}))
    message = refusal(folder)
    assert message.startswith(f"{name} in model.safetensors has shape [")
    assert "config.json asks for [" in message


def test_a_wrong_dtype_is_named(folder: Path) -> None:
    edit_tensors(folder, lambda tensors: tensors.update({Q_PROJ: tensors[Q_PROJ].to(torch.int8)}))
    assert refusal(folder) == f"{Q_PROJ} in model.safetensors is I8; supported: F32, F16, BF16"


@pytest.mark.parametrize("keep", [0, 5, 4000, -1])
def test_a_truncated_file_is_named(folder: Path, keep: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    assert refusal(folder).startswith(f"{path} is truncated or corrupt: ")


def test_a_pointer_that_stands_for_a_file_is_named(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 2600192\n")
    assert refusal(folder).startswith(f"{path} is truncated or corrupt: ")


def test_pickled_weights_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "holds pickled weights (pytorch_model.bin); only safetensors are loaded" in refusal(folder)


def test_a_folder_without_weights_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert refusal(folder) == f"no model.safetensors or model.safetensors.index.json in {folder}"


@pytest.fixture
def shards(checkpoint: Callable[[str], Path], tmp_path: Path) -> Path:
    """A copy of the sharded checkpoint, to be broken."""
    return Path(shutil.copytree(checkpoint("sharded"), tmp_path / "shards"))


def test_a_missing_shard_is_named(shards: Path) -> None:
    gone = sorted(shards.glob("*.safetensors"))[2]
    gone.unlink()
    assert refusal(shards) == f"model.safetensors.index.json names {gone.name}, which is not in {shards}"


def test_a_tensor_in_two_shards_is_named(shards: Path) -> None:
    first, second = sorted(shards.glob("*.safetensors"))[:2]
    name = next(iter(load_file(first)))
    save_file({**load_file(second), name: torch.zeros(1)}, second)
    assert refusal(shards) == f"{name} is in both {first.name} and {second.name}"


@pytest.mark.parametrize("text", ["{", "[]", '{"weight_map": 3}', '{"weight_map": {}', "{}"])
def test_a_broken_index_is_named(shards: Path, text: str) -> None:
    index = shards / "model.safetensors.index.json"
    index.write_text(text)
    assert refusal(shards).startswith(f"cannot read {index}: ")


@pytest.mark.parametrize("name", ["../model.safetensors", "sub/model.safetensors", 7])
def test_an_index_may_not_leave_its_folder(shards: Path, name: Any) -> None:
    index = shards / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": name}}))
    assert refusal(shards) == f"{index} names a file outside its folder: {name!r}"


@pytest.mark.parametrize(
    ("section", "change", "problem"),
    [
        ("text_config", {"attention_bias": True}, "attention_bias is not supported"),
        ("text_config", {"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ("text_config", {"num_key_value_heads": 3}, "4 heads cannot share 3 key-value heads"),
        ("text_config", {"num_key_value_heads": 0}, "num_key_value_heads is 0"),
        ("text_config", {"head_dim": 31}, "head_dim"),
        ("text_config", {"head_dim": 0}, "head_dim"),
        ("text_config", {"rope_parameters": {"rope_type": "spiral", "rope_theta": 1e4}}, "spiral"),
        ("text_config", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "factor"),
        ("text_config", {"hidden_size": "many"}, "is not a valid config"),
        ("text_config", {"num_hidden_layers": 2}, "tensors that this model does not use"),
        ("text_config", {"num_hidden_layers": 4}, "the checkpoint lacks model.language_model.layers.3."),
        ("text_config", {"vocab_size": 321}, "has shape [320, 64], and config.json asks for [321, 64]"),
        (
            "text_config",
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
            "rope type 'dynamic' is not supported",
        ),
        ("vision_config", {"out_hidden_size": 32}, "they must be equal"),
        ("vision_config", {"num_heads": 3}, "hidden_size 64 does not split into 3 heads"),
        ("vision_config", {"num_heads": 32}, "hidden_size 64 does not split into 32 heads"),
        ("vision_config", {"num_heads": 0}, "hidden_size 64 does not split into 0 heads"),
        ("vision_config", {"rope_parameters": {"rope_type": "spiral"}}, "spiral"),
        ("vision_config", {"hidden_act": "spiral"}, "spiral"),
        ("vision_config", {"depth": 2}, "tensors that this model does not use"),
        ("vision_config", {"deepstack_visual_indexes": [0]}, "tensors that this model does not use"),
        (None, {"text_config": None}, "lacks text_config"),
        (None, {"vision_config": [1]}, "lacks vision_config"),
        (None, {"quantization_config": {"quant_method": "fp8"}}, "quantized checkpoints"),
    ],
)
def test_a_config_that_cannot_be_honoured_is_refused(
    folder: Path, section: str | None, change: dict[str, Any], problem: str
) -> None:
    edit_config(folder, lambda config: (config if section is None else config[section]).update(change))
    assert problem in refusal(folder)


def test_a_family_is_found_by_its_model_type(folder: Path) -> None:
    assert find_family(folder) is FAMILY
    edit_config(folder, lambda config: config.update(model_type="llama"))
    with pytest.raises(CheckpointError, match="unsupported model_type 'llama'"):
        find_family(folder)
