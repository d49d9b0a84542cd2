"""Writes a safetensors file whose tensors come in pieces, so that none has to be in memory whole."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from math import prod
from pathlib import Path
from types import TracebackType

import torch
from torch import Tensor

from kaminari.model.loading import ITEM_BYTES

TORCH_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "U8": torch.uint8, "I8": torch.int8}
HEADER_ALIGNMENT = 8


class TensorFile:
    """A file under construction. The layout is safetensors' own: length, JSON header, then the data.

    Wider items come first, so that every tensor is aligned to its items.
    """

    def __init__(
        self, path: Path, tensors: Mapping[str, tuple[str, tuple[int, ...]]], metadata: Mapping[str, str]
    ) -> None:
        """Write the header for tensors of (dtype, shape) by name. Raises OSError."""
        self._tensors = dict(tensors)
        self._starts: dict[str, int] = {}
        self._entries: dict[str, object] = {}
        end = 0
        for name in sorted(tensors, key=lambda name: (-ITEM_BYTES[tensors[name][0]], name)):
            dtype, shape = tensors[name]
            start, end = end, end + prod(shape) * ITEM_BYTES[dtype]
            self._starts[name] = start
            self._entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
        header = self._header(metadata)
        self._data = len(header)
        self._file = path.open("wb")
        self._file.write(header)
        self._file.truncate(self._data + end)

    def describe(self, metadata: Mapping[str, str]) -> None:
        """Replace the metadata. Raises OSError; ValueError where the header would change its length."""
        header = self._header(metadata)
        if len(header) != self._data:
            raise ValueError(f"a header of {self._data} bytes cannot become one of {len(header)}")
        self._file.seek(0)
        self._file.write(header)

    def write_rows(self, name: str, first_row: int, rows: Tensor) -> None:
        """Put rows [n, ...] in their place. Raises OSError; ValueError for rows that are not the tensor's."""
        dtype, shape = self._tensors[name]
        if rows.dtype != TORCH_DTYPES[dtype] or rows.shape[1:] != shape[1:]:
            raise ValueError(f"{name} is {dtype} {list(shape)}, not {rows.dtype} {list(rows.shape)}")
        if first_row + rows.shape[0] > shape[0]:
            raise ValueError(f"{name} has {shape[0]} rows, and row {first_row + rows.shape[0]} was written")
        row_bytes = prod(shape[1:]) * ITEM_BYTES[dtype]
        self._file.seek(self._data + self._starts[name] + first_row * row_bytes)
        self._file.write(rows.contiguous().view(torch.uint8).numpy().tobytes())

    def _header(self, metadata: Mapping[str, str]) -> bytes:
        entries = {"__metadata__": dict(metadata), **self._entries}
        text = json.dumps(entries, separators=(",", ":")).encode()
        text += b" " * (-len(text) % HEADER_ALIGNMENT)
        return len(text).to_bytes(HEADER_ALIGNMENT, "little") + text

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._file:
            if kind is None:  # whoever moves the file into its place finds it there after a power cut, too
                self._file.flush()
                os.fsync(self._file.fileno())
