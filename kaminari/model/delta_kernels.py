"""Which form of the chunked gated delta rule runs on a device: our own, or flash-linear-attention's kernels.

The kernels come with the extra `fla`. They multiply in half precision, so they serve bfloat16 models on CUDA
only; a float32 model keeps our own form, whose tokens are the reference's. Never guesses: an installed
package that cannot be imported is an error, and kernels are tried on the device before they are used.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from kaminari.model.gated_delta_net import DeltaInputs, chunk_rule, delta_inputs
from kaminari.model.kernels.fault import spell_fault

ChunkForm = Callable[[DeltaInputs, Tensor], Tensor]

TRIED_TOKENS, TRIED_HEADS, TRIED_DIM = 130, 4, 128
"""Of the row that kernels are tried with: two chunks and a part of one."""

TOLERANCE = 0.03
"""Of the norm of answers and state. In bfloat16 rounding takes 0.01."""


def chunk_form(device: torch.device, dtype: torch.dtype) -> ChunkForm:
    """What runs the many tokens of a row: `chunk_rule`, or a function of its signature."""
    if _wants_fla(device, dtype) and not _tried_fla(device, dtype):
        return fla_form(dtype)
    return chunk_rule


def cuda_word(device: torch.device, dtype: torch.dtype) -> str:
    """Whose kernels run prompts through a delta net on CUDA, for reports."""
    if not _wants_fla(device, dtype):
        return "torch for delta nets"
    fault = _tried_fla(device, dtype)
    return f"torch for delta nets (not fla: {fault})" if fault else "fla for delta nets"


def _wants_fla(device: torch.device, dtype: torch.dtype) -> bool:
    return device.type == "cuda" and dtype != torch.float32 and has_fla()


@cache
def _tried_fla(device: torch.device, dtype: torch.dtype) -> str:
    return try_form(fla_form(dtype), device)


@torch.inference_mode()
def try_form(form: ChunkForm, device: torch.device) -> str:
    """What is wrong with a form on a device, or nothing: its answers and the state that it leaves, beside
    `chunk_rule`'s."""
    generator = torch.Generator().manual_seed(1)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device)

    shape = (TRIED_TOKENS, TRIED_HEADS)
    queries, keys, values = (noise(*shape, TRIED_DIM) for _ in range(3))
    inputs = delta_inputs(queries, keys, values, -noise(*shape).abs(), noise(*shape).sigmoid())
    wanted_state = noise(TRIED_HEADS, TRIED_DIM, TRIED_DIM)
    state = wanted_state.clone()
    wanted = chunk_rule(inputs, wanted_state)
    try:
        found = form(inputs, state)
        errors = [
            ((ours - right).norm() / right.norm()).item()
            for ours, right in ((found, wanted), (state, wanted_state))
        ]
    except Exception as fault:  # whatever it is, the form is of no use here
        return spell_fault(fault)
    worst = max(errors, key=lambda error: error if error == error else float("inf"))
    return "" if worst <= TOLERANCE else f"it is off by {worst:.2g} of the answer"


def has_fla() -> bool:
    """Whether flash-linear-attention is installed; it is not imported for this."""
    return importlib.util.find_spec("fla") is not None


def fla_form(dtype: torch.dtype) -> ChunkForm:
    """`chunk_rule` by `fla.ops.gated_delta_rule.chunk_gated_delta_rule`, with products in `dtype`.

    Raises ImportError where the package is broken.
    """
    kernel = importlib.import_module("fla.ops.gated_delta_rule").chunk_gated_delta_rule

    def run(inputs: DeltaInputs, state: Tensor) -> Tensor:
        # [1, T, heads, dim] and a state [1, heads, key_dim, value_dim]; queries are scaled already.
        outputs, final = kernel(
            q=inputs.queries[None].to(dtype),
            k=inputs.keys[None].to(dtype),
            v=inputs.values[None].to(dtype),
            g=inputs.decay[None],
            beta=inputs.beta[None],
            scale=1.0,
            initial_state=state[None],
            output_final_state=True,
        )
        state.copy_(final[0])
        result: Tensor = outputs[0].float()
        return result

    return run
