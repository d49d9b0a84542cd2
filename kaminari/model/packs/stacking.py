"""A linear whose rows belong to several kernels: quantized ones, and a few that keep their precision."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from kaminari.model.linear import LinearKernel
from kaminari.model.operators import join


class PlainKernel:
    """`LinearKernel` over rows of a weight [n, in_features] as they are."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight

    @property
    def nbytes(self) -> int:
        return self._weight.nbytes

    def multiply(self, x: Tensor) -> Tensor:
        return F.linear(x, self._weight)


class StackedKernel:
    """`LinearKernel` over the rows of several kernels, one behind the other."""

    def __init__(self, kernels: Sequence[LinearKernel]) -> None:
        self._kernels = tuple(kernels)

    @property
    def nbytes(self) -> int:
        return sum(kernel.nbytes for kernel in self._kernels)

    def multiply(self, x: Tensor) -> Tensor:
        return join([kernel.multiply(x) for kernel in self._kernels])
