"""flash-linear-attention: when it is chosen, and what it is given. The package itself is a stand-in here."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.qwen3_5.modeling_qwen3_5 import torch_chunk_gated_delta_rule

from kaminari.model import delta_kernels
from kaminari.model.delta_kernels import chunk_form, cuda_word, fla_form, try_form
from kaminari.model.delta_state import GatedDeltaState
from kaminari.model.gated_delta_net import DeltaInputs, chunk_rule, delta_inputs

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A module `fla` whose function keeps its arguments, and computes with the reference's in float32."""
    seen: list[dict[str, Any]] = []

    def kernel(**arguments: Any) -> tuple[Tensor, Tensor]:
        seen.append(arguments)
        wide = {name: arguments[name].float() for name in ("q", "k", "v", "g", "beta")}
        scale = arguments["scale"] * wide["q"].shape[-1] ** 0.5  # the reference's own scale is undone
        output, state = torch_chunk_gated_delta_rule(
            wide["q"] * scale,
            wide["k"],
            wide["v"],
            g=wide["g"],
            beta=wide["beta"],
            initial_state=arguments["initial_state"],
            output_final_state=arguments["output_final_state"],
        )
        return output.to(arguments["q"].dtype), state

    module = ModuleType("fla.ops.gated_delta_rule")
    module.chunk_gated_delta_rule = kernel  # type: ignore[attr-defined]
    for name in ("fla", "fla.ops"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(delta_kernels, "has_fla", lambda: True)
    return seen


@pytest.fixture(autouse=True)
def _untried(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels for a card are tried on the CPU, and anew in every test."""
    monkeypatch.setattr(delta_kernels, "try_form", lambda form, device: try_form(form, CPU))
    delta_kernels._tried_fla.cache_clear()
    yield
    delta_kernels._tried_fla.cache_clear()


@pytest.mark.usefixtures("calls")
def test_it_is_chosen_on_cuda_for_narrow_models_only() -> None:
    assert chunk_form(CUDA, torch.bfloat16) is not chunk_rule
    assert chunk_form(CUDA, torch.float32) is chunk_rule
    assert chunk_form(CPU, torch.bfloat16) is chunk_rule


@pytest.mark.usefixtures("calls")
def test_reports_say_what_runs_on_a_card() -> None:
    assert cuda_word(CUDA, torch.bfloat16) == "fla for delta nets"
    assert cuda_word(CUDA, torch.float32) == "torch for delta nets"


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        ("raises", "^an illegal memory access was encountered$"),
        ("forgets the state", "^it is off by [0-9.]+ of the answer$"),
        ("returns NaN", "^it is off by nan of the answer$"),
        ("", "^$"),
    ],
)
def test_kernels_that_are_wrong_on_a_card_are_passed_over_and_said(
    harm: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def form(inputs: DeltaInputs, state: Tensor) -> Tensor:
        if harm == "raises":
            raise RuntimeError("an illegal memory access was encountered\nand more")
        if harm == "forgets the state":
            return chunk_rule(inputs, state.clone())
        answer = chunk_rule(inputs, state)
        return answer * torch.nan if harm == "returns NaN" else answer

    fault = try_form(form, CPU)
    assert re.search(reason, fault)
    monkeypatch.setattr(delta_kernels, "has_fla", lambda: True)
    monkeypatch.setattr(delta_kernels, "fla_form", lambda dtype: form)
    assert (chunk_form(CUDA, torch.bfloat16) is form) == (not harm)
    if harm:
        assert cuda_word(CUDA, torch.bfloat16) == f"torch for delta nets (not fla: {fault})"


def test_without_the_package_our_own_form_runs() -> None:
    if importlib.util.find_spec("fla") is None:
        assert not delta_kernels.has_fla()
        assert chunk_form(CUDA, torch.bfloat16) is chunk_rule


def test_a_broken_package_is_no_silent_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_kernels, "has_fla", lambda: True)
    monkeypatch.setitem(sys.modules, "fla.ops.gated_delta_rule", None)
    with pytest.raises(ImportError):
        chunk_form(CUDA, torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_arguments_and_results_are_laid_out_as_ours(dtype: torch.dtype, calls: list[dict[str, Any]]) -> None:
    generator = torch.Generator().manual_seed(1)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    inputs = delta_inputs(
        noise(70, 2, 8), noise(70, 2, 8), noise(70, 4, 6), -noise(70, 4).abs(), noise(70, 4)
    )
    start = noise(4, 8, 6)
    wanted, after = start.clone(), start.clone()
    output = chunk_rule(inputs, wanted)
    close = {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 0.3, "rtol": 0.1}
    torch.testing.assert_close(fla_form(dtype)(inputs, after), output, **close)
    torch.testing.assert_close(after, wanted, **close)
    (given,) = calls
    assert given["q"].shape == given["k"].shape == (1, 70, 4, 8)
    assert given["v"].shape == (1, 70, 4, 6)
    assert given["g"].shape == given["beta"].shape == (1, 70, 4)
    assert given["initial_state"].shape == (1, 4, 8, 6)
    assert given["q"].dtype == given["v"].dtype == dtype
    assert given["initial_state"].dtype == given["g"].dtype == torch.float32


def test_a_slots_state_takes_the_chosen_form(monkeypatch: pytest.MonkeyPatch) -> None:
    state = GatedDeltaState(1, 4, 8, 6, channels=40, kernel=4, device=CPU, dtype=torch.float32)
    ran: list[int] = []
    monkeypatch.setattr(state, "_chunk_form", lambda inputs, _: ran.append(inputs.tokens) or inputs.values)
    noise = torch.zeros(5, 4, 8)
    inputs = delta_inputs(noise, noise, torch.zeros(5, 4, 6), torch.zeros(5, 4), torch.zeros(5, 4))
    state.run_row(0, inputs, torch.zeros(1, 5, 40))
    assert ran == [5]
    assert state.length(0) == 5
