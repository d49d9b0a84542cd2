"""The C++ gated delta net for prompts against the token loop in float64 and the layer's plain form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kaminari.model.delta_state import GatedDeltaState
from kaminari.model.gated_delta_net import DeltaInputs, token_loop
from kaminari.model.hybrid.config import DeltaSizes
from kaminari.model.hybrid.delta_net import GatedDeltaNet
from kaminari.model.kernels import cpu_delta
from kaminari.model.kernels.native.build import native_kernels
from tests.model.kernels.test_cpu_attention import batch_of
from tests.model.kernels.test_cpu_delta import DTYPES, SIZES, SLOTS, layer_of, projected_of, state_of

pytestmark = pytest.mark.skipif(native_kernels().library is None, reason=native_kernels().reason)


def exact(
    layer: GatedDeltaNet, projected: Tensor, state: GatedDeltaState, slot: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Token after token in float64, and nothing rounded: outputs [T, heads * value_dim], state, tail."""
    sizes, kernel = layer.sizes, layer.sizes.kernel
    mixed, gate, beta, decay = torch.split(projected.double(), layer.parts, dim=-1)
    tokens, group = projected.shape[0], sizes.heads // sizes.key_heads
    window = torch.cat((state.tail[slot].double(), mixed))
    taps = layer.convolution.double()
    convolved = F.silu(sum(window[t : t + tokens] * taps[:, t] for t in range(kernel)))
    keys = sizes.key_heads * sizes.key_dim
    q, k, v = torch.split(convolved, [keys, keys, sizes.heads * sizes.value_dim], dim=-1)
    heads = []
    for each, scale in ((q, sizes.key_dim**-0.5), (k, 1.0)):
        each = each.view(tokens, sizes.key_heads, sizes.key_dim)
        normed = each / (each.square().sum(-1, keepdim=True) + 1e-6).sqrt() * scale
        heads.append(normed.repeat_interleave(group, dim=1))
    log = -layer.decay_log.double().exp() * F.softplus(decay + layer.time_bias.double())
    values = v.view(tokens, sizes.heads, sizes.value_dim)
    inputs = DeltaInputs(*heads, values, log, beta.sigmoid())
    after = state.state[slot].double()
    normed = normalize_double(token_loop(inputs, after), layer.norm_eps) * layer.norm.double()
    output = F.silu(gate.view(normed.shape)) * normed
    return output.flatten(1), after, window[tokens:]


