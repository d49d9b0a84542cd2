"""Which form of the chunked gated delta rule runs on a device: our own, or flash-linear-attention's kernels.

The kernels come with the extra `fla`. They multiply in half precision, so they serve bfloat16 models on CUDA
only; a float32 model keeps our own form, whose tokens are the reference's. Never guesses: an installed
package that cannot be imported is an error.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable

import torch
from torch import Tensor

from kaminari.model.gated_delta_net import DeltaInputs, chunk_rule

ChunkForm = Callable[[DeltaInputs, Tensor], Tensor]


def chunk_form(device: torch.device, dtype: torch.dtype) -> ChunkForm:
    """What runs the many tokens of a row: `chunk_rule`, or a function of its signature."""
    if device.type == "cuda" and dtype != torch.float32 and has_fla():
        return fla_form(dtype)
    return chunk_rule


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
