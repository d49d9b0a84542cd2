"""A linear layer: it holds one weight and owns the choice of the kernel that multiplies by it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Linear(nn.Module):
    """x [rows, in_features] -> x @ weight.T [rows, out_features], without bias. The weight starts unset."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)
