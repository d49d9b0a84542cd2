"""What a pack is: one safetensors file of plain codes and scales, and the header that says what they mean.

The header is JSON in the file's own metadata, so that no header can stand beside another file's tensors.
Tensors have the checkpoint's names, not those of fused weights: how a loader fuses is its own affair, and
rows of codes join like rows of weights do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from kaminari.config.quantization import PackFormat
from kaminari.model.family import CheckpointError
from kaminari.model.loading import open_file

PACK_FILE = "pack.safetensors"
REPORT_FILE = "report.json"
METADATA_KEY = "kaminari_pack"
VERSION: Final = 2
GROUP_SIZES = (32, 64, 128)

GroupSize = Literal[32, 64, 128]
Shape = tuple[int, ...]


class PackTarget(BaseModel):
    """One quantized weight.

    source:       the checkpoint's tensor that it was made of
    format:       int8 or int4
    shape:        (out_features, in_features)
    fingerprint:  of the source, see `kaminari.model.packs.fingerprint`
    digest:       of the target's codes and scales, see `kaminari.model.packs.digest`
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str
    format: PackFormat
    shape: tuple[int, int]
    fingerprint: str
    digest: str


class PackHeader(BaseModel):
    """What a pack says of itself.

    format:      of the projections; the head is int8 in every pack that holds it
    group_size:  of every int4 weight; none in an int8 pack
    method:      how int4 groups got their scales
    model:       name of the model that it was made of, for people
    family:      of that model
    targets:     by name, which is the checkpoint's without its last part
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[2]
    format: PackFormat
    group_size: GroupSize | None
    method: str
    head: bool
    model: str
    family: str
    made_by: str
    targets: dict[str, PackTarget]

    @property
    def word(self) -> str:
        """How a person tells packs apart: int8, int4-g64, int4-g64+head-int8."""
        group = f"-g{self.group_size}" if self.format is PackFormat.INT4 else ""
        return f"{self.format}{group}{'+head-int8' if self.head else ''}"

    def stored_tensors(self) -> dict[str, tuple[str, Shape]]:
        """Name, safetensors dtype and shape of every tensor of the file."""
        tensors: dict[str, tuple[str, Shape]] = {}
        for name, target in self.targets.items():
            rows, width = target.shape
            if target.format is PackFormat.INT8:
                tensors[f"{name}.codes"] = ("I8", (rows, width))
                tensors[f"{name}.scales"] = ("F32", (rows,))
            else:
                groups = -(-width // (self.group_size or width))
                tensors[f"{name}.codes"] = ("U8", (rows, (width + 1) // 2))
                tensors[f"{name}.scales"] = ("BF16", (rows, groups))
                tensors[f"{name}.zeros"] = ("BF16", (rows, groups))
        return tensors


def is_pack(folder: Path) -> bool:
    """Whether a folder holds a pack, of whatever version, and nothing that is not of it."""
    names = {path.name for path in folder.iterdir()}
    if PACK_FILE not in names or names - {PACK_FILE, REPORT_FILE}:
        return False
    try:
        with open_file(folder / PACK_FILE) as file:
            return METADATA_KEY in (file.metadata() or {})
    except CheckpointError:
        return False


def read_header(folder: Path) -> PackHeader:
    """Read the header of the pack in a folder. Raises `CheckpointError`."""
    path = folder / PACK_FILE
    with open_file(path) as file:
        text = (file.metadata() or {}).get(METADATA_KEY)
    if text is None:
        raise CheckpointError(f"{path} is no pack: its metadata has no {METADATA_KEY}")
    try:
        header = PackHeader.model_validate_json(text)
    except ValidationError as error:
        raise CheckpointError(
            f"{path} is not a pack that this version reads: {_first(error)}; kaminari quantize makes it anew"
        ) from error
    if (header.group_size is None) is not (header.format is PackFormat.INT8):
        raise CheckpointError(f"{path}: an {header.format} pack with group_size {header.group_size}")
    return header


def _first(error: ValidationError) -> str:
    problem = error.errors(include_url=False, include_context=False)[0]
    place = ".".join(str(part) for part in problem["loc"])
    return f"{place or 'its header'}: {problem['msg']}"
