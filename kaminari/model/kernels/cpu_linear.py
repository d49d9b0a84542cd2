"""Which kernel multiplies by a weight on a CPU, and the native ones.

A decode step reads every weight once for a few rows, so what counts is how fast weights stream from memory.
Plain weights stay as they are, since prefill's GEMM wants them so; int8 and int4 weights are repacked into
panels (`native/quantized.cpp`). Those are multiplied by activations that are quantized to int8 too, per row
and group of columns: 64 columns beside int8 weights, the weight's own group beside int4 ones. The form that
quantizes weights alone is `aten_linear`, which runs where there is no native library.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from kaminari.model.kernels import aten_linear
from kaminari.model.kernels.cpu_panels import Int4Panels, Int8Panels, check_quantized, panels_of
from kaminari.model.kernels.native.build import native_kernels
from kaminari.model.linear import LinearKernel
from kaminari.model.quantized import QuantizedShape, QuantizedWeight

BFLOAT_ROWS = 32
"""Up to so many rows the native bfloat16 kernel is the faster one, and torch's GEMM behind it."""

DTYPES = (torch.bfloat16, torch.float32)


def linear_kernel(
    weight: Tensor | QuantizedWeight, device: torch.device, dtype: torch.dtype
) -> LinearKernel | None:
    """The kernel for a weight, or None where plain torch is to multiply by it, or nothing here can.

    weight:  a matrix [out_features, in_features] of `dtype`, or a quantized one; on the CPU. Its kernel keeps
             the matrix and copies what is quantized
    dtype:   of the activations

    Builds the native library at the first call that needs it. Raises ValueError for a weight of impossible
    shapes or dtypes.
    """
    if device.type != "cpu" or dtype not in DTYPES:
        return None
    if isinstance(weight, Tensor):
        _check_matrix(weight, dtype)
        kernels = native_kernels()
        if kernels.library is None or (dtype == torch.bfloat16 and kernels.level == "portable"):
            return None
        kind = BFloatLinear if dtype == torch.bfloat16 else FloatLinear
        return kind(weight, kernels.library)
    filling = begin_panels(weight.kind, dtype)
    if filling is None:
        check_quantized(weight)
        return aten_linear.quantized_kernel(weight, dtype)
    filling.put(0, weight)
    return filling.kernel()


def begin_panels(kind: QuantizedShape, dtype: torch.dtype) -> PanelFilling | None:
    """Panels for a quantized weight whose rows are to come, or None where there is no native library.

    Raises ValueError for a weight of impossible shapes.
    """
    library = native_kernels().library
    return None if library is None else PanelFilling(panels_of(kind, library), dtype, library)


class BFloatLinear:
    """A bfloat16 matrix, row-major as it is, multiplied natively up to `BFLOAT_ROWS` rows."""

    function = "kaminari_bfloat_linear"

    def __init__(self, weight: Tensor, library: ctypes.CDLL) -> None:
        self._weight = weight.detach()
        self._pointer = weight.data_ptr()
        self._outputs, self._columns = weight.shape
        self._call = getattr(library, self.function)

    @property
    def nbytes(self) -> int:
        return self._weight.nbytes

    def multiply(self, x: Tensor) -> Tensor:
        if x.dim() != 2 or not 0 < x.shape[0] <= BFLOAT_ROWS:
            return F.linear(x, self._weight)
        _check_rows(x, self._columns, self._weight.dtype)
        x = x.contiguous()
        rows = x.shape[0]
        out = x.new_empty((rows, self._outputs))
        if self._call(self._pointer, self._columns, self._outputs, x.data_ptr(), out.data_ptr(), rows):
            raise MemoryError(f"no memory for {rows} rows")
        return out


class FloatLinear(BFloatLinear):
    """A float32 matrix, likewise: what torch's GEMM makes, but for the order of a sum."""

    function = "kaminari_float_linear"


