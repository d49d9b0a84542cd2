"""What a token is drawn from and by what rule: for a prompt's first token, decode steps and draft checks.

On a CPU a decode step may draw for its rows itself (`cpu_sampling.choose`), by the same rule and to the bit.
Pure tensor functions of fixed shapes. Nothing here waits for the device, looks at a request or keeps state.

A drawn row works on integer weights, floor(2**42 * exp((logit - max) / temperature)). Sums of integers are
exact in any order, so a row's result is the same bits alone and in a batch, sorted or not, on every kernel;
and a rounded sum can never send a draw past the last token or onto one of weight zero. What the floor drops
is less than 2**-22 of the mass. Every filter keeps a prefix of one strict order (heavier first, and the lower
id first among equals), so all of them together are one cutoff per row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kaminari.engine.logit_edits import LogitEdits, bar, edit
from kaminari.engine.sampling_table import SamplingTensors
from kaminari.model.kernels import cpu_rows, cpu_sampling
from kaminari.model.operators import greedy

WEIGHT_BITS = 42
ID_BITS = 20
MAX_VOCAB = 1 << ID_BITS
_HEAVIEST = float(1 << WEIGHT_BITS)


@dataclass(frozen=True, slots=True)
class Sampled:
    """What R rows drew.

    ids:       [R] int64
    logprobs:  [R] float32, log-softmax of the raw logits at the drawn id (before edits, temperature, filters
               and mask), or None where not asked for
    finite:    [R] bool. False marks a row without an answer: one of its raw logits is NaN or infinite, or
               its mask allows nothing. Its id and log-probability are 0 and must not be used.
    top:       the likeliest tokens of the raw distribution, or None where not asked for
    """

    ids: Tensor
    logprobs: Tensor | None
    finite: Tensor
    top: Likeliest | None = None


@dataclass(frozen=True, slots=True)
class Likeliest:
    """ids [R, K] int64 and logprobs [R, K] float32: likelier first, and the lower id first among equals."""

    ids: Tensor
    logprobs: Tensor


def sample(
    logits: Tensor,
    params: SamplingTensors,
    mask: Tensor | None = None,
    noise: Tensor | None = None,
    edits: LogitEdits | None = None,
    *,
    likeliest: Tensor | None = None,
    logprobs: bool = False,
    top: int = 0,
) -> Sampled:
    """Draw one token per row.

    logits:    [R, V] floating point, raw; V is at most 2**20. A minus infinity counts as not finite: what
               must not be drawn is said by the mask, and no head makes one.
    mask:      [R, V] bool, True where a token is allowed; None allows all
    noise:     [R] numbers in [0, 1), one per row (see `noise.uniform`); may be None where all are greedy
    edits:     penalties, biases and tokens that are barred for now, or None
    likeliest: [R] int64, what `greedy` says of the logits, or None where nobody has asked it yet
    logprobs:  whether to spend a pass over the vocabulary on log-probabilities
    top:       how many of the likeliest tokens to name with them, at most the vocabulary

    A greedy row takes the largest allowed logit, and the lowest id among equals. Any other row draws from
    `filtered_weights` by inverting its cumulative sum in the order of ids. All arithmetic is in float32 or
    better. Raises `ValueError` for shapes that do not belong together; never for what the logits hold.
    """
    _check_shapes(logits, params, mask, noise)
    ids = greedy(logits) if likeliest is None else likeliest
    finite = ids >= 0
    allowed = logits if edits is None else edit(logits.float(), edits)
    if edits is not None and edits.barred is not None:
        mask = bar(mask, edits.barred, logits.shape[-1])
    if mask is not None:
        allowed = allowed.masked_fill(~mask, -torch.inf)
        finite = finite & mask.any(-1)
    if allowed is not logits:
        ids = allowed.argmax(-1)
    if noise is not None and not params.all_greedy:
        drawn = _draw(filtered_weights(allowed, params), noise)
        ids = torch.where(params.temperature == 0, ids, drawn)
    ids = ids.masked_fill(~finite, 0)
    if not logprobs:
        return Sampled(ids, None, finite)
    raw = logits.float()
    every = raw.log_softmax(-1)
    picked = every.gather(-1, ids[:, None]).squeeze(-1).masked_fill(~finite, 0)
    return Sampled(ids, picked, finite, _likeliest(raw, every, top) if top else None)


def _likeliest(raw: Tensor, logprobs: Tensor, count: int) -> Likeliest:
    """The `count` largest of float32 logits [R, V], in one strict order: ties fall the same in any batch."""
    # The bits of a float, read as an integer, ascend with it; those of a negative one descend. Adding 0 turns
    # minus zero into zero.
    bits = (raw + 0.0).view(torch.int32)
    ascending = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    ids = torch.arange(raw.shape[-1], device=raw.device)
    keys = (ascending << ID_BITS) + (MAX_VOCAB - 1 - ids)
    best = MAX_VOCAB - 1 - (keys.topk(count).values & (MAX_VOCAB - 1))
    return Likeliest(best, logprobs.gather(-1, best))


def filtered_weights(logits: Tensor, params: SamplingTensors) -> Tensor:
    """Return int64 weights [R, V], proportional to the probabilities that a row draws from.

    logits are floating point [R, V], minus infinity where a token is not allowed. The order is that of
    `transformers` (`GenerationMixin._get_logits_processor`): temperature; top-k; top-p on the softmax of what
    is left, the smallest set of the likeliest tokens whose mass reaches top_p, never empty; min-p, the tokens
    of at least min_p times the largest probability. Of tokens that tie with the k-th, transformers keeps all;
    here exactly k stay, lower ids first, so that top_k=1 is the greedy token.
    The weights of a greedy row, or of one that holds a NaN, mean nothing.
    """
    lightest = (params.min_p * _HEAVIEST).ceil().long()
    if cpu_rows.fits(logits):
        weights = cpu_sampling.weigh(logits, params.temperature)
        return cpu_sampling.keep(weights, params.top_k, params.top_p, lightest)
    weights = _weights(logits.float(), params.temperature)
    too_light = weights < lightest[:, None]
    if params.sort_width:
        ids = torch.arange(weights.shape[-1], device=weights.device)
        keys = (weights << ID_BITS) + (MAX_VOCAB - 1 - ids)
        too_light |= keys < _cutoff(keys, params)
    return weights.masked_fill_(too_light, 0)


def _weights(logits: Tensor, temperature: Tensor) -> Tensor:
    # A greedy row's temperature is 0; any other number keeps its unused weights free of a division by zero.
    temperature = temperature.masked_fill(temperature == 0, 1.0).float()
    # The maximum is taken off before the division, which could overflow before it.
    shifted = (logits - logits.amax(-1, keepdim=True)) / temperature[:, None]
    # Where the maximum is NaN or infinite, so may be the difference, and NaN has no integer.
    return shifted.exp_().nan_to_num_(0.0).mul_(_HEAVIEST).long()


def _cutoff(keys: Tensor, params: SamplingTensors) -> Tensor:
    """Return the smallest key [R, 1] that top-k and top-p keep, of strictly ordered keys [R, V]."""
    vocab = keys.shape[-1]
    width = min(params.sort_width, vocab)
    # A sort is the same as topk(vocab), and faster.
    ordered = keys.topk(width).values if width < vocab else keys.sort(descending=True).values
    weights = ordered >> ID_BITS
    mass = weights.cumsum(-1)
    top_k = params.top_k.long()
    kept_by_k = torch.where(top_k > 0, top_k, width).clamp(max=width)[:, None]
    total = mass.gather(-1, kept_by_k - 1)
    # A token stays while the mass before it has not reached top_p; before the first that mass is 0.
    before = mass - weights
    kept_by_p = (before < params.top_p[:, None] * total).sum(-1, keepdim=True).clamp(min=1)
    last = ordered.gather(-1, torch.minimum(kept_by_k, kept_by_p) - 1)
    # A row without these filters keeps all, also where the others' sort is too narrow to show it.
    unfiltered = (top_k == 0) & (params.top_p == 1)
    return last.masked_fill(unfiltered[:, None], 0)


def _draw(weights: Tensor, noise: Tensor) -> Tensor:
    """Return the first id [R] whose cumulative weight exceeds noise * total; it never has weight zero."""
    if cpu_rows.indexes(weights):
        return cpu_sampling.draw(weights, noise)
    cumulative = weights.cumsum(-1)
    total = cumulative[:, -1]
    # The product is rounded to 53 bits and may reach the total, which no cumulative weight exceeds.
    target = torch.minimum((noise.double() * total).long(), total - 1)
    ids = torch.searchsorted(cumulative, target[:, None], right=True).squeeze(-1)
    return ids.clamp(max=weights.shape[-1] - 1)


def _check_shapes(logits: Tensor, params: SamplingTensors, mask: Tensor | None, noise: Tensor | None) -> None:
    if logits.dim() != 2 or not logits.is_floating_point():
        raise ValueError(
            f"logits must be floating point [rows, vocabulary], not {logits.dtype} {list(logits.shape)}"
        )
    rows, vocab = logits.shape
    if not 1 <= vocab <= MAX_VOCAB:
        raise ValueError(f"the vocabulary must have 1 to {MAX_VOCAB} tokens, not {vocab}")
    if params.temperature.shape != (rows,):
        raise ValueError(f"{params.temperature.shape[0]} rows of parameters for {rows} rows of logits")
    if mask is not None and (mask.shape != logits.shape or mask.dtype != torch.bool):
        raise ValueError(f"mask must be bool {[rows, vocab]}, not {mask.dtype} {list(mask.shape)}")
    if noise is None and not params.all_greedy:
        raise ValueError("rows that are not greedy need noise")
    if noise is not None and noise.shape != (rows,):
        raise ValueError(f"noise must be [{rows}], not {list(noise.shape)}")
