"""Int8 and int4 weights in panels (`native/quantized.cpp`), filled a few rows at a time. Multiplies nothing.

Rows come straight from where they are read, so a weight is never there twice. A call packs on its own thread
and lets go of Python's lock meanwhile: weights, and other rows of one weight, are packed side by side.
"""

from __future__ import annotations

import ctypes

import torch

from kaminari.model import huge_pages
from kaminari.model.quantized import Int4Weight, Int8Weight, QuantizedShape, QuantizedWeight

PANEL = 32
GROUP_SIZES = (32, 64, 128)


class Int8Panels:
    """The panels of an int8 weight of (out_features, in_features), and the scales of whole panels."""

    def __init__(self, kind: QuantizedShape, library: ctypes.CDLL) -> None:
        self.shape = outputs, columns = kind.shape
        self.panels = huge_pages.empty((library.kaminari_int8_bytes(columns, outputs),), torch.uint8)
        self.scales = torch.zeros(-(-outputs // PANEL) * PANEL)
        self._pack = library.kaminari_int8_pack

    @torch.inference_mode()  # which the calling thread may be in, or not: so was whoever made the panels
    def put(self, first_row: int, rows: QuantizedWeight) -> None:
        """Pack rows from `first_row` on, each once. Raises ValueError for rows that are not the weight's."""
        _check_part(QuantizedShape(self.shape, None), first_row, rows)
        codes = rows.codes.contiguous()
        count, columns = rows.shape
        self.scales[first_row : first_row + count] = rows.scales
        self._pack(codes.data_ptr(), columns, first_row, count, self.panels.data_ptr())


class Int4Panels:
    """The panels of an int4 weight of (out_features, in_features), scales and zeros in them."""

    def __init__(self, kind: QuantizedShape, library: ctypes.CDLL) -> None:
        assert kind.group_size is not None
        self.shape = outputs, columns = kind.shape
        self.group_size = kind.group_size
        size = library.kaminari_int4_bytes(self.group_size, columns, outputs)
        self.panels = huge_pages.empty((size,), torch.uint8)
        self._pack = library.kaminari_int4_pack

    def put(self, first_row: int, rows: QuantizedWeight) -> None:
        """As `Int8Panels.put`."""
        _check_part(QuantizedShape(self.shape, self.group_size), first_row, rows)
        assert isinstance(rows, Int4Weight)
        codes, scales, zeros = (part.contiguous() for part in (rows.codes, rows.scales, rows.zeros))
        count, columns = rows.shape
        plain = (codes.data_ptr(), scales.data_ptr(), zeros.data_ptr())
        self._pack(*plain, self.group_size, columns, first_row, count, self.panels.data_ptr())


def panels_of(kind: QuantizedShape, library: ctypes.CDLL) -> Int8Panels | Int4Panels:
    """Empty panels for a weight. Raises ValueError for impossible shapes."""
    _check_kind(kind)
    return Int8Panels(kind, library) if kind.group_size is None else Int4Panels(kind, library)


def _check_kind(kind: QuantizedShape) -> None:
    if kind.group_size is not None and kind.group_size not in GROUP_SIZES:
        raise ValueError(f"a group of {kind.group_size} columns; there are {list(GROUP_SIZES)}")
    outputs, columns = kind.shape
    if outputs < 1 or columns < 1:
        raise ValueError(f"a weight of {outputs} x {columns}")


def _check_part(kind: QuantizedShape, first_row: int, rows: QuantizedWeight) -> None:
    """Raise ValueError unless these are rows of such a weight."""
    check_quantized(rows)
    outputs, columns = kind.shape
    count = rows.shape[0]
    if rows.kind != QuantizedShape((count, columns), kind.group_size):
        raise ValueError(f"rows of {rows.kind} for a weight of {kind}")
    if first_row < 0 or first_row + count > outputs:
        raise ValueError(f"rows {first_row} to {first_row + count} of a weight of {outputs}")


def check_quantized(weight: QuantizedWeight) -> None:
    """Raise ValueError unless every tensor has the shape and dtype that its class says, on the CPU."""
    _check_kind(weight.kind)
    outputs, columns = weight.shape
    expected: dict[str, tuple[tuple[int, ...], torch.dtype]]
    if isinstance(weight, Int8Weight):
        expected = {"codes": ((outputs, columns), torch.int8), "scales": ((outputs,), torch.float32)}
    else:
        groups = (outputs, -(-columns // weight.group_size))
        expected = {
            "codes": ((outputs, -(-columns // 2)), torch.uint8),
            "scales": (groups, torch.bfloat16),
            "zeros": (groups, torch.bfloat16),
        }
    for name, (shape, dtype) in expected.items():
        tensor: torch.Tensor = getattr(weight, name)
        if tensor.shape != shape or tensor.dtype != dtype or tensor.device.type != "cpu":
            raise ValueError(
                f"{name} are {dtype} {list(shape)} on the CPU, "
                f"not {tensor.dtype} {list(tensor.shape)} on {tensor.device}"
            )
