"""The small layers that text decoders share. They look at packed rows only, never at slots or lengths."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kaminari.model.kernels import cpu_norm
from kaminari.model.linear import Linear, Matrix, TableKernel
from kaminari.model.operators import pick
from kaminari.model.rotary import rotate_part


class Norm(nn.Module):
    """RMSNorm over the last axis, and what decoders do right before and behind it.

    On a CPU where our own kernels are built, each form is one of `kaminari.model.kernels.cpu_norm`; `plain`
    runs everywhere and is the oracle that they are compared with.

    centred:  scale by 1 + weight
    """

    centred: bool

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size), requires_grad=False)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[T, size] -> [T, size], or any shape that ends in `size`."""
        if x.dim() == 2 and cpu_norm.fits(x):
            return cpu_norm.rms_norm(x, self.weight, self.eps, centred=self.centred)
        return self.plain(x)

    def behind(self, x: Tensor, added: Tensor) -> tuple[Tensor, Tensor]:
        """The sum of two tensors [T, size], and its norm."""
        if cpu_norm.fits(x):
            return cpu_norm.add_rms_norm(x, added, self.weight, self.eps, centred=self.centred)
        summed = x + added
        return summed, self.plain(summed)

    def turned(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Norm of every head of x [T, heads, size], its first channels turned as `rotate_part` does."""
        if x.shape[-1] <= cpu_norm.MAX_HEAD_DIM and cpu_norm.fits(x):
            return cpu_norm.turn(x, self.weight, self.eps, cos, sin, centred=self.centred)
        return rotate_part(self.plain(x), cos, sin)

    def plain(self, x: Tensor) -> Tensor:
        """`forward` in torch's own operators."""
        raise NotImplementedError


class RMSNorm(Norm):
    """Normalize the last axis in float32, round to the input's dtype, then scale: the reference's order."""

    centred = False

    def plain(self, x: Tensor) -> Tensor:
        return self.weight * normalize(x, self.eps).to(x.dtype)


class ZeroCentredRMSNorm(Norm):
    """Normalize the last axis and scale by 1 + weight, all in float32, then round to the input's dtype."""

    centred = True

    def plain(self, x: Tensor) -> Tensor:
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
        both = self.gate_up(x)
        product = cpu_norm.swiglu(both) if cpu_norm.fits(both) else gate_product(both)
        down: Tensor = self.down(product)
        return down


class Embedding(Matrix):
    """Rows of a weight [vocab, hidden], looked up by token; a head that is tied to it multiplies by them.

    table:  holds the rows, where the weight was released
    """

    def __init__(self, vocab: int, hidden: int) -> None:
        super().__init__(hidden, vocab)
        self.table: TableKernel | None = None

    def forward(self, tokens: Tensor) -> Tensor:
        return pick(self.weight, tokens) if self.table is None else self.table.look_up(tokens)

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] -> [rows, vocab]."""
        return self.multiply(hidden)

    def hold(self, table: TableKernel) -> None:
        """Let one kernel hold the rows that are looked up and multiply by them."""
        self.table = self.kernel = table


def normalize(x: Tensor, eps: float) -> Tensor:
    """Divide the last axis by its root mean square: a new tensor in float32."""
    return F.rms_norm(x.float(), x.shape[-1:], eps=eps)


def gate_product(both: Tensor) -> Tensor:
    """silu of the first half of [T, 2 * width] times the second, in torch's own operators."""
    gate, up = both.chunk(2, dim=-1)
    return F.silu(gate, inplace=True) * up
