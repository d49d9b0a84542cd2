"""The C++ forms of a gated delta net against the plain form of the layer, and what changes no bit of them."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from kaminari.model.batch import StepBatch
from kaminari.model.delta_state import GatedDeltaState
from kaminari.model.hybrid.config import DeltaSizes, HybridSizes
from kaminari.model.hybrid.delta_net import GatedDeltaNet
from kaminari.model.kernels import cpu_delta
from kaminari.model.kernels.native.build import native_kernels
from tests.model.kernels.test_cpu_attention import batch_of

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16]
SLOTS = 6
SIZES = [
    DeltaSizes(key_heads=2, heads=2, key_dim=16, value_dim=16, kernel=4),
    DeltaSizes(key_heads=2, heads=6, key_dim=8, value_dim=24, kernel=3),
    DeltaSizes(key_heads=1, heads=3, key_dim=37, value_dim=5, kernel=1),
    DeltaSizes(key_heads=16, heads=16, key_dim=128, value_dim=128, kernel=4),
    DeltaSizes(key_heads=1, heads=2, key_dim=256, value_dim=192, kernel=8),
]

pytestmark = pytest.mark.skipif(native_kernels().library is None, reason=native_kernels().reason)


def noise(*shape: int, seed: int, scale: float = 1.0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


def layer_of(sizes: DeltaSizes, dtype: torch.dtype) -> GatedDeltaNet:
    text = HybridSizes(
        vocab=8,
        hidden=16,
        intermediate=16,
        attends=(False,),
        heads=1,
        kv_heads=1,
        head_dim=16,
        delta=sizes,
        norm_eps=1e-6,
        tied=True,
    )
    layer = GatedDeltaNet(text)
    for seed, parameter in enumerate(layer.parameters()):
        parameter.data = noise(*parameter.shape, seed=seed, scale=0.5).to(dtype)
    return layer


def state_of(sizes: DeltaSizes, dtype: torch.dtype, slots: list[int]) -> GatedDeltaState:
    """Some state in every slot of `slots`, NaN in the others."""
    state = GatedDeltaState(
        SLOTS,
        sizes.heads,
        sizes.key_dim,
        sizes.value_dim,
        channels=sizes.channels,
        kernel=sizes.kernel,
        device=CPU,
        dtype=dtype,
    )
    state.state.fill_(torch.nan)
    state.tail.fill_(torch.nan)
    for slot in slots:
        state.state[slot] = noise(*state.state.shape[1:], seed=slot)
        state.tail[slot] = noise(*state.tail.shape[1:], seed=slot + 50).to(dtype)
    return state


def projected_of(layer: GatedDeltaNet, rows: int, dtype: torch.dtype) -> Tensor:
    return noise(rows, sum(layer.parts), seed=77).to(dtype)


def step_of(slots: list[int]) -> StepBatch:
    return batch_of(slots, [1] * len(slots), [1] * len(slots))


def run(layer: GatedDeltaNet, projected: Tensor, state: GatedDeltaState, slots: list[int]) -> Tensor:
    return cpu_delta.step(projected, layer.weights, state.state, state.tail, torch.tensor(slots))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("slots", [[3], [2, 3, 4], [5, 0, 3]])
def test_a_step_is_the_plain_form_s(sizes: DeltaSizes, dtype: torch.dtype, slots: list[int]) -> None:
    layer = layer_of(sizes, dtype)
    projected = projected_of(layer, len(slots), dtype)
    plain, ours = state_of(sizes, dtype, slots), state_of(sizes, dtype, slots)
    wanted = layer.mix(projected, plain, step_of(slots))
    answer = run(layer, projected, ours, slots)
    assert answer.dtype == dtype
    assert torch.equal(ours.tail.nan_to_num(7.0), plain.tail.nan_to_num(7.0))
    # Both forms sum key_dim products twice, of numbers of magnitude 1 or less before the last sum.
    close = {"atol": 1e-5, "rtol": 1e-5}
    torch.testing.assert_close(ours.state, plain.state, **close, equal_nan=True)
    if dtype == torch.float32:
        torch.testing.assert_close(answer, wanted, atol=1e-5, rtol=1e-4)
    else:
        # Rounded in the same places: they differ only where a float32 error crosses a border of rounding.
        torch.testing.assert_close(answer.float(), wanted.float(), atol=1e-6, rtol=2.0**-6)
        assert (answer == wanted).double().mean() > 0.97


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES[:2])
def test_neither_neighbours_slots_nor_threads_change_a_bit(sizes: DeltaSizes, dtype: torch.dtype) -> None:
    layer = layer_of(sizes, dtype)
    slots = [4, 0, 2, 5]
    projected = projected_of(layer, 4, dtype)
    torch.set_num_threads(1)
    alone, answers = state_of(sizes, dtype, slots), []
    for row, slot in enumerate(slots):
        answers.append(run(layer, projected[row : row + 1], alone, [slot]))
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        together = state_of(sizes, dtype, slots)
        assert torch.equal(run(layer, projected, together, slots), torch.cat(answers))
        assert torch.equal(together.state.nan_to_num(7.0), alone.state.nan_to_num(7.0))
        assert torch.equal(together.tail.nan_to_num(7.0), alone.tail.nan_to_num(7.0))


def test_many_steps_stay_with_the_plain_form() -> None:
    sizes = SIZES[1]
    layer = layer_of(sizes, torch.float32)
    plain, ours = (state_of(sizes, torch.float32, []) for _ in range(2))
    for state in (plain, ours):
        for slot in range(SLOTS):
            state.claim(slot)
    chance = random.Random(3)
    for seed in range(60):
        slots = chance.sample(range(SLOTS), chance.randint(1, SLOTS))
        projected = noise(len(slots), sum(layer.parts), seed=seed)
        wanted = layer.mix(projected, plain, step_of(slots))
        torch.testing.assert_close(run(layer, projected, ours, slots), wanted, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(ours.state, plain.state, atol=1e-5, rtol=1e-5)


def test_the_layer_takes_them_and_counts_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = SIZES[0]
    layer = layer_of(sizes, torch.float32)
    calls = []
    for name in ("step", "prompt"):
        form = getattr(cpu_delta, name)
        record = partial(calls.append, name)
        monkeypatch.setattr(cpu_delta, name, lambda *given, f=form, r=record: (r(), f(*given))[1])
    state = state_of(sizes, torch.float32, [])
    for slot in (0, 1, 2):
        state.claim(slot)
    x = projected_of(layer, 6, torch.float32)
    layer.recur(x, state, batch_of([0, 2, 1], [3, 1, 2], [3, 1, 2]))
    assert calls == ["prompt", "step", "prompt"]
    layer.recur(x[:2], state, batch_of([0, 1], [1, 1], [4, 3]))
    assert calls[3:] == ["step"]
    assert [state.length(slot) for slot in (0, 1, 2)] == [4, 3, 1]
    state.begin_draft([2], 2)
    layer.recur(x[:2], state, batch_of([2], [2], [3]))
    assert len(calls) == 4


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_a_mixed_step_run_as_they_run_alone(dtype: torch.dtype) -> None:
    sizes = SIZES[1]
    layer = layer_of(sizes, dtype)
    slots, counts = [4, 0, 2], [5, 1, 33]
    together, alone = (state_of(sizes, dtype, slots) for _ in range(2))
    projected = projected_of(layer, sum(counts), dtype)
    answer = layer.recur(projected, together, batch_of(slots, counts, counts))
    parts = zip(slots, projected.split(counts), strict=True)
    wanted = [layer.recur(part, alone, batch_of([slot], [len(part)], [len(part)])) for slot, part in parts]
    assert torch.equal(answer, torch.cat(wanted))
    assert torch.equal(together.state.nan_to_num(7.0), alone.state.nan_to_num(7.0))
    assert torch.equal(together.tail.nan_to_num(7.0), alone.tail.nan_to_num(7.0))


@pytest.mark.parametrize("place", ["query", "value", "decay"])
def test_nan_stays_visible_and_in_its_row(place: str) -> None:
    sizes = SIZES[0]
    layer = layer_of(sizes, torch.float32)
    projected = projected_of(layer, 2, torch.float32)
    column = {"query": 0, "value": 2 * sizes.key_heads * sizes.key_dim, "decay": sum(layer.parts) - 2}[place]
    projected[0, column] = torch.nan
    answer = run(layer, projected, state_of(sizes, torch.float32, [1, 2]), [1, 2])
    assert answer[0].isnan().any()
    assert not answer[1].isnan().any()


def test_what_it_was_not_made_for_goes_to_torch() -> None:
    def fits(dtype: torch.dtype, kernel: int = 4, dim: int = 16, device: str = "cpu") -> bool:
        state = torch.empty(1, 1, dim, 16, device=device)
        return cpu_delta.fits(torch.empty(1, 1, dtype=dtype, device=device), state, kernel)

    assert all(fits(dtype) for dtype in DTYPES)
    assert not fits(torch.float16)
    assert not fits(torch.float32, kernel=9)
    assert not fits(torch.float32, dim=257)
    assert not fits(torch.float32, device="meta")


def test_what_does_not_fit_together_is_refused_before_anything_changes() -> None:
    sizes = SIZES[0]
    layer = layer_of(sizes, torch.float32)
    projected, slots = projected_of(layer, 2, torch.float32), torch.tensor([1, 2])
    state = state_of(sizes, torch.float32, [1, 2])
    kept = state.state.clone(), state.tail.clone()

    def step(**changes: Any) -> Callable[[], Tensor]:
        given = {"projected": projected, "state": state.state, "tail": state.tail, "slots": slots}
        weights = {name: changes.pop(name) for name in list(changes) if name not in given}
        return lambda: cpu_delta.step(
            weights=dataclasses.replace(layer.weights, **weights), **{**given, **changes}
        )

    for message, call in [
        ("projected", step(projected=projected[:, 1:])),
        ("projected", step(projected=projected[:1])),
        ("convolution", step(convolution=layer.convolution.double())),
        ("channels", step(convolution=layer.convolution[1:])),
        ("decay_log", step(decay_log=layer.decay_log[:1])),
        ("time_bias", step(time_bias=layer.time_bias.bfloat16())),
        ("norm", step(norm=layer.norm[:4])),
        ("tail", step(tail=state.tail[:, 1:])),
        ("state", step(state=state.state.double())),
        ("slots must", step(slots=slots.int())),
        ("not among", step(slots=torch.tensor([1, SLOTS]))),
        ("not among", step(slots=torch.tensor([-1, 1]))),
        ("no kernel", step(projected=projected.half())),
    ]:
        with pytest.raises(ValueError, match=message):
            call()
    assert torch.equal(state.state.nan_to_num(7.0), kept[0].nan_to_num(7.0))
    assert torch.equal(state.tail.nan_to_num(7.0), kept[1].nan_to_num(7.0))
