"""One shape of work for the decoder: a prefill chunk, a decode step and a draft check alike.

A step packs the new tokens of R rows one behind the other into T rows. The linears see the T packed
rows; only attention and recurrence look at slots and lengths. Nothing here is padded.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class FeatureRows:
    """Vision rows that stand in for the embeddings of placeholder tokens in this step.

    index:       [N] int64, packed rows of the step (0..T-1) that are placeholders, ascending
    embeddings:  [N, hidden]
    deepstack:   [D, N, hidden]; D is 0 for a family without deepstack
    """

    index: Tensor
    embeddings: Tensor
    deepstack: Tensor


@dataclass(frozen=True, slots=True)
class RowLengths:
    """The host's copy of a step's layout, for backends that dispatch per row without a device sync.

    slots:    R slot numbers, distinct
    q_lens:   R counts of new tokens, each at least 1; they sum to T
    kv_lens:  R lengths of each slot once this step's tokens are written (so kv_lens >= q_lens)
    """

    slots: tuple[int, ...]
    q_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StepBatch:
    """R rows of work, packed.

    tokens:      [T] int64
    positions:   [3, T] int64 (temporal, height, width; equal for text and for families with 1-D rotary)
    slots:       [R] int64
    q_lens:      [R] int32
    kv_lens:     [R] int32, counted after this step's tokens
    logit_rows:  [L] int64, packed rows whose hidden state the head needs; may be empty
    host:        the same layout as Python integers
    features:    vision rows, or None where the step holds no placeholder
    """

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    q_lens: Tensor
    kv_lens: Tensor
    logit_rows: Tensor
    host: RowLengths
    features: FeatureRows | None = None
