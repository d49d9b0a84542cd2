"""What each slot's owner wants done to its logits, and which tokens it has seen: a row per slot.

Owns the counts behind the penalties. Everything is allocated once; a claim overwrites all that the last owner
left. A step that needs none of it costs the host a look at a few flags, and the device nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kaminari.engine.logit_edits import Barred, Bias, LogitEdits, Penalties
from kaminari.engine.params import MAX_BIASED_TOKENS, MAX_STOP_TOKENS, SamplingParams
from kaminari.engine.step_block import Orders
from kaminari.engine.transfer import to_device
from kaminari.model.kernels.cpu_sampling import EditTables


@dataclass(frozen=True, slots=True)
class LogitRules:
    """One request's wishes on the device, from which its slots are claimed.

    penalties:   (repetition, frequency, presence), or None
    prompt:      [P] int64, the tokens of the prompt's text; empty without penalties
    bias:        ids [K] and values [K], or None
    ends:        [E] int64, tokens that end the answer, or None where nothing holds them back
    min_tokens:  tokens to make before one of them may be drawn
    """

    penalties: tuple[float, float, float] | None
    prompt: Tensor
    bias: Bias | None
    ends: Tensor | None
    min_tokens: int

    @property
    def edits(self) -> bool:
        """Whether anything is done to the logits of any token."""
        return self.penalties is not None or self.bias is not None or self.ends is not None


@dataclass(slots=True)
class _Flags:
    """What the host knows of a slot: which kinds it uses, and how wide they are."""

    penalized: bool = False
    bias: int = 0
    ends: int = 0
    min_tokens: int = 0


def logit_table_bytes(vocab_size: int, end_tokens: int) -> int:
    """Bytes that a `LogitTable` takes for each slot."""
    counts, penalties = vocab_size * (4 + 1), 3 * 4
    return counts + penalties + MAX_BIASED_TOKENS * (8 + 4) + (MAX_STOP_TOKENS + end_tokens) * 8


class LogitTable:
    """The rules and counts of every slot."""

    def __init__(self, slots: int, vocab_size: int, end_tokens: int, device: torch.device) -> None:
        """`end_tokens` is how many tokens end an answer of this model."""
        self._device = device
        self._made = torch.zeros(slots, vocab_size, dtype=torch.int32, device=device)
        self._prompt = torch.zeros(slots, vocab_size, dtype=torch.bool, device=device)
        self._penalties = torch.zeros(slots, 3, dtype=torch.float32, device=device)
        self._bias_ids = torch.zeros(slots, MAX_BIASED_TOKENS, dtype=torch.int64, device=device)
        self._bias_values = torch.zeros(slots, MAX_BIASED_TOKENS, dtype=torch.float32, device=device)
        self._ends = torch.zeros(slots, MAX_STOP_TOKENS + end_tokens, dtype=torch.int64, device=device)
        self._flags = [_Flags() for _ in range(slots)]

    def bring(self, params: SamplingParams, prompt_text: Sequence[int], ends: frozenset[int]) -> LogitRules:
        """Put a request's wishes on the device. `prompt_text` are prompt tokens without placeholders."""
        bias = None
        if params.logit_bias:
            ids, values = zip(*params.logit_bias, strict=True)
            bias = Bias(self._tensor(ids), to_device(values, torch.float32, self._device))
        held = params.min_tokens > 0 and bool(ends)
        return LogitRules(
            (params.repetition_penalty, params.frequency_penalty, params.presence_penalty)
            if params.penalized
            else None,
            self._tensor(prompt_text if params.penalized else ()),
            bias,
            self._tensor(sorted(ends)) if held else None,
            params.min_tokens if held else 0,
        )

    def claim(self, slot: int, rules: LogitRules) -> None:
        """Give a slot to a new owner. Queued on the device; the host does not wait."""
        flags = _Flags(penalized=rules.penalties is not None, min_tokens=rules.min_tokens)
        self._made[slot].zero_()
        self._prompt[slot].zero_().index_fill_(0, rules.prompt, True)
        # A fill takes its value as a kernel's argument. A copy from host memory would wait for the stream.
        for cell, value in zip(self._penalties[slot], rules.penalties or (1.0, 0.0, 0.0), strict=True):
            cell.fill_(value)
        self._bias_ids[slot].zero_()
        self._bias_values[slot].zero_()
        if rules.bias is not None:
            flags.bias = len(rules.bias.ids)
            self._bias_ids[slot, : flags.bias] = rules.bias.ids
            self._bias_values[slot, : flags.bias] = rules.bias.values
        self._ends[slot].zero_()
        if rules.ends is not None:
            flags.ends = len(rules.ends)
            self._ends[slot] = rules.ends[0]
            self._ends[slot, : flags.ends] = rules.ends
        self._flags[slot] = flags

    @property
    def tables(self) -> EditTables:
        """All slots' rules and counts, where they stay."""
        return EditTables(
            self._made, self._prompt, self._penalties, self._bias_ids, self._bias_values, self._ends
        )

    def orders(self, slot: int, made: int) -> Orders:
        """What is to be done to the logits of a slot that has made so many tokens."""
        flags = self._flags[slot]
        return Orders(flags.penalized, flags.bias, flags.ends if made < flags.min_tokens else 0)

    def rows(self, slots: Sequence[int], index: Tensor, made: Sequence[int]) -> LogitEdits | None:
        """Return what is to be done to the logits of R slots, or None where no one asks for anything.

        slots and index are the same R slot numbers, on the host and as int64 [R] on the device; made says how
        many tokens each row has.
        """
        flags = [self._flags[slot] for slot in slots]
        held = [count < flag.min_tokens for count, flag in zip(made, flags, strict=True)]
        penalized = any(flag.penalized for flag in flags)
        biased = max((flag.bias for flag in flags), default=0)
        if not (penalized or biased or any(held)):
            return None
        return LogitEdits(
            self._penalties_of(index) if penalized else None,
            self._bias_of(index, biased) if biased else None,
            self._barred(index, max(flag.ends for flag in flags), held) if any(held) else None,
        )

    def record(self, slots: Sequence[int], index: Tensor, ids: Tensor) -> None:
        """Count the tokens [R] that R slots have just drawn. Arguments as in `rows`."""
        if any(self._flags[slot].penalized for slot in slots):
            self._made[index, ids] += 1

    def _penalties_of(self, index: Tensor) -> Penalties:
        repetition, frequency, presence = self._penalties.index_select(0, index).unbind(1)
        return Penalties(
            self._made.index_select(0, index),
            self._prompt.index_select(0, index),
            repetition,
            frequency,
            presence,
        )

    def _bias_of(self, index: Tensor, width: int) -> Bias:
        return Bias(
            self._bias_ids.index_select(0, index)[:, :width],
            self._bias_values.index_select(0, index)[:, :width],
        )

    def _barred(self, index: Tensor, width: int, held: Sequence[bool]) -> Barred:
        active = to_device(held, torch.bool, self._device)
        return Barred(self._ends.index_select(0, index)[:, :width], active)

    def _tensor(self, values: Sequence[int]) -> Tensor:
        return to_device(values, torch.int64, self._device)
