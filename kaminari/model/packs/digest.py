"""Whether a pack still holds what was written: a digest of each weight's codes and scales."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from kaminari.model.quantized import Int4Weight, QuantizedWeight

UNKNOWN = "0" * hashlib.sha256().digest_size * 2
"""Stands in a header until its pack is whole; no weight has it."""


def parts(weight: QuantizedWeight) -> dict[str, Tensor]:
    """The tensors of a quantized weight by their names in a pack."""
    tensors = {"codes": weight.codes, "scales": weight.scales}
    if isinstance(weight, Int4Weight):
        tensors["zeros"] = weight.zeros
    return tensors


class Digest:
    """SHA-256 over those of a weight's tensors, which may come in blocks of rows."""

    def __init__(self) -> None:
        self._hashes: dict[str, hashlib._Hash] = {}

    def add(self, rows: QuantizedWeight) -> None:
        for part, tensor in parts(rows).items():
            values = tensor.contiguous().view(torch.uint8).numpy().data
            self._hashes.setdefault(part, hashlib.sha256()).update(values)

    def hex(self) -> str:
        return hashlib.sha256(b"".join(each.digest() for each in self._hashes.values())).hexdigest()
