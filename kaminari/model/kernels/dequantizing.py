"""A quantized linear in its plain form: dequantize, then torch's product. Right everywhere, fast nowhere."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kaminari.model.quantized import QuantizedWeight


class DequantizingKernel:
    """`TableKernel` over a quantized weight as it is; the full weight is there during a product only.

    dtype:  of the rows that are looked up
    """

    def __init__(self, weight: QuantizedWeight, dtype: torch.dtype) -> None:
        self._weight = weight
        self._dtype = dtype

    @property
    def nbytes(self) -> int:
        return self._weight.nbytes

    def multiply(self, x: Tensor) -> Tensor:
        """x [rows, in_features] -> [rows, out_features]."""
        return F.linear(x, self._weight.dequantize(x.dtype))

    def look_up(self, tokens: Tensor) -> Tensor:
        """[n] -> [n, in_features]."""
        return self._weight.pick(tokens).dequantize(self._dtype)
