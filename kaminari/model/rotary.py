"""Rotary position embedding with three position axes (M-RoPE), interleaved over the frequencies.

Angles are float32; the rotation runs in the model's dtype, in the reference's order of operations.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from kaminari.model.kernels import cpu_rows


class InterleavedRotary(nn.Module):
    """Positions -> cosines and sines.

    inv_freq:       [head_dim / 2] float32
    mrope_section:  how many frequencies the temporal, height and width positions turn; heights take every
                    third frequency from 1 and widths from 2, up to three times their count
    scaling:        factor on both, from the rope type
    """

    inv_freq: Tensor
    axes: Tensor

    def __init__(self, inv_freq: Tensor, mrope_section: Sequence[int], scaling: float = 1.0) -> None:
        super().__init__()
        axes = torch.zeros(inv_freq.shape[0], dtype=torch.int64, device=inv_freq.device)
        for axis in (1, 2):
            axes[axis : 3 * mrope_section[axis] : 3] = axis
        self.register_buffer("inv_freq", inv_freq, persistent=False)
        self.register_buffer("axes", axes, persistent=False)
        self.scaling = scaling
        self._tables: list[tuple[Tensor, Tensor]] = []

    def tabulate(self, length: int, dtype: torch.dtype) -> None:
        """Keep the cosines and sines of positions below `length`, where our own kernels look them up.

        A decode step then asks torch for none. The numbers are those of `forward` without tables. Tables are
        never let go of, since recorded steps may read them.
        """
        positions = torch.arange(length, device=self.inv_freq.device)
        if cpu_rows.indexes(positions) and not self._tabulated(length, dtype):
            self._tables.append(self._turns(positions[:, None].float() * self.inv_freq, dtype))

    def forward(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cosines and sines, each [T, 1, head_dim], of positions [3, T]."""
        if self._tabulated(0, dtype) and cpu_rows.indexes(positions):
            found = cpu_rows.turns(positions, self.axes, *self._tables[-1])
            if found is not None:
                return found
        cos, sin = self._turns(positions[self.axes].t().float() * self.inv_freq, dtype)
        return torch.cat((cos, cos), dim=-1)[:, None], torch.cat((sin, sin), dim=-1)[:, None]

    def _tabulated(self, length: int, dtype: torch.dtype) -> bool:
        if not self._tables:
            return False
        cosines, _ = self._tables[-1]
        return cosines.dtype == dtype and cosines.shape[0] >= length

    def _turns(self, angles: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and sines of angles."""
        return (angles.cos() * self.scaling).to(dtype), (angles.sin() * self.scaling).to(dtype)


def rotate_part(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the first channels of x [T, heads, head_dim], as many as there are angles; the rest stays."""
    turned = cos.shape[-1]
    return torch.cat((rotate(x[..., :turned], cos, sin), x[..., turned:]), dim=-1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn x [T, heads, head_dim] by the angles of its rows; halves of the head pair up."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin
