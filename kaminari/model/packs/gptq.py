"""Rounding that looks at what a weight is multiplied by: what one column's rounding breaks, others mend.

Frantar, Ashkboos, Hoefler and Alistarh, "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained
Transformers", 2022, with columns in the order of their inputs' size. Scales and zeros are those of least
squared error of the weight itself; only codes are chosen anew. Rows do not depend on each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from kaminari.model.packs.rounding import INT4_MOST, Method, choose_levels, pack_nibbles
from kaminari.model.quantized import INT4_MIDDLE, Int4Weight

# What inputs that were not seen may be like: added to every column's mean square, as a share of their mean.
DAMPING = 0.1
# Columns whose errors are passed on to all later ones in one product.
STRIPE = 128


class Moments(Protocol):
    """What linears take while a model runs on prompts that stand for its use."""

    def of(self, parameter: str) -> Tensor:
        """float32 [width, width]: the mean of x x^T over the inputs x of a linear, by its weight's name."""
        ...


@dataclass(frozen=True, slots=True)
class Feedback:
    """How an error in one column is made up for in the others.

    columns:  [width] in the order in which they are rounded
    factor:   float32 [width, width], the upper Cholesky factor of the inverse moments in that order
    """

    columns: Tensor
    factor: Tensor


def feedback(moments: Tensor) -> Feedback:
    """What `quantize_int4_by` needs to know of a weight's inputs. Raises ValueError for no such moments."""
    sizes = moments.diagonal()
    mean = float(sizes.mean())
    if not bool(moments.isfinite().all()) or mean <= 0:
        raise ValueError("moments of inputs that are zero or not finite")
    columns = sizes.argsort(descending=True, stable=True)
    damped = moments[columns][:, columns]
    damped.diagonal().add_(DAMPING * mean)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
    return Feedback(columns, torch.linalg.cholesky(inverse, upper=True))


def quantize_int4_by(rows: Tensor, group_size: int, known: Feedback) -> Int4Weight:
    """Round rows [n, width] to sixteen levels per group of columns, so that products change the least."""
    rows = rows.float()
    width = rows.shape[1]
    scales, zeros = choose_levels(rows, group_size, Method.FIT)
    # a column is a row here: that is what the loop reads
    left = rows.T[known.columns].contiguous()
    groups = known.columns // group_size
    steps, lifts = scales.float().T[groups], zeros.float().T[groups]
    inverses = torch.where(steps == 0, 0.0, 1 / steps)
    codes = torch.empty_like(left)
    for first in range(0, width, STRIPE):
        stop = min(first + STRIPE, width)
        errors = torch.empty_like(left[first:stop])
        for i in range(first, stop):
            code = ((left[i] - lifts[i]) * inverses[i]).round_().clamp_(-INT4_MIDDLE, INT4_MOST - INT4_MIDDLE)
            codes[i] = code
            error = (left[i] - code * steps[i] - lifts[i]) / known.factor[i, i]
            errors[i - first] = error
            left[i + 1 : stop] -= known.factor[i, i + 1 : stop, None] * error
        left[stop:] -= known.factor[first:stop, stop:].T @ errors
    plain = torch.empty_like(codes)
    plain[known.columns] = codes + INT4_MIDDLE
    return Int4Weight(pack_nibbles(plain.T.to(torch.uint8)), scales, zeros, width, group_size)
