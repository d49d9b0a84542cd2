"""The linears of a decode step alone: native kernels, torch's and aten's, beside the machine's bandwidth.

    python -m benchmarks.linears --threads 1 2 --rows 1 2 4 8 16

Random weights of a released decoder's shapes, as many as no cache holds; contenders take turns. A step is all
layers and the head, scaled up from the layers that are measured. The floor is the step's bytes over the rate
at which this machine reads memory on huge pages: the best that was seen before and after every row count. The
demo's weights are so few that they stay in a cache, as they do when it is served.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.released import RELEASED
from kaminari.bench.timing import turns
from kaminari.model import huge_pages
from kaminari.model.kernels import aten_linear
from kaminari.model.kernels.cpu_linear import linear_kernel
from kaminari.model.kernels.native.build import native_kernels
from kaminari.model.linear import LinearKernel
from kaminari.model.quantized import Int4Weight, Int8Weight

CPU = torch.device("cpu")
READ_BYTES = 1 << 30
READS = 3
GROUP_SIZE = 64

Shape = tuple[int, int]  # outputs, columns


@dataclass(frozen=True)
class Decoder:
    """Its linears: runs of equal layers, each with how many there are and how many of them are measured."""

    layers: tuple[tuple[int, int, tuple[Shape, ...]], ...]
    head: Shape


QWEN_LAYER = ((4096, 2048), (2048, 2048), (12288, 2048), (2048, 6144))
HYBRID_MLP = ((7168, 1024), (1024, 3584))
DECODERS = {
    "demo": Decoder(((4, 4, ((512, 256), (256, 256), (1280, 256), (256, 640))),), (768, 256)),
    "qwen3-vl-2b": Decoder(((28, 4, QWEN_LAYER),), (RELEASED["qwen3-vl-2b"].vocab, 2048)),
    "minicpm-v-4.6": Decoder(
        (
            (18, 9, ((8224, 1024), (1024, 2048), *HYBRID_MLP)),
            (6, 3, ((5120, 1024), (1024, 2048), *HYBRID_MLP)),
        ),
        (RELEASED["minicpm-v-4.6"].vocab, 1024),
    ),
}


class TorchKernel:
    """`F.linear`, as plain modules call it."""

    def __init__(self, weight: Tensor) -> None:
        self.nbytes = weight.nbytes
        self._weight = weight

    def multiply(self, x: Tensor) -> Tensor:
        return F.linear(x, self._weight)


def matrix(shape: Shape) -> Tensor:
    return huge_pages.empty(shape, torch.bfloat16).normal_(0, 0.02)


def int8(shape: Shape) -> Int8Weight:
    return Int8Weight(torch.randint(-127, 128, shape, dtype=torch.int8), torch.rand(shape[0]))


def int4(shape: Shape) -> Int4Weight:
    outputs, columns = shape
    codes = torch.randint(0, 256, (outputs, columns // 2), dtype=torch.uint8)
    scales, zeros = (torch.rand(outputs, columns // GROUP_SIZE).bfloat16() for _ in range(2))
    return Int4Weight(codes, scales, zeros, columns, GROUP_SIZE)


def native(weight: Tensor | Int8Weight | Int4Weight) -> LinearKernel:
    kernel = linear_kernel(weight, CPU, torch.bfloat16)
    if kernel is None:
        sys.exit(f"there is no native kernel here: {native_kernels().word}")
    return kernel


def aten(weight: Int8Weight | Int4Weight) -> LinearKernel:
    return aten_linear.quantized_kernel(weight, torch.bfloat16)


CONTENDERS: dict[str, Callable[[Shape], LinearKernel]] = {
    "torch bf16": lambda shape: TorchKernel(matrix(shape)),
    "native bf16": lambda shape: native(matrix(shape)),
    "aten int8": lambda shape: aten(int8(shape)),
    "native int8": lambda shape: native(int8(shape)),
    "aten int4": lambda shape: aten(int4(shape)),
    "native int4": lambda shape: native(int4(shape)),
}


class Side:
    """One contender's weights of a decoder. `step` times a decode step's linears, scaled up to all layers."""

    def __init__(self, decoder: Decoder, make: Callable[[Shape], LinearKernel], bits: float) -> None:
        self.runs = [
            (count / some, [(make(shape), shape) for _ in range(some) for shape in shapes])
            for count, some, shapes in decoder.layers
        ]
        self.runs.append((1.0, [(make(decoder.head), decoder.head)]))
        weights = sum(share * out * width for share, run in self.runs for _, (out, width) in run)
        self.nbytes = weights * bits / 8

    def step(self, rows: dict[int, Tensor]) -> float:
        seconds = 0.0
        for share, run in self.runs:
            began = time.perf_counter()
            for kernel, (_, width) in run:
                kernel.multiply(rows[width])
            seconds += share * (time.perf_counter() - began)
        return seconds


def bits_of(name: str) -> float:
    """Bits per weight that a step must read: codes, scales and zeros."""
    return {"bf16": 16.0, "int8": 8.0, "int4": 4 + 32 / GROUP_SIZE}[name.split()[1]]


def read_rate(memory: Tensor) -> float:
    """Bytes per second of summing, the best of several tries."""
    seconds = []
    for _ in range(READS):
        began = time.perf_counter()
        memory.sum()
        seconds.append(time.perf_counter() - began)
    return memory.nbytes / min(seconds)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Measure the linears of a decode step.")
    parser.add_argument("--model", choices=sorted(DECODERS), default="qwen3-vl-2b")
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", nargs="+", choices=sorted(CONTENDERS), default=list(CONTENDERS))
    parser.add_argument("--output", type=Path, help="a JSON file for the figures")
    args = parser.parse_args(argv)
    console, figures = Console(highlight=False), []
    decoder = DECODERS[args.model]
    sides = {name: Side(decoder, CONTENDERS[name], bits_of(name)) for name in args.only}
    widths = {shape[1] for _, _, shapes in decoder.layers for shape in shapes} | {decoder.head[1]}
    memory = huge_pages.empty((READ_BYTES // 4,), torch.float32).fill_(1)
    for threads in args.threads:
        torch.set_num_threads(threads)
        rates = [read_rate(memory)]
        medians: dict[tuple[int, str], float] = {}
        for count in args.rows:
            rows = {width: torch.randn(count, width).bfloat16() for width in widths}
            for side in sides.values():
                side.step(rows)
            taken: dict[str, list[float]] = {name: [] for name in sides}
            for name in turns(list(sides), args.rounds):
                taken[name].append(sides[name].step(rows))
            medians |= {(count, name): statistics.median(seconds) for name, seconds in taken.items()}
            rates.append(read_rate(memory))
        rate = max(rates)
        title = f"{args.model}, {threads} threads, {native_kernels().word}, memory {rate / 1e9:.1f} GB/s"
        table = Table("rows", "kernels", "ms a step", "GB/s", "of the floor", "rows/s", title=title)
        for (count, name), median in medians.items():
            nbytes = sides[name].nbytes
            share = nbytes / rate / median
            cells = (median * 1e3, nbytes / median / 1e9, 100 * share, count / median)
            spelled = (f"{cell:.{digits}f}" for cell, digits in zip(cells, (1, 1, 0, 1), strict=True))
            table.add_row(str(count), name, *spelled)
            figures.append(
                {"threads": threads, "rows": count, "kernels": name, "seconds": median}
                | {"bytes": nbytes, "read_rate": rate, "of_floor": share}
            )
        console.print(table)
    if args.output is not None:
        args.output.write_text(json.dumps({"model": args.model, "figures": figures}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
