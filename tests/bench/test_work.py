"""Bytes and operations of a step, held to the tensors that are there and to torch's own counter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kaminari.bench.options import Options
from kaminari.bench.result import Limits
from kaminari.bench.session import Session, random_prompt
from kaminari.bench.work import (
    STATE_PASSES,
    DecoderWork,
    count_operations,
    prompt_floor,
    step_floor,
)
from kaminari.model.kernels.native.build import allow_native
from kaminari.model.layers import Embedding
from kaminari.model.linear import Linear
from kaminari.model.vision_layers import attend
from tests.bench.harness import bench_of

WORK = DecoderWork(
    weight_bytes=1000,
    layer_weights=300,
    head_weights=100,
    attention_width=16,
    state_values=0,
    cache_per_token=8,
    state_bytes=0,
)


@pytest.mark.parametrize(
    "variant", ["tied-grouped", "untied-grouped", "qwen3_5", "qwen3_5-untied", "minicpm_v"]
)
def test_a_step_reads_every_weight_but_an_embedding_of_its_own(
    checkpoint: Callable[[str], Path], variant: str
) -> None:
    bench = bench_of(checkpoint(variant), Options())
    model: Any = bench.subject.loaded.model
    text = model.network.text
    parameters = dict(text.named_parameters())
    if text.own_head is not None:
        del parameters["embedding.weight"]
    weights = sum(parameter.numel() * 4 for parameter in parameters.values())
    # buffers hold rotary frequencies, a few bytes
    assert weights <= bench.subject.work.weight_bytes < weights * 1.01
    cache = model.new_cache(2, 10)
    work = bench.subject.work
    assert 2 * (10 * work.cache_per_token + work.state_bytes) == cache.nbytes()


@pytest.mark.parametrize("variant", ["tied-grouped", "untied-grouped"])
def test_the_operations_of_a_prompt_are_those_that_torch_counts(
    checkpoint: Callable[[str], Path], variant: str
) -> None:
    bench = bench_of(checkpoint(variant), Options())
    session = Session(bench.subject.loaded, 1, 160, 160)
    prompt = random_prompt(bench.subject.loaded, 90)
    model: Any = bench.subject.loaded.model
    allow_native(False)  # torch counts its own operators alone
    for part in model.network.text.modules():
        if isinstance(part, Linear | Embedding):
            part.kernel = None
    try:
        with torch.inference_mode():
            counted = count_operations(lambda: session.prefill(prompt, 1))
    finally:
        allow_native(True)
    work = bench.subject.work
    # torch counts the whole square of causal attention
    square = 4 * work.attention_width * (90 * 90 - 90 * 91 // 2)
    assert counted == work.prompt_operations(90) + square


def test_a_hybrids_linears_are_all_counted(checkpoint: Callable[[str], Path]) -> None:
    bench = bench_of(checkpoint("qwen3_5"), Options())
    model: Any = bench.subject.loaded.model
    linears = sum(
        parameter.numel()
        for name, parameter in model.network.text.layers.named_parameters()
        if parameter.dim() == 2 and "convolution" not in name
    )
    work = bench.subject.work
    assert work.layer_weights == linears
    assert work.state_values > 0
    one = work.prompt_operations(1)
    assert one == 2 * (linears + work.head_weights) + 4 * work.attention_width + (
        2 * STATE_PASSES * work.state_values
    )


def test_the_floor_is_the_slower_of_reading_and_multiplying() -> None:
    slow_memory = Limits(read_rate=1000.0, multiply_rate=1e12)
    assert step_floor(WORK, rows=2, context=10)(slow_memory) == pytest.approx((1000 + 2 * 10 * 8) / 1000)
    slow_units = Limits(read_rate=1e12, multiply_rate=1000.0)
    operations = 2 * (2 * 300 + 2 * 100 + 4 * 16 * 10)
    assert step_floor(WORK, rows=2, context=10)(slow_units) == pytest.approx(operations / 1000)
    assert prompt_floor(WORK, 3)(slow_units) == pytest.approx((3 * 600 + 4 * 16 * 6 + 200) / 1000)
    assert step_floor(WORK, 1, 1)(Limits()) is None


def test_vision_attention_is_counted_on_the_cpu() -> None:
    q = torch.randn(1, 2, 10, 8)
    with torch.inference_mode():
        counted = count_operations(lambda: torch.nn.functional.scaled_dot_product_attention(q, q, q))
    assert counted == 2 * 2 * 2 * 10 * 10 * 8


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_towers_attention_is_counted_whoever_computes_it(dtype: torch.dtype) -> None:
    q = torch.randn(1, 2, 40, 8, dtype=dtype)
    with torch.inference_mode():
        counted = count_operations(lambda: attend(torch.nn.Identity(), q, q, q, None))
    assert counted == 2 * 2 * 2 * 40 * 40 * 8
