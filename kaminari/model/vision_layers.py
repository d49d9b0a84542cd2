"""What vision towers run on: layers that are faster than the reference's and equal to them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class PatchEmbedding(nn.Module):
    """Patches [N, patch_values] -> [N, hidden].

    The reference's convolution has a kernel of the patch's own size: one product per patch. As a convolution
    it is a hundred times slower in bfloat16 on a CPU.

    kernel_shape:  (hidden, channels, [frames,] height, width) of the convolution; a patch is all but hidden
    """

    def __init__(self, kernel_shape: Sequence[int]) -> None:
        super().__init__()
        hidden, *patch = kernel_shape
        self.kernel_shape = tuple(kernel_shape)
        self.weight = nn.Parameter(torch.empty(hidden, prod(patch)), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(hidden), requires_grad=False)

    def forward(self, patches: Tensor) -> Tensor:
        return F.linear(patches.to(self.weight.dtype), self.weight, self.bias)