def normalize_double(x: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("tokens", [1, 2, 3, 15, 16, 17, 63, 64, 65, 150])
def test_a_prompt_is_the_token_loop_s_and_the_plain_form_s(
    sizes: DeltaSizes, dtype: torch.dtype, tokens: int
) -> None:
    layer = layer_of(sizes, dtype)
    projected = projected_of(layer, tokens, dtype)
    plain, ours = state_of(sizes, dtype, [3]), state_of(sizes, dtype, [3])
    loop, after, tail = exact(layer, projected, plain, 3)
    wanted = layer.mix(projected, plain, batch_of([3], [tokens], [tokens]))
    answer = cpu_delta.prompt(projected, layer.weights, ours.state, ours.tail, 3)
    assert torch.equal(ours.tail[3], tail.to(dtype))
    assert torch.equal(ours.tail.nan_to_num(7.0), plain.tail.nan_to_num(7.0))
    assert torch.equal(ours.state.isnan(), plain.state.isnan())
    close = {"atol": 5e-6, "rtol": 1e-5}
    torch.testing.assert_close(ours.state[3], plain.state[3], **close)
    torch.testing.assert_close(ours.state[3].double(), after, **close)
    if dtype == torch.float32:
        torch.testing.assert_close(answer, wanted, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(answer.double(), loop, atol=1e-5, rtol=1e-4)
    else:
        # Rounded in the same places: a float32 error may cross a border in each of the four, by up to 2^-7.
        torch.testing.assert_close(answer.float(), wanted.float(), atol=1e-6, rtol=2.0**-5)
        assert (answer == wanted).double().mean() > 0.97


@pytest.mark.parametrize("sizes", SIZES[:3])
def test_every_split_of_a_prompt_gives_the_same(sizes: DeltaSizes) -> None:
    layer = layer_of(sizes, torch.float32)
    projected = projected_of(layer, 90, torch.float32)
    start = state_of(sizes, torch.float32, [2])
    wanted, after, tail = exact(layer, projected, start, 2)
    for border in range(1, 90):
        ours = state_of(sizes, torch.float32, [2])
        parts = (projected[:border], projected[border:])
        answer = torch.cat(
            [cpu_delta.prompt(each, layer.weights, ours.state, ours.tail, 2) for each in parts]
        )
        torch.testing.assert_close(answer.double(), wanted, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(ours.state[2].double(), after, atol=5e-6, rtol=1e-5)
        assert torch.equal(ours.tail[2], tail.float())


@pytest.mark.parametrize("dtype", DTYPES)
def test_neither_slot_nor_threads_change_a_bit_of_a_prompt(dtype: torch.dtype) -> None:
    sizes = SIZES[1]
    layer = layer_of(sizes, dtype)
    projected = projected_of(layer, 70, dtype)
    results = []
    for slot, count in ((0, 1), (5, 1), (0, 2), (5, 3)):
        torch.set_num_threads(count)
        state = state_of(sizes, dtype, [])
        state.claim(slot)
        answer = cpu_delta.prompt(projected, layer.weights, state.state, state.tail, slot)
        results.append((answer, state.state[slot], state.tail[slot]))
    for result in results[1:]:
        assert all(map(torch.equal, result, results[0]))


def test_a_strong_decay_overflows_nowhere_in_a_prompt() -> None:
    sizes = SIZES[0]
    layer = layer_of(sizes, torch.float32)
    layer.decay_log.fill_(4.0)
    projected = projected_of(layer, 64, torch.float32)
    state = state_of(sizes, torch.float32, [1])
    wanted, after, _ = exact(layer, projected, state, 1)
    answer = cpu_delta.prompt(projected, layer.weights, state.state, state.tail, 1)
    torch.testing.assert_close(answer.double(), wanted, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(state.state[1].double(), after, atol=5e-6, rtol=1e-5)


@pytest.mark.parametrize("place", ["query", "key", "value", "decay"])
def test_nan_in_a_prompt_stays_visible(place: str) -> None:
    sizes = SIZES[0]
    layer = layer_of(sizes, torch.float32)
    projected = projected_of(layer, 40, torch.float32)
    keys = sizes.key_heads * sizes.key_dim
    column = {"query": 0, "key": keys, "value": 2 * keys, "decay": sum(layer.parts) - 2}[place]
    projected[20, column] = torch.nan
    state = state_of(sizes, torch.float32, [1])
    answer = cpu_delta.prompt(projected, layer.weights, state.state, state.tail, 1)
    assert answer[20:].isnan().any()
    assert not answer[:16].isnan().any()
    assert place == "query" or state.state[1].isnan().any()


def test_what_does_not_fit_a_prompt_is_refused_before_anything_changes() -> None:
    sizes = SIZES[0]
    layer = layer_of(sizes, torch.float32)
    projected = projected_of(layer, 2, torch.float32)
    state = state_of(sizes, torch.float32, [1])
    kept = state.state.clone(), state.tail.clone()

    def prompt(**changes: Any) -> Callable[[], Tensor]:
        given = {"projected": projected, "state": state.state, "tail": state.tail, "slot": 1, **changes}
        return lambda: cpu_delta.prompt(weights=layer.weights, **given)

    for message, call in [
        ("projected", prompt(projected=projected[:, 1:])),
        ("tail", prompt(tail=state.tail.bfloat16())),
        ("state", prompt(state=state.state.transpose(2, 3))),
        ("not among", prompt(slot=SLOTS)),
        ("not among", prompt(slot=-1)),
        ("no kernel", prompt(projected=projected.half())),
    ]:
        with pytest.raises(ValueError, match=message):
            call()
    assert torch.equal(state.state.nan_to_num(7.0), kept[0].nan_to_num(7.0))
    assert torch.equal(state.tail.nan_to_num(7.0), kept[1].nan_to_num(7.0))
