"""Attention on a CPU: the native kernels beside torch's own attention, in turns in one process.

    python -m benchmarks.attention --heads 16 --kv-heads 8 --head-dim 128 --layers 8 --threads 1 2

Milliseconds, medians: a decode step's attention in so many layers, each with a cache of its own, and one
layer's attention from a prompt's last chunk. GB/s are a step's keys and values, GFLOP/s a chunk's products.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks import clock
from kaminari.model.attention import attend_rows
from kaminari.model.batch import RowLengths, StepBatch
from kaminari.model.cache import AttentionKV
from kaminari.model.kernels import cpu_attention
from kaminari.model.kernels.native.build import native_kernels

CPU = torch.device("cpu")


def main() -> None:
    parser = argparse.ArgumentParser(description="Native attention beside torch's.")
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--kv-heads", type=int, default=4)
    parser.add_argument("--head-dim", type=int, default=32)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--contexts", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--prompts", type=int, nargs="+", default=[512, 2048, 10240])
    parser.add_argument("--chunk", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    dtype = getattr(torch, args.dtype)
    print(f"{args.heads} heads of {args.head_dim} over {args.kv_heads}, {dtype}, {native_kernels().word}")
    for threads in args.threads:
        torch.set_num_threads(threads)
        for context in args.contexts:
            for rows in args.rows:
                layers = [_layer(args, rows, context, dtype) for _ in range(args.layers)]
                size = 2 * rows * args.kv_heads * context * args.head_dim * dtype.itemsize * args.layers
                milliseconds = in_turns(_decode(args, layers, rows, context, dtype), args.rounds)
                _report(f"{threads} threads, {rows} rows of {context}", milliseconds, size, "GB/s")
        for length in args.prompts:
            tokens = min(args.chunk, length)
            products = tokens * (length - tokens) + tokens * (tokens + 1) // 2
            work = 4 * args.heads * args.head_dim * products
            milliseconds = in_turns(_prompt(args, tokens, length, dtype), args.rounds)
            _report(f"{threads} threads, {tokens} tokens up to {length}", milliseconds, work, "GFLOP/s")


def in_turns(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median milliseconds of each call, after one of each that is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, call in calls.items():
            began = clock.now()
            call()
            if number:
                seconds[name].append(clock.now() - began)
    return {name: statistics.median(each) * 1e3 for name, each in seconds.items()}


def _layer(args: argparse.Namespace, rows: int, context: int, dtype: torch.dtype) -> AttentionKV:
    layer = AttentionKV(rows, args.kv_heads, context, args.head_dim, device=CPU, dtype=dtype)
    layer.keys.normal_()
    layer.values.normal_()
    return layer


def _decode(
    args: argparse.Namespace, layers: list[AttentionKV], rows: int, context: int, dtype: torch.dtype
) -> dict[str, Callable[[], object]]:
    qkv = torch.randn(rows, args.heads + 2 * args.kv_heads, args.head_dim).to(dtype)
    q, k, v = qkv.split((args.heads, args.kv_heads, args.kv_heads), dim=1)
    batch = StepBatch(
        tokens=torch.zeros(rows, dtype=torch.int64),
        positions=torch.zeros(3, rows, dtype=torch.int64),
        slots=torch.arange(rows),
        q_lens=torch.ones(rows, dtype=torch.int32),
        kv_lens=torch.full((rows,), context, dtype=torch.int32),
        logit_rows=torch.zeros(0, dtype=torch.int64),
        host=RowLengths(tuple(range(rows)), (1,) * rows, (context,) * rows),
    )

    def native() -> None:
        for layer in layers:
            cpu_attention.attend(q, k, v, layer.keys, layer.values, batch.slots, batch.q_lens, batch.kv_lens)

    def torch_s() -> None:
        for layer in layers:
            attend_rows(q, k, v, layer, batch)

    return {"torch": torch_s, "native": native}


def _prompt(
    args: argparse.Namespace, tokens: int, length: int, dtype: torch.dtype
) -> dict[str, Callable[[], Tensor]]:
    q = torch.randn(tokens, args.heads, args.head_dim).to(dtype)
    keys, values = (torch.randn(args.kv_heads, length, args.head_dim).to(dtype) for _ in range(2))
    group = args.heads // args.kv_heads
    seen = torch.ones(tokens, length, dtype=torch.bool).tril(length - tokens)

    def torch_s() -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(
            q.transpose(0, 1)[None],
            keys.repeat_interleave(group, 0)[None],
            values.repeat_interleave(group, 0)[None],
            attn_mask=seen,
        )

    return {"torch": torch_s, "native": lambda: cpu_attention.attend_prompt(q, keys, values)}


def _report(what: str, milliseconds: dict[str, float], amount: int, unit: str) -> None:
    sides = (f"{name} {each:.3f} ({amount / each / 1e6:.0f} {unit})" for name, each in milliseconds.items())
    print(f"{what}: {', '.join(sides)}", flush=True)


if __name__ == "__main__":
    main()
