"""A linear layer: it holds one weight and owns the choice of the kernel that multiplies by it."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class LinearKernel(Protocol):
    """One weight in the layout of the code that multiplies by it.

    A row's result does not depend on the other rows of the call.
    """

    @property
    def nbytes(self) -> int:
        """Bytes that the layout takes."""
        ...

    def multiply(self, x: Tensor) -> Tensor:
        """x [rows, in_features] -> x @ weight.T [rows, out_features], in the dtype of x, for any rows."""
        ...


class Linear(nn.Module):
    """x [rows, in_features] -> x @ weight.T [rows, out_features], without bias. The weight starts unset.

    kernel:  multiplies instead of torch where it is set, save in what is compiled
    """

    weight: nn.Parameter

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.weight = nn.Parameter(torch.empty(out_features, in_features), requires_grad=False)
        self.kernel: LinearKernel | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.kernel is None or torch.compiler.is_compiling():
            return F.linear(x, self.weight)
        return self.kernel.multiply(x)

    def release_weight(self) -> None:
        """Let go of the weight, for good: from now on there must be a kernel."""
        self.register_parameter("weight", None)
