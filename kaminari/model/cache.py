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

from kaminari.model import huge_pages
from kaminari.model.batch import RowLengths


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
    def can_truncate(self, slot: int, length: int) -> bool:
        """Whether the slot can be cut back to `length` tokens; False where only a saved checkpoint can."""

    @abstractmethod
    def truncate(self, slot: int, length: int) -> None:
        """Cut the slot back to `length` tokens. Called only where `can_truncate`."""

    @abstractmethod
    def begin_draft(self, slots: Sequence[int], tokens: int) -> None:
        """The next step writes up to `tokens` tokens per slot that may be taken back."""

    @abstractmethod
    def commit(self, slot: int, length: int) -> None:
        """Keep the state after `length` tokens in all, and drop what the draft wrote past it."""

    @abstractmethod
    def check_start(self, slot: int, start: int) -> None:
        """Raise ValueError unless the slot's next new token may be its token number `start`."""

    @abstractmethod
    def advance(self, slots: Sequence[int]) -> None:
        """Count one token of each slot, which a captured step has run in place."""

    @abstractmethod
    def assume(self, slot: int, length: int) -> None:
        """Take the slot to stand after `length` tokens, whatever it holds: a step is captured on slots that
        nobody owns. They have to be claimed afterwards."""

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
    """All layers' states, for `slots` slots of `capacity` tokens.

    Every verb raises ValueError, before anything changes, for a slot or a length that does not exist.
    """

    def __init__(self, layers: Sequence[LayerState], slots: int, capacity: int) -> None:
        if slots < 1 or capacity < 1:
            raise ValueError(f"a cache needs at least 1 slot of 1 token, not {slots} of {capacity}")
        self.layers = tuple(layers)
        self.slots = slots
        self.capacity = capacity

    def check_rows(self, rows: RowLengths) -> None:
        """Raise ValueError unless a step's rows have slots of their own, fit, and go on where those stand."""
        if not len(rows.slots) == len(rows.q_lens) == len(rows.kv_lens):
            raise ValueError("slots, q_lens and kv_lens must have one entry per row")
        if len(set(rows.slots)) != len(rows.slots):
            raise ValueError(f"the rows of a step must have slots of their own, not {rows.slots}")
        for slot, q_len, kv_len in zip(rows.slots, rows.q_lens, rows.kv_lens, strict=True):
            self._check(slot, kv_len)
            if not 1 <= q_len <= kv_len:
                raise ValueError(f"slot {slot}: {q_len} new tokens do not fit a length of {kv_len}")
            for layer in self.layers:
                layer.check_start(slot, kv_len - q_len)

    def claim(self, slot: int) -> None:
        self._check(slot)
        for layer in self.layers:
            layer.claim(slot)

    def scrub(self, slot: int) -> None:
        self._check(slot)
        for layer in self.layers:
            layer.scrub(slot)

    def copy(self, source: int, target: int, length: int) -> None:
        self._check(source, length)
        self._check(target, length)
        for layer in self.layers:
            layer.copy(source, target, length)

    def save(self, slot: int, length: int) -> SlotSnapshot:
        self._check(slot, length)
        return SlotSnapshot(length, tuple(layer.save(slot, length) for layer in self.layers))

    def restore(self, slot: int, snapshot: SlotSnapshot) -> None:
        self._check(slot, snapshot.length)
        if len(snapshot.layers) != len(self.layers):
            raise ValueError(f"a snapshot of {len(snapshot.layers)} layers, and {len(self.layers)} here")
        for layer, saved in zip(self.layers, snapshot.layers, strict=True):
            layer.restore(slot, saved)

    def truncate(self, slot: int, length: int) -> bool:
        """Cut every layer back to `length`; False (and nothing changed) where a layer cannot."""
        self._check(slot, length)
        if not all(layer.can_truncate(slot, length) for layer in self.layers):
            return False
        for layer in self.layers:
            layer.truncate(slot, length)
        return True

    def advance(self, slots: Sequence[int]) -> None:
        """As of every layer. The step's rows must have passed `check_rows`."""
        for layer in self.layers:
            layer.advance(slots)

    def assume(self, slot: int, length: int) -> None:
        """As of every layer."""
        self._check(slot, length)
        for layer in self.layers:
            layer.assume(slot, length)

    def nbytes(self) -> int:
        return sum(layer.nbytes() for layer in self.layers)

    def _check(self, slot: int, length: int = 0) -> None:
        if not 0 <= slot < self.slots:
            raise ValueError(f"no slot {slot}: there are {self.slots}, counted from 0")
        if not 0 <= length <= self.capacity:
            raise ValueError(f"a length of {length} tokens does not fit a slot of {self.capacity}")


class AttentionKV(LayerState):
    """Keys and values [slots, kv_heads, capacity, head_dim] of one attention layer.

    It keeps no lengths: a step says how long each row is. Within a row's length every place was written by
    the slot's owner (by its steps, a copy or a restore), and nothing past it is ever read.
    """

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
        self.keys = huge_pages.zeros(shape, dtype, device)
        self.values = huge_pages.zeros(shape, dtype, device)

    def claim(self, slot: int) -> None:
        """Do nothing: an old owner's rows lie past the new owner's length until they are overwritten."""

    def scrub(self, slot: int) -> None:
        self.keys[slot].zero_()
        self.values[slot].zero_()

    def copy(self, source: int, target: int, length: int) -> None:
        self.keys[target, :, :length].copy_(self.keys[source, :, :length])
        self.values[target, :, :length].copy_(self.values[source, :, :length])

    def save(self, slot: int, length: int) -> dict[str, Tensor]:
        """Return `keys` and `values`, each [kv_heads, length, head_dim]."""
        return {
            "keys": self.keys[slot, :, :length].to("cpu", copy=True).contiguous(),
            "values": self.values[slot, :, :length].to("cpu", copy=True).contiguous(),
        }

    def restore(self, slot: int, saved: dict[str, Tensor]) -> None:
        """Put a saved state back. Raises ValueError where its shape is not this layer's."""
        keys, values = saved["keys"], saved["values"]
        _, kv_heads, capacity, head_dim = self.keys.shape
        length = keys.shape[1]
        if keys.shape != values.shape or keys.shape != (kv_heads, length, head_dim) or length > capacity:
            raise ValueError(
                f"saved keys {tuple(keys.shape)} and values {tuple(values.shape)} do not fit "
                f"[{kv_heads}, up to {capacity}, {head_dim}]"
            )
        self.keys[slot, :, :length].copy_(keys)
        self.values[slot, :, :length].copy_(values)

    def can_truncate(self, slot: int, length: int) -> bool:
        return True

    def truncate(self, slot: int, length: int) -> None:
        """Do nothing: what lies past the length is never read, and is overwritten as the row grows."""

    def begin_draft(self, slots: Sequence[int], tokens: int) -> None:
        """Do nothing: a draft's rows lie past the length that `commit` keeps."""

    def commit(self, slot: int, length: int) -> None:
        """Do nothing, as for `truncate`."""

    def check_start(self, slot: int, start: int) -> None:
        """Do nothing: a row may go on at any place that it has reached."""

    def advance(self, slots: Sequence[int]) -> None:
        """Do nothing: it keeps no lengths."""

    def assume(self, slot: int, length: int) -> None:
        """Do nothing, as for `advance`."""

    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes
