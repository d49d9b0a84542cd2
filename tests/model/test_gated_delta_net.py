"""The gated delta rule's forms agree with one another and with the reference's functions, at every split."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.models.qwen3_5.modeling_qwen3_5 import (
    torch_chunk_gated_delta_rule,
    torch_recurrent_gated_delta_rule,
)

from kaminari.model.gated_delta_net import (
    DeltaInputs,
    chunk_rule,
    delta_inputs,
    invert_unit_lower,
    next_tail,
    propose,
    recurrent_step,
    short_convolution,
    token_loop,
)

KEY_HEADS, HEADS, KEY_DIM, VALUE_DIM = 2, 4, 8, 6
CLOSE = {"atol": 5e-6, "rtol": 1e-5}


def raw(tokens: int, seed: int = 0, *, decay: float = 1.0) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(tokens, *shape, generator=generator)

    queries, keys = noise(KEY_HEADS, KEY_DIM), noise(KEY_HEADS, KEY_DIM)
    values = noise(HEADS, VALUE_DIM)
    return queries, keys, values, -decay * noise(HEADS).abs(), noise(HEADS).sigmoid()


def start(seed: int = 99) -> Tensor:
    return torch.randn(HEADS, KEY_DIM, VALUE_DIM, generator=torch.Generator().manual_seed(seed))


def by_tokens(inputs: DeltaInputs, state: Tensor) -> tuple[Tensor, Tensor]:
    state = state.clone()
    return token_loop(inputs, state), state


@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 63, 64, 65, 128, 200])
@pytest.mark.parametrize("function", [torch_chunk_gated_delta_rule, torch_recurrent_gated_delta_rule])
def test_chunks_and_the_loop_agree_with_the_reference(tokens: int, function: Callable[..., Any]) -> None:
    parts = raw(tokens)
    queries, keys, values, decay, beta = (part[None] for part in grouped(parts))
    output, state = function(
        queries,
        keys,
        values,
        g=decay,
        beta=beta,
        initial_state=start()[None],
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )
    inputs = delta_inputs(*parts)
    for form in (token_loop, chunk_rule):
        mine = start()
        torch.testing.assert_close(form(inputs, mine), output[0], **CLOSE)
        torch.testing.assert_close(mine, state[0], **CLOSE)


def grouped(parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Queries and keys with a head for every value head."""
    group = HEADS // KEY_HEADS
    return tuple(part.repeat_interleave(group, dim=1) for part in parts[:2]) + parts[2:]


def test_every_split_of_a_row_gives_the_same() -> None:
    inputs = delta_inputs(*raw(150))
    wanted, after = by_tokens(inputs, start())
    for border in range(1, 150):
        state = start()
        output = torch.cat((chunk_rule(inputs[:border], state), chunk_rule(inputs[border:], state)))
        torch.testing.assert_close(output, wanted, **CLOSE)
        torch.testing.assert_close(state, after, **CLOSE)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 63, 64, 65, 70])
def test_every_chunk_size_gives_the_same(size: int) -> None:
    inputs = delta_inputs(*raw(150, seed=3))
    wanted, after = by_tokens(inputs, start())
    state = start()
    output = torch.cat([chunk_rule(inputs[low : low + size], state) for low in range(0, 150, size)])
    torch.testing.assert_close(output, wanted, **CLOSE)
    torch.testing.assert_close(state, after, **CLOSE)


def test_a_strong_decay_overflows_nowhere() -> None:
    """The reference masks before exp for this: above the diagonal the exponents are large and positive."""
    inputs = delta_inputs(*raw(64, decay=30.0))
    wanted, after = by_tokens(inputs, start())
    state = start()
    torch.testing.assert_close(chunk_rule(inputs, state), wanted, **CLOSE)
    torch.testing.assert_close(state, after, **CLOSE)
    assert torch.isfinite(state).all()


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_a_batched_step_is_each_rows_own(rows: int) -> None:
    inputs = delta_inputs(*raw(rows, seed=5))
    states = torch.stack([start(row) for row in range(rows)])
    pointer = states.data_ptr()
    outputs = recurrent_step(inputs, states)
    assert states.data_ptr() == pointer
    for row in range(rows):
        wanted, after = by_tokens(inputs[row : row + 1], start(row))
        torch.testing.assert_close(outputs[row : row + 1], wanted, **CLOSE)
        torch.testing.assert_close(states[row], after, **CLOSE)


def test_a_proposal_writes_any_number_of_its_tokens() -> None:
    inputs = delta_inputs(*raw(7, seed=8))
    state = start()
    output, corrections = propose(inputs, state)
    assert torch.equal(state, start())
    torch.testing.assert_close(output, by_tokens(inputs, start())[0], **CLOSE)
    for kept in range(8):
        state = start()
        corrections.write(state, kept)
        torch.testing.assert_close(state, by_tokens(inputs[:kept], start())[1], **CLOSE)


def test_narrow_inputs_are_computed_in_float32() -> None:
    narrow = delta_inputs(*(part.bfloat16() for part in raw(70)))
    wide = delta_inputs(*(part.bfloat16().float() for part in raw(70)))
    states = [start(), start()]
    assert torch.equal(chunk_rule(narrow, states[0]), chunk_rule(wide, states[1]))
    assert torch.equal(states[0], states[1])


@pytest.mark.parametrize("kernel", [1, 2, 4])
def test_the_convolution_is_the_references_at_every_split(kernel: int) -> None:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(1, 12, 5, generator=generator)
    weight = torch.randn(5, kernel, generator=generator)
    padded = F.conv1d(inputs.transpose(1, 2), weight[:, None], padding=kernel - 1, groups=5)[:, :, :12]
    wanted = F.silu(padded).transpose(1, 2)
    for border in range(13):
        tail = torch.zeros(1, kernel - 1, 5)
        pieces = []
        for piece in (inputs[:, :border], inputs[:, border:]):
            pieces.append(short_convolution(tail, piece, weight))
            tail = next_tail(tail, piece)
        torch.testing.assert_close(torch.cat(pieces, dim=1), wanted, atol=1e-6, rtol=1e-6)
        assert torch.equal(tail, inputs[:, 12 - (kernel - 1) :])


@pytest.mark.parametrize("size", [1, 2, 15, 16, 17, 31, 32, 33, 48, 63, 64, 100])
def test_a_unit_lower_triangle_is_inverted_by_halves(size: int) -> None:
    """Like keys make a triangle of ones, where powers of it would grow to 1e18 before they vanish."""
    generator = torch.Generator().manual_seed(size)
    noise = torch.rand(3, size, size, generator=generator)
    noise[0] = 1.0
    exact = torch.linalg.inv(noise.double().tril(-1) + torch.eye(size, dtype=torch.float64))
    inverse = invert_unit_lower(noise)
    torch.testing.assert_close(inverse.double(), exact, atol=1e-5, rtol=1e-4)
    assert not inverse.triu(1).any()
