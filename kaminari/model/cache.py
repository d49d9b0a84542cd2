"""The slot cache: per-layer state that outlives a step, addressed by slot number, never gathered.

Each layer owns one `LayerState`. A slot is a row of every layer's tensors. The engine claims, truncates,
copies, saves and restores whole slots; what a layer's state looks like is that layer's own business.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


class LayerState(ABC):
    """What one layer remembers of every slot."""

    @abstractmethod
    def claim(self, slot: int) -> None:
        """Make the slot fit for a new owner: nothing of the old one can reach an answer."""

    @abstractmethod
    def scrub(self, slot: int) -> None:
        """Overwrite all that the slot holds with zeros (after a fault: it may hold NaN)."""

    @abstractmethod
    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens' state from one slot to another."""

    @abstractmethod
    def save(self, slot: int, length: int) -> dict[str, Tensor]:
        """Return host copies of the state after `length` tokens."""

    @abstractmethod
    def restore(self, slot: int, saved: dict[str, Tensor]) -> None:
        """Put a saved state back into a slot."""

    @abstractmethod
    def truncate(self, slot: int, length: int) -> bool:
        """Cut the slot back to `length` tokens; False where only a saved checkpoint can do that."""

    @abstractmethod
    def begin_draft(self, slots: Sequence[int], tokens: int) -> None:
        """The next step writes up to `tokens` tokens per slot that may be taken back."""

    @abstractmethod
    def commit(self, slot: int, length: int) -> None:
        """Keep the state after `length` tokens in all, and drop what the draft wrote past it."""

    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of all tensors."""


@dataclass(frozen=True, slots=True)
class SlotSnapshot:
    """Every layer's state of one slot after `length` tokens, on the host: restored as a whole."""

    length: int
    layers: tuple[dict[str, Tensor], ...]

    def nbytes(self) -> int:
        return sum(tensor.nbytes for layer in self.layers for tensor in layer.values())


class SlotCache:
    """All layers' states, for `slots` slots of `capacity` tokens."""

    def __init__(self, layers: Sequence[LayerState], slots: int, capacity: int) -> None:
        self.layers = tuple(layers)
        self.slots = slots
        self.capacity = capacity

    def claim(self, slot: int) -> None:
        for layer in self.layers:
            layer.claim(slot)

    def scrub(self, slot: int) -> None:
        for layer in self.layers:
            layer.scrub(slot)

    def copy(self, source: int, target: int, length: int) -> None:
        for layer in self.layers:
            layer.copy(source, target, length)

    def save(self, slot: int, length: int) -> SlotSnapshot:
        return SlotSnapshot(length, tuple(layer.save(slot, length) for layer in self.layers))

    def restore(self, slot: int, snapshot: SlotSnapshot) -> None:
        for layer, saved in zip(self.layers, snapshot.layers, strict=True):
            layer.restore(slot, saved)

    def truncate(self, slot: int, length: int) -> bool:
        """Cut every layer back to `length`; False (and nothing changed) where a layer cannot."""
        raise NotImplementedError

    def nbytes(self) -> int:
        return sum(layer.nbytes() for layer in self.layers)


class AttentionKV(LayerState):
    """Keys and values [slots, kv_heads, capacity, head_dim] of one attention layer."""

    def __init__(
        self,
        slots: int,
        kv_heads: int,
        capacity: int,
        head_dim: int,
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        shape = (slots, kv_heads, capacity, head_dim)
        self.keys = torch.zeros(shape, device=device, dtype=dtype)
        self.values = torch.zeros(shape, device=device, dtype=dtype)
