"""The small layers that text decoders share. They look at packed rows only, never at slots or lengths."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kaminari.model.linear import Linear, LinearKernel


class RMSNorm(nn.Module):
    """Normalize the last axis in float32, round to the input's dtype, then scale: the reference's order."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size), requires_grad=False)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * normalize(x, self.eps).to(x.dtype)


class ZeroCentredRMSNorm(nn.Module):
    """Normalize the last axis and scale by 1 + weight, all in float32, then round to the input's dtype."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size), requires_grad=False)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return normalize(x, self.eps).mul_(1.0 + self.weight.float()).to(x.dtype)


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)), [rows, hidden] -> [rows, hidden].

    The weight of `gate_up` holds the gate's rows first, then up's.
    """

    def __init__(self, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.gate_up = Linear(hidden, 2 * intermediate)
        self.down = Linear(intermediate, hidden)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        down: Tensor = self.down(F.silu(gate, inplace=True) * up)
        return down


class Embedding(nn.Module):
    """Rows of a weight [vocab, hidden], looked up by token; a head that is tied to it multiplies by them.

    kernel:  multiplies instead of torch where it is set, as in `Linear`
    """

    def __init__(self, vocab: int, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab, hidden), requires_grad=False)
        self.kernel: LinearKernel | None = None

    def forward(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self.weight)

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] -> [rows, vocab]."""
        return F.linear(hidden, self.weight) if self.kernel is None else self.kernel.multiply(hidden)


def normalize(x: Tensor, eps: float) -> Tensor:
    """Divide the last axis by its root mean square: a new tensor in float32."""
    return F.rms_norm(x.float(), x.shape[-1:], eps=eps)
