"""What one gated-delta-net layer remembers of every slot: its state and the tail of its convolution.

A recurrent state stands after exactly so many tokens and cannot be cut back, so this layer keeps each slot's
length and refuses what does not continue it. A draft leaves the state where it was until it is committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kaminari.model import huge_pages
from kaminari.model.batch import RowLengths
from kaminari.model.cache import LayerState
from kaminari.model.delta_kernels import chunk_form
from kaminari.model.gated_delta_net import Corrections, DeltaInputs, next_tail, propose, recurrent_step


@dataclass(slots=True)
class _Draft:
    """A draft of one slot: at most `most` tokens, and once the step has run, what it would write."""

    most: int
    corrections: Corrections | None = None
    inputs: Tensor | None = None

    @property
    def tokens(self) -> int:
        return 0 if self.inputs is None else self.inputs.shape[1]


class GatedDeltaState(LayerState):
    """State [slots, heads, key_dim, value_dim] in float32, tail [slots, kernel - 1, channels] in the dtype.

    The tail holds the convolution's last inputs, before the convolution; zeros where there were none.
    """

    def __init__(
        self,
        slots: int,
        heads: int,
        key_dim: int,
        value_dim: int,
        *,
        channels: int,
        kernel: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.state = huge_pages.zeros((slots, heads, key_dim, value_dim), torch.float32, device)
        self.tail = torch.zeros((slots, kernel - 1, channels), device=device, dtype=dtype)
        self._chunk_form = chunk_form(device, dtype)
        self._in_place = device.type == "cpu"
        self._lengths = [0] * slots
        self._drafts: dict[int, _Draft] = {}

    def length(self, slot: int) -> int:
        """Tokens that the slot's state stands after, a draft apart."""
        return self._lengths[slot]

    def check_start(self, slot: int, start: int) -> None:
        if start != self._lengths[slot]:
            raise ValueError(
                f"slot {slot} holds the state after {self._lengths[slot]} tokens and cannot go on at {start}"
            )
        draft = self._drafts.get(slot)
        if draft is not None and draft.inputs is not None:
            raise ValueError(f"slot {slot} has a draft that was not committed")

    def claim(self, slot: int) -> None:
        """Clear the slot: what it holds would enter the new owner's first token."""
        self.state[slot].zero_()
        self.tail[slot].zero_()
        self._lengths[slot] = 0
        self._drafts.pop(slot, None)

    def scrub(self, slot: int) -> None:
        self.claim(slot)

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy a slot. Raises ValueError unless its state stands after `length` tokens."""
        self._require(source, length)
        self.state[target].copy_(self.state[source])
        self.tail[target].copy_(self.tail[source])
        self._lengths[target] = length
        self._drafts.pop(target, None)

    def save(self, slot: int, length: int) -> dict[str, Tensor]:
        """Return `state`, `tail` and `length` (a scalar). Raises ValueError as `copy` does."""
        self._require(slot, length)
        return {
            "state": self.state[slot].to("cpu", copy=True),
            "tail": self.tail[slot].to("cpu", copy=True),
            "length": torch.tensor(length),
        }

    def restore(self, slot: int, saved: dict[str, Tensor]) -> None:
        """Put a saved state back. Raises ValueError where its shape or dtype is not this layer's."""
        for name, mine in (("state", self.state), ("tail", self.tail)):
            if saved[name].shape != mine.shape[1:] or saved[name].dtype != mine.dtype:
                raise ValueError(
                    f"a saved {name} {saved[name].dtype} {tuple(saved[name].shape)} does not fit "
                    f"{mine.dtype} {tuple(mine.shape[1:])}"
                )
        self.state[slot].copy_(saved["state"])
        self.tail[slot].copy_(saved["tail"])
        self._lengths[slot] = int(saved["length"])
        self._drafts.pop(slot, None)

    def can_truncate(self, slot: int, length: int) -> bool:
        """Only where there is nothing to cut: going back takes a saved checkpoint."""
        return length == self._lengths[slot] and slot not in self._drafts

    def truncate(self, slot: int, length: int) -> None:
        """Do nothing, as `can_truncate` says."""

    def begin_draft(self, slots: Sequence[int], tokens: int) -> None:
        """The next step of these slots leaves their states; `commit` writes what is kept of it."""
        for slot in slots:
            self._drafts[slot] = _Draft(tokens)

    def commit(self, slot: int, length: int) -> None:
        """Write what a draft brought up to `length` tokens in all, and forget the rest.

        Raises ValueError for a length that the draft does not reach or that lies before it.
        """
        draft = self._drafts.pop(slot, _Draft(0))
        kept = length - self._lengths[slot]
        if not 0 <= kept <= draft.tokens:
            raise ValueError(
                f"slot {slot} cannot be committed at {length} tokens: it stands after "
                f"{self._lengths[slot]}, with {draft.tokens} drafted"
            )
        if kept and draft.corrections is not None and draft.inputs is not None:
            draft.corrections.write(self.state[slot], kept)
            self.tail[slot] = next_tail(self.tail[slot : slot + 1], draft.inputs[:, :kept])[0]
            self._lengths[slot] = length

    def nbytes(self) -> int:
        return self.state.nbytes + self.tail.nbytes

    def run_row(self, slot: int, inputs: DeltaInputs, convolved: Tensor) -> Tensor:
        """Run the new tokens of one slot; returns [T, heads, value_dim].

        convolved:  [1, T, channels], the inputs of the convolution, of which the tail is kept
        """
        draft = self._drafts.get(slot)
        if draft is not None:
            if inputs.tokens > draft.most:
                raise ValueError(f"slot {slot} drafts at most {draft.most} tokens, not {inputs.tokens}")
            output, draft.corrections = propose(inputs, self.state[slot])
            draft.inputs = convolved
            return output
        if inputs.tokens == 1:
            output = recurrent_step(inputs, self.state[slot : slot + 1])
        else:
            output = self._chunk_form(inputs, self.state[slot])
        self.tail[slot] = next_tail(self.tail[slot : slot + 1], convolved)[0]
        self._lengths[slot] += inputs.tokens
        return output

    def run_single_tokens(
        self, slots: Sequence[int], index: Tensor, inputs: DeltaInputs, convolved: Tensor
    ) -> Tensor:
        """Run one new token of each of R slots at once; returns [R, heads, value_dim].

        index:      [R] int64, the slots on the device
        convolved:  [R, 1, channels]

        On a CPU slots that follow one another are worked on where they lie. All others take a copy there and
        back, of which nothing depends on the host's copy of their numbers: such a step can be captured.
        """
        first = slots[0]
        if self._in_place and list(slots) == list(range(first, first + len(slots))):
            output = recurrent_step(inputs, self.state[first : first + len(slots)])
        else:
            states = self.state.index_select(0, index)
            output = recurrent_step(inputs, states)
            self.state.index_copy_(0, index, states)
        self.tail.index_copy_(0, index, next_tail(self.tail.index_select(0, index), convolved))
        self.advance(slots)
        return output

    def advance(self, slots: Sequence[int], tokens: int = 1) -> None:
        """Count so many tokens of each slot, which a kernel has run in place on `state` and `tail`."""
        for slot in slots:
            self._lengths[slot] += tokens

    def assume(self, slot: int, length: int) -> None:
        self._lengths[slot] = length

    def drafts(self, rows: RowLengths) -> bool:
        """Whether any row of a step is a draft."""
        return any(slot in self._drafts for slot in rows.slots)

    def all_single(self, rows: RowLengths) -> bool:
        """Whether a step is one token per row, none of them a draft."""
        return max(rows.q_lens) == 1 and not self.drafts(rows)

    def _require(self, slot: int, length: int) -> None:
        if length != self._lengths[slot] or slot in self._drafts:
            raise ValueError(
                f"slot {slot} holds the state after {self._lengths[slot]} tokens, not after {length}"
            )
