"""Where the time of a hybrid decoder goes: timers around the same parts of kaminari and of `transformers`.

The parts are leaves (none calls another), so what no timer saw is the rest: residuals, rotary, gates,
copies and Python.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch.nn.functional as F
from torch import nn
from transformers.models.qwen3_5 import modeling_qwen3_5 as reference

from benchmarks.clock import now
from kaminari.model.delta_state import GatedDeltaState
from kaminari.model.hybrid import delta_net, text
from kaminari.model.layers import ZeroCentredRMSNorm
from kaminari.model.linear import Linear

PROJECTIONS, SCAN, CONVOLUTION, ATTENTION, NORMS = (
    "projections",
    "scan",
    "convolution",
    "attention",
    "norms",
)
OURS = (
    (Linear, "forward", PROJECTIONS),
    (GatedDeltaState, "run_row", SCAN),
    (GatedDeltaState, "run_single_tokens", SCAN),
    (delta_net, "delta_inputs", SCAN),
    (delta_net, "short_convolution", CONVOLUTION),
    (text, "attend", ATTENTION),
    (ZeroCentredRMSNorm, "forward", NORMS),
    (delta_net.GatedDeltaNet, "_gated_norm", NORMS),
)
THEIRS = (
    (nn.Linear, "forward", PROJECTIONS),
    (reference, "torch_chunk_gated_delta_rule", SCAN),
    (reference, "torch_recurrent_gated_delta_rule", SCAN),
    (reference, "causal_conv1d_fn", CONVOLUTION),
    (reference, "causal_conv1d_update", CONVOLUTION),
    (F, "scaled_dot_product_attention", ATTENTION),
    (reference.Qwen3_5RMSNorm, "forward", NORMS),
    (reference.Qwen3_5RMSNormGated, "forward", NORMS),
)


@contextmanager
def timed(parts: tuple[tuple[Any, str, str], ...]) -> Iterator[Counter[str]]:
    """Seconds spent in each part while the context is open."""
    seconds: Counter[str] = Counter()
    with ExitStack() as stack:
        for owner, name, part in parts:
            stack.enter_context(patch.object(owner, name, _timer(getattr(owner, name), part, seconds)))
        yield seconds


def _timer(function: Callable[..., Any], part: str, seconds: Counter[str]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        start = now()
        try:
            return function(*args, **kwargs)
        finally:
            seconds[part] += now() - start

    return run
