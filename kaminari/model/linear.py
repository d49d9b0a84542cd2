"""What holds one weight matrix and the kernel that multiplies by it: a linear layer is one."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

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


@runtime_checkable
class TableKernel(LinearKernel, Protocol):
    """A kernel whose rows can be read as well: an embedding of few bits looks its tokens up in one."""

    def look_up(self, tokens: Tensor) -> Tensor:
        """int64 [n] -> these rows of the weight [n, in_features], in the dtype of activations.

        On a CPU, raises IndexError for a token that is no row.
        """
        ...


class Matrix(nn.Module):
    """A weight [out_features, in_features], which starts unset.

    kernel:  multiplies instead of torch where it is set, save in what is compiled
    """

    weight: nn.Parameter

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.weight = nn.Parameter(torch.empty(out_features, in_features), requires_grad=False)
        self.kernel: LinearKernel | None = None

    def multiply(self, x: Tensor) -> Tensor:
        """x [rows, in_features] -> x @ weight.T [rows, out_features]"""
        if self.kernel is None or torch.compiler.is_dynamo_compiling():
            return F.linear(x, self.weight)
        return self.kernel.multiply(x)

    def release_weight(self) -> None:
        """Let go of the weight, for good: from now on there must be a kernel."""
        self.register_parameter("weight", None)


class Linear(Matrix):
    """x [rows, in_features] -> x @ weight.T [rows, out_features], without bias."""

    def forward(self, x: Tensor) -> Tensor:
        return self.multiply(x)
