"""The recurrent state in the slot cache: its verbs, what it refuses, and drafts that are taken back."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from kaminari.model.batch import RowLengths
from kaminari.model.cache import SlotCache
from kaminari.model.delta_state import GatedDeltaState
from kaminari.model.gated_delta_net import DeltaInputs, delta_inputs

SLOTS, HEADS, KEY_DIM, VALUE_DIM, CHANNELS, KERNEL = 3, 2, 4, 4, 6, 4


def new_state(dtype: torch.dtype = torch.float32) -> GatedDeltaState:
    return GatedDeltaState(
        SLOTS,
        HEADS,
        KEY_DIM,
        VALUE_DIM,
        channels=CHANNELS,
        kernel=KERNEL,
        device=torch.device("cpu"),
        dtype=dtype,
    )


def tokens(count: int, seed: int = 0) -> tuple[DeltaInputs, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(count, *shape, generator=generator)

    inputs = delta_inputs(
        noise(HEADS, KEY_DIM),
        noise(HEADS, KEY_DIM),
        noise(HEADS, VALUE_DIM),
        -noise(HEADS).abs(),
        noise(HEADS).sigmoid(),
    )
    return inputs, noise(CHANNELS)[None]


def run(layer: GatedDeltaState, slot: int, count: int, seed: int = 0) -> Tensor:
    inputs, convolved = tokens(count, seed)
    return layer.run_row(slot, inputs, convolved)


def close(layer: GatedDeltaState, slot: int, other: GatedDeltaState, target: int) -> None:
    torch.testing.assert_close(layer.state[slot], other.state[target], atol=1e-6, rtol=1e-5)
    assert torch.equal(layer.tail[slot], other.tail[target])
    assert layer.length(slot) == other.length(target)


@pytest.mark.parametrize("verb", ["claim", "scrub"])
def test_a_claimed_slot_holds_nothing_and_its_neighbours_all(verb: str) -> None:
    layer = new_state()
    for slot in range(SLOTS):
        run(layer, slot, 3, seed=slot)
    kept = layer.state[[0, 2]].clone(), layer.tail[[0, 2]].clone()
    layer.state[1], layer.tail[1] = math.nan, math.nan
    getattr(layer, verb)(1)
    assert layer.length(1) == 0
    assert not layer.state[1].any()
    assert not layer.tail[1].any()
    assert torch.equal(layer.state[[0, 2]], kept[0])
    assert torch.equal(layer.tail[[0, 2]], kept[1])


def test_a_copy_goes_on_as_its_source() -> None:
    layer = new_state()
    run(layer, 0, 5)
    layer.copy(0, 2, 5)
    close(layer, 0, layer, 2)
    assert torch.equal(run(layer, 0, 4, seed=1), run(layer, 2, 4, seed=1))
    close(layer, 0, layer, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_saved_state_is_restored_bit_for_bit(dtype: torch.dtype) -> None:
    layer = new_state(dtype)
    inputs, convolved = tokens(5)
    layer.run_row(0, inputs, convolved.to(dtype))
    saved = layer.save(0, 5)
    assert saved["state"].dtype == torch.float32
    before = layer.state[0].clone(), layer.tail[0].clone()
    inputs, convolved = tokens(9, seed=2)
    layer.run_row(0, inputs, convolved.to(dtype))
    layer.restore(1, saved)
    assert torch.equal(layer.state[1], before[0])
    assert torch.equal(layer.tail[1], before[1])
    assert layer.length(1) == 5
    saved["state"].fill_(math.nan)
    assert torch.equal(layer.state[1], before[0])


def test_a_state_that_does_not_fit_is_refused() -> None:
    layer = new_state()
    saved = layer.save(0, 0)
    for name, wrong in (
        ("state", torch.zeros(HEADS, KEY_DIM, VALUE_DIM + 1)),
        ("state", torch.zeros(HEADS, KEY_DIM, VALUE_DIM, dtype=torch.bfloat16)),
        ("tail", torch.zeros(KERNEL, CHANNELS)),
    ):
        with pytest.raises(ValueError, match=f"saved {name}"):
            layer.restore(1, {**saved, name: wrong})


def test_it_is_kept_only_at_the_length_that_it_has() -> None:
    layer = new_state()
    cache = SlotCache([layer], SLOTS, 32)
    run(layer, 0, 5)
    assert [cache.truncate(0, length) for length in (0, 4, 5)] == [False, False, True]
    for verb in (lambda: cache.copy(0, 1, 4), lambda: cache.save(0, 6)):
        with pytest.raises(ValueError, match="after 5 tokens"):
            verb()
    with pytest.raises(ValueError, match="cannot go on at 6"):
        cache.check_rows(RowLengths((0,), (1,), (7,)))
    cache.check_rows(RowLengths((0, 1), (1, 3), (6, 3)))


@pytest.mark.parametrize("slots", [(0, 1, 2), (2, 0), (1,)])
def test_single_tokens_run_together_as_they_run_alone(slots: tuple[int, ...]) -> None:
    together, alone = new_state(), new_state()
    for slot in range(SLOTS):
        run(together, slot, 4, seed=slot)
        run(alone, slot, 4, seed=slot)
    inputs, convolved = tokens(len(slots), seed=50)
    output = together.run_single_tokens(slots, torch.tensor(slots), inputs, convolved.transpose(0, 1))
    for row, slot in enumerate(slots):
        mine = alone.run_row(slot, inputs[row : row + 1], convolved[:, row : row + 1])
        torch.testing.assert_close(output[row : row + 1], mine, atol=1e-6, rtol=1e-5)
    for slot in range(SLOTS):
        close(together, slot, alone, slot)


@pytest.mark.parametrize("kept", range(5))
def test_a_draft_is_taken_back_to_any_of_its_tokens(kept: int) -> None:
    layer, plain = new_state(), new_state()
    run(layer, 1, 6)
    run(plain, 1, 6)
    inputs, convolved = tokens(4, seed=7)
    layer.begin_draft([1], 4)
    assert not layer.all_single(RowLengths((1,), (1,), (7,)))
    drafted = layer.run_row(1, inputs, convolved)
    assert layer.length(1) == 6
    assert not layer.can_truncate(1, 6)
    with pytest.raises(ValueError, match="not committed"):
        layer.check_start(1, 6)
    layer.commit(1, 6 + kept)
    if kept:
        wanted = plain.run_row(1, inputs[:kept], convolved[:, :kept])
        torch.testing.assert_close(drafted[:kept], wanted, atol=1e-6, rtol=1e-5)
    close(layer, 1, plain, 1)
    layer.check_start(1, 6 + kept)


def test_what_a_draft_cannot_give_is_refused() -> None:
    layer = new_state()
    run(layer, 0, 2)
    layer.commit(0, 2)
    for length in (1, 3):
        with pytest.raises(ValueError, match="cannot be committed"):
            layer.commit(0, length)
    layer.begin_draft([0], 2)
    with pytest.raises(ValueError, match="at most 2"):
        run(layer, 0, 3)
    run(layer, 0, 2)
    with pytest.raises(ValueError, match="cannot be committed"):
        layer.commit(0, 5)
    layer.begin_draft([0], 2)
    layer.claim(0)
    layer.check_start(0, 0)


def test_it_counts_its_bytes() -> None:
    assert new_state(torch.bfloat16).nbytes() == SLOTS * (
        HEADS * KEY_DIM * VALUE_DIM * 4 + (KERNEL - 1) * CHANNELS * 2
    )
