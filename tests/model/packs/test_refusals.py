"""Every pack that is not this model's, or is no longer what it was, is refused in one line that names it."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from kaminari.config import load_settings
from kaminari.engine import loading
from kaminari.model.family import CheckpointError
from kaminari.model.kernels import linears
from kaminari.model.packs import placing
from kaminari.model.packs.format import METADATA_KEY, PACK_FILE, VERSION, PackHeader
from kaminari.model.packs.reading import Pack
from kaminari.model.packs.rounding import Method, quantize_int4
from tests.model.packs.packs import (
    INT4,
    INT4_HEAD,
    INT8,
    INT8_HEAD,
    edit_pack,
    header_of,
    load_packed,
    pack_of,
    reopened,
)

DOWN = "model.language_model.layers.1.mlp.down_proj"
Header = dict[str, Any]


@pytest.fixture(scope="module")
def packs(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packs")
    pack_of(tiny_checkpoint, INT8_HEAD, folder / "int8")
    pack_of(tiny_checkpoint, INT4, folder / "int4")
    return folder


@pytest.fixture
def copied(packs: Path, tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a pack, to be broken."""
    return lambda name: Path(shutil.copytree(packs / name, tmp_path / name))


def refusal(checkpoint: Path, folder: Path) -> str:
    """The one line that opening the pack, or loading from it, ends in."""
    with pytest.raises(CheckpointError) as caught:
        load_packed(checkpoint, reopened(checkpoint, folder))
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_sound_pack_is_not_refused(tiny_checkpoint: Path, copied: Callable[[str], Path]) -> None:
    for name in ("int8", "int4"):
        folder = copied(name)
        edit_pack(folder)
        load_packed(tiny_checkpoint, reopened(tiny_checkpoint, folder))


@pytest.mark.parametrize(
    ("name", "edit", "line"),
    [
        ("int8", lambda t: t.pop(f"{DOWN}.scales"), f"lacks {DOWN}.scales"),
        ("int8", lambda t: t.update(extra=torch.zeros(1)), "its header does not name: extra"),
        ("int4", lambda t: t.pop(f"{DOWN}.zeros"), f"lacks {DOWN}.zeros"),
        (
            "int8",
            lambda t: t.update({f"{DOWN}.codes": t[f"{DOWN}.codes"][:, :-1].contiguous()}),
            f"{DOWN}.codes in .* is I8 .* and should be I8",
        ),
        (
            "int8",
            lambda t: t.update({f"{DOWN}.scales": t[f"{DOWN}.scales"].half()}),
            f"{DOWN}.scales in .* is F16 .* and should be F32",
        ),
        (
            "int4",
            lambda t: t.update({f"{DOWN}.codes": t[f"{DOWN}.codes"].view(torch.int8)}),
            f"{DOWN}.codes in .* is I8 .* and should be U8",
        ),
        ("int8", lambda t: t[f"{DOWN}.codes"][3].fill_(-128), f"{DOWN}.codes in .* holds -128"),
        ("int8", lambda t: t[f"{DOWN}.scales"][3:].fill_(float("nan")), f"{DOWN}.scales in .* not finite"),
        ("int4", lambda t: t[f"{DOWN}.scales"][3].fill_(float("inf")), f"{DOWN}.scales in .* not finite"),
        ("int4", lambda t: t[f"{DOWN}.zeros"][0].fill_(float("-inf")), f"{DOWN}.zeros in .* not finite"),
        ("int8", lambda t: t[f"{DOWN}.codes"][1, 1].neg_().sub_(1), f"{DOWN} in .* not what was written"),
        ("int8", lambda t: t[f"{DOWN}.scales"][-1].mul_(1.01), f"{DOWN} in .* not what was written"),
        ("int4", lambda t: t[f"{DOWN}.codes"][-1, -1].add_(1), f"{DOWN} in .* not what was written"),
        ("int4", lambda t: t[f"{DOWN}.zeros"][0, 0].neg_(), f"{DOWN} in .* not what was written"),
        (
            "int4",
            lambda t: t.update({f"{DOWN}.scales": t[f"{DOWN}.zeros"], f"{DOWN}.zeros": t[f"{DOWN}.scales"]}),
            f"{DOWN} in .* not what was written",
        ),
    ],
)
def test_edited_tensors(
    name: str,
    edit: Callable[[dict[str, Tensor]], object],
    line: str,
    tiny_checkpoint: Path,
    copied: Callable[[str], Path],
) -> None:
    folder = copied(name)
    edit_pack(folder, tensors=edit)
    with pytest.raises(CheckpointError, match=line):
        load_packed(tiny_checkpoint, reopened(tiny_checkpoint, folder))
    refusal(tiny_checkpoint, folder)


