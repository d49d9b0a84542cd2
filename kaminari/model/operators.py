"""The plain operators between a decoder's layers: our own on a CPU where they are built, else torch's.

On a CPU every operator of a decode step is one of our own, so that the step can be recorded
(`kaminari.model.kernels.native.program`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kaminari.model.kernels import cpu_rows, cpu_sampling
from kaminari.model.kernels.cpu_sampling import EditTables


def pick(table: Tensor, index: Tensor) -> Tensor:
    """The lines of a table [lines, ...] that index [R] int64 names: [R, ...]."""
    if cpu_rows.indexes(index):
        return cpu_rows.pick(table, index)
    return table.index_select(0, index)


def narrow(x: Tensor) -> Tensor:
    """int64 [R] -> int32 [R]."""
    return cpu_rows.narrow(x) if cpu_rows.indexes(x) else x.int()


def add(x: Tensor, y: Tensor) -> Tensor:
    """x + y, of one shape and dtype."""
    return cpu_rows.add(x, y) if cpu_rows.fits(x) else x + y


def gate(x: Tensor, gates: Tensor) -> Tensor:
    """x * sigmoid(gates), both [T, heads, head_dim]."""
    return cpu_rows.gate(x, gates) if cpu_rows.fits(x) else x * gates.sigmoid()


def join(parts: Sequence[Tensor]) -> Tensor:
    """The columns of parts [R, n], one behind the other."""
    return cpu_rows.join(parts) if cpu_rows.fits(parts[0]) else torch.cat(list(parts), dim=-1)


def greedy(logits: Tensor) -> Tensor:
    """ids [R] int64 of the largest of logits [R, V], the lowest of equals; -1 where one is not finite."""
    if cpu_rows.fits(logits):
        return cpu_sampling.greedy(logits)
    # amin and amax pass a NaN on, so two reductions see every logit without a tensor of flags
    finite = logits.amin(-1).isfinite() & logits.amax(-1).isfinite()
    return torch.where(finite, logits.argmax(-1), -1)


def chooses(like: Tensor) -> bool:
    """Whether `choose` draws for logits of this kind: else every row takes the largest of its own."""
    return cpu_rows.fits(like)


def choose(logits: Tensor, index: Tensor, orders: Tensor, draws: Tensor, tables: EditTables) -> Tensor:
    """ids [R] int64: what rows of logits [R, V] draw, where it `chooses` (see `cpu_sampling.choose`); else as
    `greedy`."""
    if cpu_rows.fits(logits):
        return cpu_sampling.choose(logits, index, orders, draws, tables)
    return greedy(logits)


def leave(table: Tensor, index: Tensor, ids: Tensor) -> None:
    """table[index] = ids, and 0 where an id is negative: all int64, of lengths [N], [R] and [R]."""
    if cpu_rows.indexes(index):
        cpu_sampling.leave(table, index, ids)
    else:
        table.index_copy_(0, index, ids.clamp(min=0))
