"""Safetensors into modules that were built on the meta device. Reads nothing else: no pickle, no code.

Files are mapped, and each tensor is copied (and cast) straight into the rows of the parameter that it fills,
so no weight is held twice. Every tensor must have its place and every place its tensor.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from kaminari.model import huge_pages
from kaminari.model.family import CheckpointError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "I8": 1, "U8": 1}
WEIGHT_DTYPES = ("F32", "F16", "BF16")
NAMES_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Placement:
    """A checkpoint tensor's place.

    parameter:  name of the parameter that it fills, whole or in part
    shape:      shape in the checkpoint; flattened behind the first axis to the parameter's row
    first_row:  where its rows begin, for a part of a fused weight
    precise:    a part of a linear that no pack may quantize
    """

    parameter: str
    shape: tuple[int, ...]
    first_row: int = 0
    precise: bool = False


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor as a file's header describes it; `dtype` is safetensors' own word, such as BF16."""

    file: Path
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * ITEM_BYTES[self.dtype]


def read_headers(folder: Path) -> dict[str, StoredTensor]:
    """Describe every tensor of a checkpoint (one file, or an index with shards) without reading any.

    Raises `CheckpointError`.
    """
    tensors: dict[str, StoredTensor] = {}
    for path in _weight_files(folder):
        for name, stored in read_file_headers(path).items():
            if name in tensors:
                raise CheckpointError(f"{name} is in both {tensors[name].file.name} and {path.name}")
            tensors[name] = stored
    return tensors


def read_file_headers(path: Path) -> dict[str, StoredTensor]:
    """Describe every tensor of one file. Raises `CheckpointError`."""
    tensors = {}
    with open_file(path) as file:
        for name in file.keys():  # noqa: SIM118 - the handle is no mapping
            view = file.get_slice(name)
            tensors[name] = StoredTensor(path, view.get_dtype(), tuple(view.get_shape()))
    return tensors


def check_tensors(
    tensors: Mapping[str, StoredTensor],
    placements: Mapping[str, Placement],
    *,
    copies: Collection[str] = (),
) -> None:
    """Raise `CheckpointError` unless the tensors are exactly those that have a place, in shape and dtype.

    copies:  names that a checkpoint may hold besides, since they equal others (a tied head)
    """
    if missing := [name for name in placements if name not in tensors]:
        raise CheckpointError(f"the checkpoint lacks {listed(missing)}")
    if unused := [name for name in tensors if name not in placements and name not in copies]:
        raise CheckpointError(f"the checkpoint holds tensors that this model does not use: {listed(unused)}")
    for name, placement in placements.items():
        stored = tensors[name]
        if stored.shape != placement.shape:
            raise CheckpointError(
                f"{name} in {stored.file.name} has shape {list(stored.shape)}, "
                f"and config.json asks for {list(placement.shape)}"
            )
    for name, stored in tensors.items():
        if stored.dtype not in WEIGHT_DTYPES:
            known = ", ".join(WEIGHT_DTYPES)
            raise CheckpointError(f"{name} in {stored.file.name} is {stored.dtype}; supported: {known}")


def materialize(module: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
    """Give every parameter memory on the device, in `dtype`, and bring the buffers there as they are."""
    for part in module.modules():
        for name, parameter in part.named_parameters(recurse=False):
            if device.type == "cpu":
                memory = huge_pages.empty(tuple(parameter.shape), dtype)
            else:
                memory = torch.empty(parameter.shape, device=device, dtype=dtype)
            setattr(part, name, nn.Parameter(memory, requires_grad=False))
        for name, buffer in part.named_buffers(recurse=False):
            if buffer.is_meta:
                raise RuntimeError(f"the buffer {name} of {type(part).__name__} was never computed")
            setattr(part, name, buffer.to(device))


def load_tensors(
    module: nn.Module,
    tensors: Mapping[str, StoredTensor],
    placements: Mapping[str, Placement],
    *,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Fill the module's parameters from the files, which `check_tensors` has accepted.

    progress:  called with (bytes done, bytes in all), first with 0

    Raises `CheckpointError`.
    """
    parameters = dict(module.named_parameters())
    total = sum(tensors[name].nbytes for name in placements)
    done = 0
    if progress is not None:
        progress(done, total)
    for path in dict.fromkeys(stored.file for stored in tensors.values()):
        with open_file(path) as file:
            for name in (name for name, stored in tensors.items() if stored.file == path):
                placement = placements.get(name)
                if placement is None:
                    continue
                target = parameters[placement.parameter].data
                rows = target[placement.first_row : placement.first_row + placement.shape[0]]
                rows.copy_(file.get_tensor(name).view(rows.shape))
                done += tensors[name].nbytes
                if progress is not None:
                    progress(done, total)


class OpenCheckpoint(Protocol):
    """A checkpoint whose headers were read and accepted, and the network on the meta device that it fills.

    copies:  names of tensors that equal another one where the checkpoint holds them (a tied head)
    """

    @property
    def network(self) -> nn.Module: ...
    @property
    def tensors(self) -> Mapping[str, StoredTensor]: ...
    @property
    def placements(self) -> Mapping[str, Placement]: ...
    @property
    def copies(self) -> Mapping[str, str]: ...


def _weight_files(folder: Path) -> list[Path]:
    if (folder / SINGLE_FILE).is_file():
        return [folder / SINGLE_FILE]
    if (folder / INDEX_FILE).is_file():
        return _shards(folder / INDEX_FILE)
    pickles = sorted(path.name for path in folder.glob("*.bin"))
    if pickles:
        raise CheckpointError(f"{folder} holds pickled weights ({pickles[0]}); only safetensors are loaded")
    raise CheckpointError(f"no {SINGLE_FILE} or {INDEX_FILE} in {folder}")


def _shards(index: Path) -> list[Path]:
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"cannot read {index}: {error!r}") from error
    for name in names:
        if not isinstance(name, str) or Path(name).name != name:
            raise CheckpointError(f"{index} names a file outside its folder: {name!r}")
        if not (index.parent / name).is_file():
            raise CheckpointError(f"{index.name} names {name}, which is not in {index.parent}")
    return [index.parent / name for name in names]


def open_file(path: Path) -> Any:
    """Map a safetensors file; its header is checked against its length. Raises `CheckpointError`."""
    try:
        return safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is truncated or corrupt: {' '.join(str(error).split())}") from error


def listed(names: Iterable[str]) -> str:
    """The first names, and how many more there are."""
    names = sorted(names)
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(names[:NAMES_SHOWN]) + more
