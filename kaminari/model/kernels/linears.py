"""Which kernel multiplies by a weight, on any device: the one question that loading asks."""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import Tensor

from kaminari.model.kernels import cpu_linear
from kaminari.model.linear import LinearKernel
from kaminari.model.quantized import QuantizedWeight


def linear_kernel(
    weight: Tensor | QuantizedWeight, device: torch.device, dtype: torch.dtype
) -> LinearKernel | None:
    """The kernel for a weight, or None where plain torch is to multiply by it, or nothing here can.

    weight:  a matrix [out_features, in_features] of `dtype` on the device, or a quantized one on the CPU
    dtype:   of the activations

    Raises ValueError for a weight of impossible shapes or dtypes.
    """
    if device.type == "cpu":
        return cpu_linear.linear_kernel(weight, device, dtype)
    if isinstance(weight, Tensor) or not multiplies_quantized(device, dtype):
        return None
    # Imported where it is used: the import costs a second, and a CPU has no use for it.
    from kaminari.model.kernels.triton_linear import TritonLinear

    return TritonLinear(weight, device, dtype)


def multiplies_quantized(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether there are kernels for quantized weights on a device: on the CPU, and on CUDA with Triton."""
    if device.type == "cpu":
        return dtype in cpu_linear.DTYPES
    return device.type == "cuda" and find_spec("triton") is not None