class PanelLinear:
    """A quantized weight in panels.

    call:    the library's function; `weight` are its arguments up to the number of outputs, which point into
             the tensors of `held`
    """

    def __init__(
        self,
        call: Callable[..., int],
        weight: tuple[int, ...],
        held: tuple[Tensor, ...],
        shape: tuple[int, int],
        dtype: torch.dtype,
    ) -> None:
        self._call = call
        self._held = held
        self._outputs, self._columns = shape
        self._dtype = dtype
        self._arguments = (*weight, self._columns, self._outputs, int(dtype == torch.bfloat16))

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._held)

    def multiply(self, x: Tensor) -> Tensor:
        _check_rows(x, self._columns, self._dtype)
        x = x.contiguous()
        rows = x.shape[0]
        out = x.new_empty((rows, self._outputs))
        if self._call(*self._arguments, x.data_ptr(), out.data_ptr(), rows):
            raise MemoryError(f"no memory for {rows} quantized rows")
        return out


class PanelTable(PanelLinear):
    """int8 panels, whose rows are looked up as well. `read`: the library's function for that."""

    def __init__(
        self,
        call: Callable[..., int],
        read: Callable[..., int],
        held: tuple[Tensor, Tensor],
        shape: tuple[int, int],
        dtype: torch.dtype,
    ) -> None:
        super().__init__(call, tuple(each.data_ptr() for each in held), held, shape, dtype)
        self._read = read

    def look_up(self, tokens: Tensor) -> Tensor:
        """[n] -> [n, in_features]. Raises IndexError for a token that is no row."""
        if tokens.dim() != 1 or tokens.dtype != torch.int64 or tokens.device.type != "cpu":
            raise ValueError(
                f"tokens are int64 [n] on the CPU, not {tokens.dtype} {list(tokens.shape)} on {tokens.device}"
            )
        tokens = tokens.contiguous()
        count = tokens.shape[0]
        out = torch.empty((count, self._columns), dtype=self._dtype)
        if self._read(*self._arguments, tokens.data_ptr(), out.data_ptr(), count):
            raise IndexError(f"a token that is none of {self._outputs}")
        return out


class PanelFilling:
    """A quantized weight on its way from its rows to its kernel. Rows come on any thread."""

    def __init__(self, panels: Int8Panels | Int4Panels, dtype: torch.dtype, library: ctypes.CDLL) -> None:
        self._panels = panels
        self._dtype = dtype
        self._library = library

    def put(self, first_row: int, rows: QuantizedWeight) -> None:
        """Take in rows from `first_row` on, each once. Raises ValueError for rows of another weight."""
        self._panels.put(first_row, rows)

    def kernel(self) -> PanelLinear:
        """The kernel, once every row is in."""
        panels, library = self._panels, self._library
        if isinstance(panels, Int8Panels):
            held = (panels.panels, panels.scales)
            return PanelTable(
                library.kaminari_int8_linear, library.kaminari_int8_rows, held, panels.shape, self._dtype
            )
        pointers = (panels.panels.data_ptr(), panels.group_size)
        return PanelLinear(
            library.kaminari_int4_linear, pointers, (panels.panels,), panels.shape, self._dtype
        )


def _check_rows(x: Tensor, columns: int, dtype: torch.dtype) -> None:
    """Raise ValueError unless x is [rows, columns] of the dtype on the CPU."""
    if x.dim() != 2 or x.shape[1] != columns:
        raise ValueError(f"the linear takes rows of {columns}, not {list(x.shape)}")
    if x.dtype != dtype or x.device.type != "cpu":
        raise ValueError(f"the linear takes {dtype} on the CPU, not {x.dtype} on {x.device}")


def _check_matrix(weight: Tensor, dtype: torch.dtype) -> None:
    if weight.dim() != 2 or weight.dtype != dtype or weight.device.type != "cpu":
        raise ValueError(
            f"a weight is a {dtype} matrix on the CPU, not {list(weight.shape)} of {weight.dtype} "
            f"on {weight.device}"
        )
    if not weight.is_contiguous():
        raise ValueError("a weight's rows lie one behind the other, and these do not")
