"""Opens a pack and reads weights out of it. What is no pack or another model's is refused by name.

Opening reads headers and a few rows of the checkpoint; values are checked as each weight is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kaminari.config.quantization import PackFormat
from kaminari.model.family import CheckpointError
from kaminari.model.loading import OpenCheckpoint, StoredTensor, listed, open_file, read_file_headers
from kaminari.model.packs.digest import Digest
from kaminari.model.packs.fingerprint import fingerprint
from kaminari.model.packs.format import PACK_FILE, PackHeader, PackTarget, read_header
from kaminari.model.packs.targets import find_targets
from kaminari.model.quantized import (
    INT4_MIDDLE,
    Int4Weight,
    Int8Weight,
    QuantizedShape,
    QuantizedWeight,
)

BLOCK_BYTES = 1 << 18
"""Codes of a block: what is hashed is still in cache when it is packed."""
BFLOAT_EXPONENT = 0x7F80


@dataclass(frozen=True, slots=True)
class Pack:
    """A pack that fits its checkpoint. `nbytes`: of codes and scales."""

    folder: Path
    header: PackHeader
    nbytes: int

    @property
    def file(self) -> Path:
        return self.folder / PACK_FILE

    def kind(self, name: str) -> QuantizedShape:
        """What a target's weight will be."""
        target = self.header.targets[name]
        return QuantizedShape(
            target.shape, None if target.format is PackFormat.INT8 else self.header.group_size
        )

    def read(self, file: Any, name: str) -> QuantizedWeight:
        """Read and check the weight of a target from the open `file`. Raises `CheckpointError`."""
        weight = self._weight(file, name)
        for _ in self._checked(weight, name):
            pass
        return weight

    def blocks(self, file: Any, name: str) -> Iterator[tuple[int, QuantizedWeight]]:
        """The weight of a target in blocks of rows that fit a core's cache: (first row, views of the file).

        A block's values were checked when it comes; the weight is what was written only once the last one was
        taken and nothing raised. Any thread. Raises `CheckpointError`.
        """
        return self._checked(self._weight(file, name), name)

    def _weight(self, file: Any, name: str) -> QuantizedWeight:
        """A weight whose scales are such as packs have."""
        kind = self.kind(name)
        tensors = {
            part: _tensor(file, f"{name}.{part}", self.file)
            for part in ("codes", "scales", *(() if kind.group_size is None else ("zeros",)))
        }
        for part, values in tensors.items():
            if part != "codes" and not _finite(values):
                raise CheckpointError(f"{name}.{part} in {self.file} holds values that are not finite")
        if kind.group_size is None:
            return Int8Weight(tensors["codes"], tensors["scales"])
        width = kind.shape[1]
        return Int4Weight(tensors["codes"], tensors["scales"], tensors["zeros"], width, kind.group_size)

    def _checked(self, weight: QuantizedWeight, name: str) -> Iterator[tuple[int, QuantizedWeight]]:
        digest = Digest()
        height, width = weight.shape
        step = max(1, BLOCK_BYTES // weight.codes.shape[1])
        for first_row in range(0, height, step):
            rows = weight.rows(first_row, first_row + step)
            codes = rows.codes.numpy()
            if isinstance(rows, Int8Weight):
                if codes.min() == -128:
                    raise CheckpointError(f"{name}.codes in {self.file} holds -128, which no int8 pack does")
            elif width % 2 and (codes[:, -1] >> 4 != INT4_MIDDLE).any():
                raise CheckpointError(f"{name}.codes in {self.file} holds codes past its {width} columns")
            digest.add(rows)
            yield first_row, rows
        if digest.hex() != self.header.targets[name].digest:
            raise CheckpointError(
                f"{name} in {self.file} is not what was written: its digest differs; make the pack anew"
            )


def open_pack(folder: Path, checkpoint: OpenCheckpoint, family: str) -> Pack:
    """Open the pack in a folder and hold it to the checkpoint. Raises `CheckpointError`."""
    path = folder / PACK_FILE
    if not path.is_file():
        raise CheckpointError(f"there is no pack in {folder} (it would hold {PACK_FILE})")
    header = read_header(folder)
    if header.family != family:
        raise CheckpointError(
            f"{folder} is the pack of a {header.family} model, {header.model}, not of {family}"
        )
    _check_targets(folder, header, checkpoint)
    stored = read_file_headers(path)
    _check_tensors(path, header, stored)
    _check_fingerprints(folder, header, checkpoint.tensors)
    return Pack(folder, header, sum(each.nbytes for each in stored.values()))


def fingerprints(sources: set[str], tensors: Mapping[str, StoredTensor]) -> dict[str, str]:
    """The fingerprint of each of these tensors of a checkpoint. Raises `CheckpointError`."""
    found = {}
    for path in sorted({tensors[name].file for name in sources}):
        with open_file(path) as file:
            for name in sorted(name for name in sources if tensors[name].file == path):
                found[name] = fingerprint(file, name, tensors[name])
    return found


def _check_targets(folder: Path, header: PackHeader, checkpoint: OpenCheckpoint) -> None:
    wanted = find_targets(checkpoint, header.format, head=header.head)
    other = f"{folder} is a pack of another model ({header.model})"
    if missing := wanted.keys() - header.targets.keys():
        raise CheckpointError(f"{other}: it lacks {listed(missing)}")
    if extra := header.targets.keys() - wanted.keys():
        raise CheckpointError(f"{other}: it holds {listed(extra)}")
    for name, target in wanted.items():
        packed = header.targets[name]
        if packed.shape != target.shape:
            raise CheckpointError(
                f"{other}: {name} is {list(packed.shape)} in it and {list(target.shape)} in the model"
            )
        if (packed.source, packed.format) != (target.source, target.format):
            raise CheckpointError(
                f"{other}: {name} is {packed.format} of {packed.source} in it, "
                f"and should be {target.format} of {target.source}"
            )


def _check_tensors(path: Path, header: PackHeader, stored: Mapping[str, StoredTensor]) -> None:
    wanted = header.stored_tensors()
    if missing := wanted.keys() - stored.keys():
        raise CheckpointError(f"{path} lacks {listed(missing)}")
    if extra := stored.keys() - wanted.keys():
        raise CheckpointError(f"{path} holds tensors that its header does not name: {listed(extra)}")
    for name, (dtype, shape) in wanted.items():
        if (stored[name].dtype, stored[name].shape) != (dtype, shape):
            group = "" if header.group_size is None else f" at group size {header.group_size}"
            raise CheckpointError(
                f"{name} in {path} is {stored[name].dtype} {list(stored[name].shape)}, "
                f"and should be {dtype} {list(shape)}{group}"
            )


def _check_fingerprints(folder: Path, header: PackHeader, tensors: Mapping[str, StoredTensor]) -> None:
    targets: dict[str, PackTarget] = {target.source: target for target in header.targets.values()}
    found = fingerprints(set(targets), tensors)
    if others := [source for source, target in targets.items() if target.fingerprint != found[source]]:
        raise CheckpointError(
            f"{folder} was made of other weights than the model's: {listed(others)} differ "
            f"(it says that it was made of {header.model})"
        )


def _finite(values: Tensor) -> bool:
    """Whether all values are. In numpy: torch would give each thread that asks a pool of its own."""
    if values.dtype == torch.bfloat16:
        bits = values.view(torch.int16).numpy()
        return bool((bits & BFLOAT_EXPONENT != BFLOAT_EXPONENT).all())
    return bool(np.isfinite(values.numpy()).all())


def _tensor(file: Any, name: str, path: Path) -> Tensor:
    try:
        tensor: Tensor = file.get_tensor(name)
    except Exception as error:  # safetensors raises classes of its own and of the system
        raise CheckpointError(f"cannot read {name} in {path}: {' '.join(str(error).split())}") from error
    return tensor if tensor.is_contiguous() else tensor.contiguous()
