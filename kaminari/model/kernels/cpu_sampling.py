"""What rows draw, on a CPU: the C++ of `native/sampling.cpp`, for torch tensors.

The numbers are those of `kaminari.engine.sampler`; behind the exponential they are whole, and torch's own
bit for bit. A row's result is the same whatever the other rows are. This module never chooses where it is
used.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kaminari.model.kernels.cpu_rows import fits, indexes, need
from kaminari.model.kernels.native.program import NO_MEMORY


def greedy(logits: Tensor) -> Tensor:
    """ids [R] int64 of the largest of logits [R, V], the lowest of equals; -1 in a row that is not finite."""
    rows, vocab = _sizes(logits)
    logits = logits.contiguous()
    ids = logits.new_empty(rows, dtype=torch.int64)
    need().kaminari_greedy(logits.data_ptr(), rows, vocab, ids.data_ptr(), logits.dtype == torch.bfloat16)
    return ids


@dataclass(frozen=True, slots=True)
class EditTables:
    """What is done to logits before anything is drawn from them: a line for each of N slots.

    made:       [N, V] int32, how often the slot's answer has a token; counted on by `choose`
    prompt:     [N, V] bool, whether the prompt's text holds it
    penalties:  [N, 3] float32: repetition, frequency, presence
    bias_ids:   [N, K] int64, and `biases` [N, K] float32: what is added to these tokens' logits
    ends:       [N, E] int64, tokens that may be barred
    """

    made: Tensor
    prompt: Tensor
    penalties: Tensor
    bias_ids: Tensor
    biases: Tensor
    ends: Tensor


def choose(logits: Tensor, index: Tensor, orders: Tensor, draws: Tensor, tables: EditTables) -> Tensor:
    """ids [R] int64: what rows of logits [R, V] draw; -1 in a row that is not finite.

    index:   [R] int64, the rows' slots
    orders:  [3, R] int64: whether the row's penalties count, how many of its biases, how many of its ends
    draws:   [5, R] float64: temperature, top_k, top_p, min_p and noise, as for `weigh`, `keep` and `draw`,
             which make the same of the same numbers. A row of temperature 0 takes the largest

    Raises ValueError for numbers that do not fit, MemoryError where memory runs out.
    """
    rows, vocab = _sizes(logits)
    slots = tables.made.shape[0]
    for name, tensor, shape, dtype in (
        ("index", index, (rows,), torch.int64),
        ("orders", orders, (3, rows), torch.int64),
        ("draws", draws, (5, rows), torch.float64),
        ("made", tables.made, (slots, vocab), torch.int32),
        ("prompt", tables.prompt, (slots, vocab), torch.bool),
        ("penalties", tables.penalties, (slots, 3), torch.float32),
        ("bias_ids", tables.bias_ids, (slots, tables.biases.shape[-1]), torch.int64),
        ("biases", tables.biases, (slots, tables.biases.shape[-1]), torch.float32),
        ("ends", tables.ends, (slots, tables.ends.shape[-1]), torch.int64),
    ):
        if tensor.shape != shape or tensor.dtype != dtype or not tensor.is_cpu or not tensor.is_contiguous():
            raise ValueError(f"{name}: {dtype} {shape} on the CPU, not {tensor.dtype} {tuple(tensor.shape)}")
    logits = logits.contiguous()
    ids = logits.new_empty(rows, dtype=torch.int64)
    failure = need().kaminari_choose(
        *(logits.data_ptr(), rows, vocab, index.data_ptr(), slots, orders.data_ptr(), draws.data_ptr()),
        *(tables.made.data_ptr(), tables.prompt.data_ptr(), tables.penalties.data_ptr()),
        *(tables.bias_ids.data_ptr(), tables.biases.data_ptr(), tables.biases.shape[1]),
        *(tables.ends.data_ptr(), tables.ends.shape[1]),
        *(ids.data_ptr(), logits.dtype == torch.bfloat16),
    )
    if failure == NO_MEMORY:
        raise MemoryError("no memory to put weights in order")
    if failure:
        raise ValueError("slots, biases or ends that are none")
    return ids


def leave(table: Tensor, index: Tensor, ids: Tensor) -> None:
    """table[index] = ids, and 0 where an id is negative: all int64, of lengths [N], [R] and [R].

    Raises ValueError for an index that is none.
    """
    for each in (table, index, ids):
        if not indexes(each) or each.dim() != 1:
            raise ValueError(f"no kernel for {each.dtype} {tuple(each.shape)} on {each.device}")
    if not table.is_contiguous() or index.shape != ids.shape:
        raise ValueError(f"{ids.shape[0]} ids for {index.shape[0]} places")
    index, ids = index.contiguous(), ids.contiguous()
    rows = index.shape[0]
    if need().kaminari_leave(table.data_ptr(), table.shape[0], index.data_ptr(), ids.data_ptr(), rows):
        raise ValueError(f"places {index.tolist()} are not among {table.shape[0]}")


def weigh(logits: Tensor, temperature: Tensor) -> Tensor:
    """int64 weights [R, V] of logits [R, V] at temperatures [R], of which 0 counts as 1:
    floor(2**42 * exp((logit - max) / temperature)). A row that holds a NaN has weights that mean nothing."""
    rows, vocab = _sizes(logits)
    if temperature.shape != (rows,):
        raise ValueError(f"{tuple(temperature.shape)} temperatures for {rows} rows")
    logits, temperature = logits.contiguous(), temperature.float().contiguous()
    weights = logits.new_empty((rows, vocab), dtype=torch.int64)
    narrow = logits.dtype == torch.bfloat16
    need().kaminari_weigh(logits.data_ptr(), rows, vocab, temperature.data_ptr(), weights.data_ptr(), narrow)
    return weights


def keep(weights: Tensor, top_k: Tensor, top_p: Tensor, lightest: Tensor) -> Tensor:
    """Set to 0, in place, which of int64 weights [R, V] the filters leave out; return them.

    top_k:     [R] integers, how many of the heaviest stay; 0 is all
    top_p:     [R], the share of what those weigh that is reached by those that stay; 1 is all
    lightest:  [R] integers, what a weight must have to stay

    Of equals the lower ids come first. Raises MemoryError where memory runs out.
    """
    rows, vocab = _check(weights, top_k, top_p, lightest)
    top_k, top_p, lightest = (
        top_k.long().contiguous(),
        top_p.double().contiguous(),
        lightest.long().contiguous(),
    )
    pointers = top_k.data_ptr(), top_p.data_ptr(), lightest.data_ptr()
    if need().kaminari_keep(weights.data_ptr(), rows, vocab, *pointers):
        raise MemoryError("no memory to put weights in order")
    return weights


def draw(weights: Tensor, noise: Tensor) -> Tensor:
    """ids [R] int64: the first whose weights up to it exceed noise * total, of int64 weights [R, V] and noise
    [R] in [0, 1). It has a weight, unless its row has none."""
    rows, vocab = _check(weights, noise)
    noise = noise.double().contiguous()
    ids = weights.new_empty(rows)
    need().kaminari_draw(weights.data_ptr(), rows, vocab, noise.data_ptr(), ids.data_ptr())
    return ids


def _sizes(logits: Tensor) -> tuple[int, int]:
    if not fits(logits) or logits.dim() != 2 or not logits.shape[1]:
        raise ValueError(f"no kernel for {logits.dtype} {tuple(logits.shape)} on {logits.device}")
    return logits.shape[0], logits.shape[1]


def _check(weights: Tensor, *of_rows: Tensor) -> tuple[int, int]:
    if not indexes(weights) or weights.dim() != 2 or not weights.is_contiguous() or not weights.shape[1]:
        raise ValueError(f"no kernel for {weights.dtype} {tuple(weights.shape)} on {weights.device}")
    rows, vocab = weights.shape
    for each in of_rows:
        if each.shape != (rows,) or not each.is_cpu:
            raise ValueError(f"{tuple(each.shape)} numbers for {rows} rows")
    return rows, vocab
