"""Builds every Triton kernel for cards that are not here, and prints the shared memory that each needs.

A program of its own, outside of the package of tests, which has Triton interpret kernels.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from kaminari.model.kernels import split_kv, triton_linear

NAMES = {torch.bfloat16: "bf16", torch.float32: "fp32"}
# compute capability of the least card that is served, and of the one that device_check was written for
SMALL, LARGE = 86, 90
# heads per key-value head, head_dim and query tokens: Qwen3-VL, the hybrids, and the most that is taken
QWEN, HYBRID, MOST = (2, 128, 1), (4, 256, 1), (8, 256, split_kv.MAX_QUERIES)
ATTENTION = (
    *((SMALL, dtype, heads) for dtype in NAMES for heads in (QWEN, HYBRID, MOST)),
    (LARGE, torch.bfloat16, QWEN),
    (LARGE, torch.bfloat16, MOST),
    (LARGE, torch.float32, HYBRID),
)
LINEARS = ((SMALL, torch.float32), (LARGE, torch.bfloat16))


def shared_memory(kernel: Any, types: Mapping[str, str], constants: Mapping[str, int], card: int) -> int:
    """Build one kernel as a launch would, whose pointers and strides are multiples of 16."""
    stages = constants.get("num_stages")
    names = kernel.arg_names
    signature = {name: types.get(name, "constexpr" if name in constants else "i32") for name in names}
    divisible = [
        (number,)
        for number, name in enumerate(names)
        if signature[name] == "i32" and name not in ("queries", "segments", "rows")
    ]
    pointers = [(number,) for number, name in enumerate(names) if signature[name].startswith("*")]
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in constants.items() if name in names},
        attrs={place: [["tt.divisibility", 16]] for place in (*pointers, *divisible)},
    )
    options = None if stages is None else {"num_stages": stages}
    built = compile(source, target=GPUTarget("cuda", card, 32), options=options)
    return int(built.metadata.shared)


def attention(card: int, dtype: torch.dtype, heads: tuple[int, int, int]) -> int:
    group, head_dim, queries = heads
    name = NAMES[dtype]
    tile, stages = split_kv.tiling(head_dim * dtype.itemsize)
    lanes = split_kv._lanes(queries, group)
    sizes = {"GROUP": group, "LANES": lanes, "HEAD_DIM": head_dim, "SEGMENT_KEYS": split_kv.SEGMENT}
    cache = {"keys": f"*{name}", "values": f"*{name}", "slots": "*i64", "kv_lens": "*i32"}
    partial = {"partial": "*fp32", "maxima": "*fp32", "sums": "*fp32"}
    return max(
        shared_memory(
            split_kv._segment_kernel,
            {"q": f"*{name}", "scale": "fp32", **cache, **partial},
            {**sizes, "TILE": tile, "num_stages": stages},
            card,
        ),
        shared_memory(
            split_kv._merge_kernel, {"output": f"*{name}", "kv_lens": "*i32", **partial}, sizes, card
        ),
        shared_memory(
            split_kv._write_kernel,
            {"k": f"*{name}", "v": f"*{name}", **cache},
            {"HEAD_DIM": head_dim},
            card,
        ),
    )


def linear(card: int, dtype: torch.dtype) -> int:
    name = NAMES[dtype]
    rows = {"ROWS": triton_linear.KERNEL_ROWS, "OUTPUTS": triton_linear._OUTPUTS}
    ends = {"x": f"*{name}", "out": f"*{name}"}
    needed = [
        shared_memory(
            triton_linear._int8_kernel,
            {"codes": "*i8", "scales": "*fp32", **ends},
            {**rows, "COLUMNS": triton_linear._COLUMNS},
            card,
        )
    ]
    for group in (32, 64, 128):
        needed.append(
            shared_memory(
                triton_linear._int4_kernel,
                {"codes": "*u8", "scales": "*bf16", "zeros": "*bf16", **ends},
                {**rows, "GROUP": group},
                card,
            )
        )
    return max(needed)


def main() -> None:
    found = [(card, f"linears, {dtype}", linear(card, dtype)) for card, dtype in LINEARS]
    found += [
        (card, f"attention, {dtype}, {heads}", attention(card, dtype, heads))
        for card, dtype, heads in ATTENTION
    ]
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
