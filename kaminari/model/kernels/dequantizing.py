"""A quantized linear in its plain form: dequantize, then torch's product. Right everywhere, fast nowhere."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from kaminari.model.quantized import QuantizedWeight


class DequantizingKernel:
    """`LinearKernel` over a quantized weight as it is; the full weight is there during a call only."""

    def __init__(self, weight: QuantizedWeight) -> None:
        self._weight = weight

    @property
    def nbytes(self) -> int:
        return self._weight.nbytes

    def multiply(self, x: Tensor) -> Tensor:
        """x [rows, in_features] -> [rows, out_features]."""
        return F.linear(x, self._weight.dequantize(x.dtype))
