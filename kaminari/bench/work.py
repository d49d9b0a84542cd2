"""How many bytes a step reads and how many operations it needs, from a loaded model; and the floors.

A decode step reads every weight of the decoder once, and what its rows remember. Prefill multiplies every
token by every weight, and attends to half of the square of the prompt. No kernel can take less time than the
larger of both at the machine's limits: that is the floor. It counts two operations per multiply-add, and
nothing for norms, rotations and activations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from kaminari.bench.recorder import Floor
from kaminari.bench.result import Limits
from kaminari.model.family import Footprint, VisionLanguageModel
from kaminari.model.linear import Linear

# read the state for the keys, write it, read it for the queries
STATE_PASSES = 3


@dataclass(frozen=True, slots=True)
class DecoderWork:
    """What a text decoder costs.

    weight_bytes:      read by every step: layers, norms and head, and no other embedding
    layer_weights:     values of the layers' linears
    head_weights:      values of the head
    attention_width:   heads * head_dim, summed over attention layers
    state_values:      values of a row's recurrent states, over all layers
    cache_per_token:   bytes that a token adds to a row's keys and values
    state_bytes:       bytes of a row's recurrent states
    """

    weight_bytes: int
    layer_weights: int
    head_weights: int
    attention_width: int
    state_values: int
    cache_per_token: int
    state_bytes: int

    def step_bytes(self, rows: int, context: int) -> int:
        """Bytes that a decode step of `rows` rows moves where each row holds `context` tokens."""
        return self.weight_bytes + rows * (context * self.cache_per_token + 2 * self.state_bytes)

    def step_operations(self, rows: int, context: int) -> int:
        """Operations of a decode step."""
        return rows * (self._token_operations() + 2 * self.head_weights + 4 * self.attention_width * context)

    def prompt_operations(self, tokens: int) -> int:
        """Operations of a prompt of `tokens` tokens and its one row of logits."""
        pairs = tokens * (tokens + 1) // 2
        return tokens * self._token_operations() + 4 * self.attention_width * pairs + 2 * self.head_weights

    def _token_operations(self) -> int:
        return 2 * self.layer_weights + 2 * STATE_PASSES * self.state_values


def decoder_work(model: VisionLanguageModel, footprint: Footprint) -> DecoderWork:
    """Count a loaded decoder."""
    network: Any = model
    text: Any = network.network.text
    parts: list[Any] = list(text.layers.modules())
    tied = text.own_head is None
    head = text.embedding if tied else text.own_head
    linears = [part for part in parts if isinstance(part, Linear)]
    packed = [part for part in [*linears, head] if part.weight is None]
    return DecoderWork(
        weight_bytes=_bytes(text)
        + sum(part.kernel.nbytes for part in packed)
        - (0 if tied else _bytes(text.embedding)),
        layer_weights=sum(part.in_features * part.out_features for part in linears),
        head_weights=head.in_features * head.out_features,
        attention_width=sum(part.heads * part.head_dim for part in parts if hasattr(part, "head_dim")),
        state_values=sum(part.sizes.state_values for part in parts if hasattr(part, "decay_log")),
        cache_per_token=footprint.cache_per_token,
        state_bytes=footprint.cache_per_slot,
    )


def count_operations(work: Callable[[], object]) -> int:
    """Operations of the products and attentions that `work` runs, counted while it runs."""
    formulas = {
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_operations,
        torch.ops.kaminari.attend_all: _own_attention_operations,
    }
    with FlopCounterMode(display=False, custom_mapping=formulas) as counter:
        work()
    return int(counter.get_total_flops())


def step_floor(work: DecoderWork, rows: int, context: int) -> Floor:
    """The least seconds of a decode step."""

    def floor(limits: Limits) -> float | None:
        reading = _over(work.step_bytes(rows, context), limits.read_rate)
        multiplying = _over(work.step_operations(rows, context), limits.multiply_rate)
        return _slower(reading, multiplying)

    return floor


def prompt_floor(work: DecoderWork, tokens: int) -> Floor:
    """The least seconds of a prompt's prefill."""
    return operations_floor(work.prompt_operations(tokens))


def operations_floor(operations: int) -> Floor:
    return lambda limits: _over(operations, limits.multiply_rate)


def _attention_operations(
    query: Any, key: Any, value: Any, *rest: object, out_shape: object = None, **more: object
) -> int:
    return int(sdpa_flop_count(query, key, value))  # type: ignore[no-untyped-call]


def _own_attention_operations(
    query: Any, key: Any, value: Any, *rest: object, out_shape: object = None, **more: object
) -> int:
    places, heads, channels = query
    return 4 * int(places) ** 2 * int(heads) * int(channels)


def _bytes(module: nn.Module) -> int:
    tensors: list[Tensor] = [*module.parameters(), *module.buffers()]
    return sum(tensor.nbytes for tensor in tensors)


def _over(amount: float, rate: float | None) -> float | None:
    return None if not rate else amount / rate


def _slower(first: float | None, second: float | None) -> float | None:
    known = [each for each in (first, second) if each is not None]
    return max(known) if known else None
