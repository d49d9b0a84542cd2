"""Where the time of a hybrid decoder goes: timers around the same parts of kaminari and of `transformers`.

A part within a part counts as the outer one, such as the projections of the vision tower, so what no timer
saw is the rest: residuals, rotary, gates, copies and Python. Where kaminari's own kernels run, its scan holds
the convolution and the gated norm, and its norms the rotation and the sum before a layer's second norm.
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
from benchmarks.sides import Ours, Theirs
from kaminari.model.delta_state import GatedDeltaState
from kaminari.model.hybrid import delta_net, text
from kaminari.model.kernels import cpu_delta
from kaminari.model.layers import ZeroCentredRMSNorm
from kaminari.model.linear import Linear

PROJECTIONS, SCAN, CONVOLUTION, ATTENTION, NORMS, VISION = (
    "projections",
    "scan",
    "convolution",
    "attention",
    "norms",
    "vision",
)
OURS = (
    (Linear, "forward", PROJECTIONS),
    (cpu_delta, "prompt", SCAN),
    (cpu_delta, "step", SCAN),
    (GatedDeltaState, "run_row", SCAN),
    (GatedDeltaState, "run_single_tokens", SCAN),
    (delta_net, "delta_inputs", SCAN),
    (delta_net, "short_convolution", CONVOLUTION),
    (text, "attend", ATTENTION),
    (ZeroCentredRMSNorm, "forward", NORMS),
    (ZeroCentredRMSNorm, "behind", NORMS),
    (ZeroCentredRMSNorm, "turned", NORMS),
    (delta_net.GatedDeltaNet, "_gated_norm", NORMS),
    (Ours, "encode", VISION),
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
    (Theirs, "encode", VISION),
)


@contextmanager
def timed(parts: tuple[tuple[Any, str, str], ...]) -> Iterator[Counter[str]]:
    """Seconds spent in each part while the context is open; every part is named, also with 0."""
    clock = _PartClock(Counter({part: 0 for _, _, part in parts}))
    with ExitStack() as stack:
        for owner, name, part in parts:
            stack.enter_context(patch.object(owner, name, clock.time(getattr(owner, name), part)))
        yield clock.seconds


class _PartClock:
    """Adds up the seconds of the outermost timed function."""

    def __init__(self, seconds: Counter[str]) -> None:
        self.seconds = seconds
        self._within = False

    def time(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            if self._within:
                return function(*args, **kwargs)
            self._within = True
            start = now()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds[part] += now() - start
                self._within = False

        return run