def test_of_several_bad_weights_the_largest_is_named_and_nothing_stays_behind(
    tiny_checkpoint: Path, copied: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the threads, and however many weights are bad: the line is the same, and no thread is left."""
    folder = copied("int8")

    def spoil(tensors: dict[str, Tensor]) -> None:
        for name, values in tensors.items():
            if name.endswith("codes"):
                values[-1, -1] = -128

    edit_pack(folder, tensors=spoil)
    lines = set()
    for threads in (1, 2, 4):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        before = threading.enumerate()
        lines.add(refusal(tiny_checkpoint, folder))
        assert threading.enumerate() == before
    (line,) = lines
    assert re.search(r"layers\.0\.mlp\.gate_proj\.codes in .* holds -128", line)


def test_a_fault_while_a_weight_is_packed_ends_loading(
    tiny_checkpoint: Path, packs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(filling: object, first_row: int, rows: object) -> None:
        raise MemoryError("no room for a panel")

    monkeypatch.setattr(linears.WholeFilling, "put", full)
    monkeypatch.setattr(placing, "begin_kernel", linears.WholeFilling)
    before = threading.enumerate()
    with pytest.raises(MemoryError, match="no room for a panel"):
        load_packed(tiny_checkpoint, reopened(tiny_checkpoint, packs / "int4"))
    assert threading.enumerate() == before


def _target(header: Header, **changes: object) -> None:
    header["targets"][DOWN].update(changes)


@pytest.mark.parametrize(
    ("name", "edit", "line"),
    [
        ("int4", lambda h: h.update(group_size=64), "at group size 64"),
        ("int4", lambda h: h.update(group_size=48), "group_size"),
        ("int4", lambda h: h.update(group_size=None), "an int4 pack with group_size None"),
        ("int8", lambda h: h.update(group_size=32), "an int8 pack with group_size 32"),
        ("int4", lambda h: h.update(version=1), "version: .*; kaminari quantize makes it anew"),
        ("int4", lambda h: h.update(format="int3"), "not a pack that this version reads: format"),
        ("int4", lambda h: h.update(surprise=1), "surprise"),
        ("int4", lambda h: h.pop("targets"), "targets"),
        (
            "int4",
            lambda h: h.update(family="qwen3_5"),
            "the pack of a qwen3_5 model, a model, not of qwen3_vl",
        ),
        ("int4", lambda h: h["targets"].pop(DOWN), f"another model .a model.: it lacks {DOWN}"),
        ("int8", lambda h: h.update(head=False), "it holds lm_head"),
        ("int4", lambda h: h.update(head=True), "it lacks lm_head"),
        ("int4", lambda h: _target(h, shape=[64, 32]), f"{DOWN} is .64, 32. in it"),
        ("int4", lambda h: _target(h, source="x"), f"{DOWN} is int4 of x in it"),
        ("int4", lambda h: _target(h, format="int8"), f"{DOWN} is int8 of"),
        ("int4", lambda h: _target(h, fingerprint="0" * 64), f"other weights .*: {DOWN}.weight differ"),
    ],
)
def test_edited_headers(
    name: str,
    edit: Callable[[Header], object],
    line: str,
    tiny_checkpoint: Path,
    copied: Callable[[str], Path],
) -> None:
    folder = copied(name)
    edit_pack(folder, header=edit)
    with pytest.raises(CheckpointError, match=line):
        reopened(tiny_checkpoint, folder)
    refusal(tiny_checkpoint, folder)


def test_files_that_are_no_pack(tiny_checkpoint: Path, copied: Callable[[str], Path], tmp_path: Path) -> None:
    folder = copied("int8")
    path = folder / PACK_FILE
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    assert "truncated or corrupt" in refusal(tiny_checkpoint, folder)
    path.write_bytes(whole[:5])
    assert "truncated or corrupt" in refusal(tiny_checkpoint, folder)
    path.write_bytes(b"")
    assert "truncated or corrupt" in refusal(tiny_checkpoint, folder)
    save_file({"x": torch.zeros(1)}, path)
    assert f"has no {METADATA_KEY}" in refusal(tiny_checkpoint, folder)
    save_file({"x": torch.zeros(1)}, path, metadata={METADATA_KEY: "{"})
    assert "not a pack that this version reads" in refusal(tiny_checkpoint, folder)
    path.unlink()
    assert "there is no pack in" in refusal(tiny_checkpoint, folder)
    assert "there is no pack in" in refusal(tiny_checkpoint, tmp_path / "nowhere")


def test_the_pack_of_other_weights_of_the_same_shape(
    tiny_checkpoint: Path, packs: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(tiny_checkpoint, tmp_path / "tuned"))
    tensors = {name: tensor.clone() for name, tensor in load_file(folder / "model.safetensors").items()}
    tensors[f"{DOWN}.weight"].mul_(1.001)
    save_file(tensors, folder / "model.safetensors")
    line = refusal(folder, packs / "int4")
    assert f"was made of other weights than the model's: {DOWN}.weight differ" in line
    assert "a model" in line


def test_weights_that_no_pack_holds_may_differ(tiny_checkpoint: Path, packs: Path, tmp_path: Path) -> None:
    """A pack is of the projections: another norm or tower is no other pack."""
    folder = Path(shutil.copytree(tiny_checkpoint, tmp_path / "tuned"))
    tensors = {name: tensor.clone() for name, tensor in load_file(folder / "model.safetensors").items()}
    tensors["model.language_model.norm.weight"].mul_(2)
    save_file(tensors, folder / "model.safetensors")
    load_packed(folder, reopened(folder, packs / "int4"))


def test_the_pack_of_another_shape_and_of_another_family(
    checkpoint: Callable[[str], Path], packs: Path
) -> None:
    assert "another model" in refusal(checkpoint("tied-ungrouped"), packs / "int4")
    assert "qwen3_vl" in refusal(checkpoint("qwen3_5"), packs / "int4")


def test_a_device_without_the_kernel(
    tiny_checkpoint: Path, packs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linears.WholeFilling, "kernel", lambda filling: None)
    monkeypatch.setattr(placing, "begin_kernel", linears.WholeFilling)
    assert "there is no kernel for int4-g32 on cpu" in refusal(tiny_checkpoint, packs / "int4")


def test_a_device_without_kernels_is_refused_before_anything_is_read(
    tiny_checkpoint: Path, packs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "resolve_device", lambda choice: torch.device("cuda", 0))
    monkeypatch.setattr(linears, "find_spec", lambda name: None)  # no Triton
    asked = {"model.source": str(tiny_checkpoint), "model.dtype": "bfloat16"}
    settings = load_settings(asked | {"model.quantization": str(packs / "int8")}, environ={})
    with pytest.raises(
        CheckpointError, match=r"no kernel for int8\+head-int8 on cuda:0 in torch.bfloat16 \(Trit"
    ):
        loading.plan_model(settings)


def test_an_odd_width_ends_in_the_middle_code(tmp_path: Path) -> None:
    weight = quantize_int4(torch.randn(4, 33), 32, Method.RTN)
    weight.codes[2, -1] &= 15
    parts = {"a.codes": weight.codes, "a.scales": weight.scales, "a.zeros": weight.zeros}
    save_file(parts, tmp_path / PACK_FILE)
    target = {"source": "a.weight", "format": "int4", "shape": [4, 33], "fingerprint": "", "digest": ""}
    header = PackHeader.model_validate_json(
        json.dumps(
            {
                "version": VERSION,
                "format": "int4",
                "group_size": 32,
                "method": "rtn",
                "head": False,
                "model": "m",
                "family": "f",
                "made_by": "test",
                "targets": {"a": target},
            }
        )
    )
    with (
        safe_open(tmp_path / PACK_FILE, "pt") as file,
        pytest.raises(CheckpointError, match=r"a.codes in .* codes past its 33 columns"),
    ):
        Pack(tmp_path, header, 0).read(file, "a")


def test_headers_say_what_a_pack_is(tiny_checkpoint: Path, packs: Path, tmp_path: Path) -> None:
    assert reopened(tiny_checkpoint, packs / "int8").header.word == "int8+head-int8"
    assert reopened(tiny_checkpoint, packs / "int4").header.word == "int4-g32"
    assert pack_of(tiny_checkpoint, INT8, tmp_path / "a").pack.header.word == "int8"
    assert pack_of(tiny_checkpoint, INT4_HEAD, tmp_path / "b").pack.header.word == "int4-g64+head-int8"
    assert header_of(packs / "int4")["method"] == "rtn"
