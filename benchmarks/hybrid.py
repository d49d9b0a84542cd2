"""Measure the hybrid decoder against `transformers`: prefill tiers, scan, decode, a picture; one process.

    python -m benchmarks.make_checkpoint minicpm-v-4.6 ../random-minicpm-v
    python -m benchmarks.hybrid ../random-minicpm-v --prefill 2048 10240 --json prefill.json
    python -m benchmarks.hybrid ../random-minicpm-v --scan --decode --picture

Both sides take turns within the run, in the same dtype (bfloat16 where the service would choose it) and with
the same threads; medians and ratios are printed. A tier is also held against its FLOPs at the rate of this
machine's own matrix products. `transformers` computes logits for every prompt token of MiniCPM-V; the column
"as shipped" is with them, all else without.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from PIL import Image
from rich.console import Console
from rich.table import Table
from transformers.models.qwen3_5.modeling_qwen3_5 import (
    torch_chunk_gated_delta_rule,
    torch_recurrent_gated_delta_rule,
)

from benchmarks.components import OURS, THEIRS, timed
from benchmarks.sides import CPU, Ours, Theirs
from kaminari.engine.placement import multiplies_bfloat16
from kaminari.model.family import PictureBudget, find_family
from kaminari.model.gated_delta_net import CHUNK, chunk_rule, delta_inputs, recurrent_step
from kaminari.model.hybrid.config import HybridSizes

Results = dict[str, Any]
SCAN_TOKENS, SCAN_ROUNDS = 1024, 5
DECODE_PROMPT, DECODE_STEPS = 512, 24
PICTURE_SIDE, PICTURE_ROUNDS = 448, 5


def main(argv: Sequence[str]) -> int:
    args = _parse(argv)
    torch.set_num_threads(args.threads)
    console = Console()
    dtype = torch.bfloat16 if args.dtype == "bfloat16" else torch.float32
    console.print(f"{args.dtype}, {args.threads} threads, {_cpu_model()}")
    results: Results = {"machine": describe_machine(args), "command": " ".join(argv[1:])}
    with torch.inference_mode():
        ours = Ours(args.folder, dtype, max([*args.prefill, DECODE_PROMPT]) + 64, args.chunk)
        theirs = Theirs(args.folder, dtype)
        ours.prefill(_prompt(64)), theirs.prefill(_prompt(64))
        if args.prefill:
            results["prefill"] = measure_prefill(ours, theirs, args, console)
        if args.components:
            results["components"] = measure_components(ours, theirs, args.components, console)
        if args.scan:
            results["scan"] = measure_scan(ours.model._sizes, console)
        if args.decode:
            results["decode"] = measure_decode(ours, theirs, console)
        if args.picture:
            results["picture"] = measure_picture(ours, theirs, args.folder, console)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0


def measure_prefill(ours: Ours, theirs: Theirs, args: argparse.Namespace, console: Console) -> Results:
    """Tokens per second of each tier, in turns; the shortest tier three times."""
    sizes: HybridSizes = ours.model._sizes
    rate = product_rate(sizes, next(ours.model.network.text.parameters()).dtype)
    tiers: Results = {}
    table = Table(
        "tokens", "kaminari", "transformers", "ratio", "as shipped", "of its FLOPs", title="Prefill, tokens/s"
    )
    for tokens in sorted(args.prefill):
        ids = _prompt(tokens)
        rounds = args.rounds if tokens == min(args.prefill) else 1
        sides: list[Callable[[], int]] = [
            lambda ids=ids: ours.prefill(ids),
            lambda ids=ids: theirs.prefill(ids),
        ]  # type: ignore[misc]
        if args.as_shipped and tokens == min(args.prefill):
            sides.append(lambda ids=ids: theirs.prefill(ids, every_logit=True))  # type: ignore[misc]
        with console.status(f"prefill of {tokens}"):
            seconds = in_turns(sides, rounds)
        gc.collect()
        floor = prefill_flops(sizes, tokens) / rate
        tiers[str(tokens)] = {
            "kaminari": tokens / seconds[0],
            "transformers": tokens / seconds[1],
            "ratio": seconds[1] / seconds[0],
            "as_shipped": tokens / seconds[2] if len(seconds) > 2 else None,
            "predicted": tokens / floor,
        }
        shipped = f"{tokens / seconds[2]:.0f} ({seconds[2] / seconds[0]:.2f}x)" if len(seconds) > 2 else ""
        table.add_row(
            str(tokens),
            f"{tokens / seconds[0]:.0f}",
            f"{tokens / seconds[1]:.0f}",
            f"{seconds[1] / seconds[0]:.2f}x",
            shipped,
            f"{floor / seconds[0]:.0%} of {tokens / floor:.0f}",
        )
    console.print(table)
    speeds = [tiers[str(tokens)]["kaminari"] for tokens in sorted(args.prefill)]
    console.print(
        f"longest against shortest: {speeds[-1] / speeds[0]:.2f}; products run at {rate / 1e9:.0f} GFLOP/s"
    )
    return {"tiers": tiers, "longest_against_shortest": speeds[-1] / speeds[0], "product_flops": rate}


def measure_components(ours: Ours, theirs: Theirs, tokens: int, console: Console) -> Results:
    """Seconds of each part of one prefill, and of the rest."""
    ids = _prompt(tokens)
    table = Table(
        "part", "kaminari s", "share", "transformers s", "share", title=f"Parts of a prefill of {tokens}"
    )
    parts: Results = {}
    for name, side, owners in (("kaminari", ours, OURS), ("transformers", theirs, THEIRS)):
        with console.status(f"parts of {name}"), timed(owners) as seconds:
            start = time.perf_counter()
            side.prefill(ids)
            whole = time.perf_counter() - start
        parts[name] = {**seconds, "rest": whole - sum(seconds.values()), "whole": whole}
    for part in parts["kaminari"]:
        cells = [(parts[name][part], parts[name]["whole"]) for name in parts]
        table.add_row(part, *(cell for one, whole in cells for cell in (f"{one:.2f}", f"{one / whole:.0%}")))
    console.print(table)
    return {"tokens": tokens, **parts}


def measure_scan(sizes: HybridSizes, console: Console) -> Results:
    """One layer's recurrence over the same tokens: chunked, token by token, and the reference's forms."""
    delta = sizes.delta
    generator = torch.Generator().manual_seed(1)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(SCAN_TOKENS, *shape, generator=generator)

    queries, keys = noise(delta.key_heads, delta.key_dim), noise(delta.key_heads, delta.key_dim)
    values, decay = noise(delta.heads, delta.value_dim), -0.1 * noise(delta.heads).abs()
    beta = noise(delta.heads).sigmoid()

    def state() -> torch.Tensor:
        return torch.zeros(delta.heads, delta.key_dim, delta.value_dim)

    def one_token_at_a_time() -> None:
        inputs, states = delta_inputs(queries, keys, values, decay, beta), state()[None]
        for token in range(SCAN_TOKENS):
            recurrent_step(inputs[token : token + 1], states)

    def theirs(form: Callable[..., Any]) -> Callable[[], Any]:
        batch = [each[None] for each in (queries, keys, values)]
        options = {"g": decay[None], "beta": beta[None], "output_final_state": True}
        return lambda: form(*batch, use_qk_l2norm_in_kernel=True, **options)

    forms: dict[str, Callable[[], Any]] = {
        "chunked": lambda: chunk_rule(delta_inputs(queries, keys, values, decay, beta), state()),
        "one token at a time": one_token_at_a_time,
        "transformers, chunked": theirs(torch_chunk_gated_delta_rule),
        "transformers, one token at a time": theirs(torch_recurrent_gated_delta_rule),
    }
    with console.status("scan"):
        seconds = dict(zip(forms, in_turns(list(forms.values()), SCAN_ROUNDS), strict=True))
    table = Table(
        "form", "ms", "chunked is faster by", title=f"Scan of {SCAN_TOKENS} tokens, one layer, float32"
    )
    for form, one in seconds.items():
        table.add_row(form, f"{one * 1e3:.1f}", f"{one / seconds['chunked']:.2f}x")
    console.print(table)
    return {"tokens": SCAN_TOKENS, "seconds": seconds}


def measure_decode(ours: Ours, theirs: Theirs, console: Console) -> Results:
    """Milliseconds per token at batch 1 behind a prompt, the sides taking turns token by token."""
    tokens = [ours.prefill(_prompt(DECODE_PROMPT)), theirs.prefill(_prompt(DECODE_PROMPT))]

    def step(side: Ours | Theirs, place: int) -> Callable[[], None]:
        def run() -> None:
            tokens[place] = side.decode(tokens[place])

        return run

    with console.status("decode"):
        seconds = in_turns([step(ours, 0), step(theirs, 1)], DECODE_STEPS)
    weights = sum(each.numel() * each.element_size() for each in ours.model.network.text.parameters())
    table = Table(
        "", "kaminari", "transformers", "ratio", title=f"Decode at batch 1 behind {DECODE_PROMPT} tokens"
    )
    table.add_row("ms per token", *(f"{one * 1e3:.0f}" for one in seconds), f"{seconds[1] / seconds[0]:.2f}x")
    table.add_row("GB/s of weights", *(f"{weights / one / 1e9:.1f}" for one in seconds), "")
    console.print(table)
    return {
        "kaminari_ms": seconds[0] * 1e3,
        "transformers_ms": seconds[1] * 1e3,
        "ratio": seconds[1] / seconds[0],
        "weight_bytes": weights,
    }


def measure_picture(ours: Ours, theirs: Theirs, folder: Path, console: Console) -> Results:
    """Milliseconds of the vision half for one square picture."""
    pixels = np.random.default_rng(0).integers(0, 256, (PICTURE_SIDE, PICTURE_SIDE, 3), dtype=np.uint8)
    prompt_format = find_family(folder).prompt_format(folder)
    picture = prompt_format.prepare_picture(Image.fromarray(pixels), PictureBudget(1 << 20))
    mine, golden = ours.encode(picture).float(), theirs.encode(picture).float()
    difference = ((mine - golden).norm() / golden.norm()).item()
    with console.status("picture"):
        seconds = in_turns([lambda: ours.encode(picture), lambda: theirs.encode(picture)], PICTURE_ROUNDS)
    table = Table(
        "", "kaminari", "transformers", "ratio", title=f"A picture of {PICTURE_SIDE} x {PICTURE_SIDE}"
    )
    table.add_row("ms", *(f"{one * 1e3:.0f}" for one in seconds), f"{seconds[1] / seconds[0]:.2f}x")
    console.print(table, f"rows differ by {difference:.1e} of their size")
    return {
        "tokens": picture.tokens,
        "kaminari_ms": seconds[0] * 1e3,
        "transformers_ms": seconds[1] * 1e3,
        "ratio": seconds[1] / seconds[0],
    }


def in_turns(sides: Sequence[Callable[[], Any]], rounds: int) -> list[float]:
    """Median seconds of each side, after the sides took turns for so many rounds."""
    seconds: list[list[float]] = [[] for _ in sides]
    for _ in range(rounds):
        for place, side in enumerate(sides):
            start = time.perf_counter()
            side()
            seconds[place].append(time.perf_counter() - start)
    return [statistics.median(each) for each in seconds]


def prefill_flops(sizes: HybridSizes, tokens: int) -> float:
    """Multiplications and additions of a prompt: projections, causal attention, chunked scan, last logits."""
    delta, hidden = sizes.delta, sizes.hidden
    values = delta.heads * delta.value_dim
    attention = hidden * sizes.head_dim * (3 * sizes.heads + 2 * sizes.kv_heads)
    mixing = hidden * (delta.channels + 2 * delta.heads + 2 * values)
    mlp = 3 * hidden * sizes.intermediate
    layers = [attention + mlp if attends else mixing + mlp for attends in sizes.attends]
    attended = sum(sizes.attends) * 4 * sizes.heads * sizes.head_dim * tokens * (tokens + 1) / 2
    per_token = 2 * CHUNK * (2 * delta.key_dim + 2 * delta.value_dim) + 6 * delta.key_dim * delta.value_dim
    scanned = (len(layers) - sum(sizes.attends)) * delta.heads * per_token * tokens
    return 2.0 * sum(layers) * tokens + attended + scanned + 2 * hidden * sizes.vocab


def product_rate(sizes: HybridSizes, dtype: torch.dtype) -> float:
    """FLOP/s of the decoder's widest projection over a chunk, the best of five."""
    x = torch.randn(512, sizes.hidden).to(dtype)
    weight = torch.randn(2 * sizes.intermediate, sizes.hidden).to(dtype)
    best = min(in_turns([lambda: F.linear(x, weight)], 1)[0] for _ in range(5))
    return 2 * x.numel() * weight.shape[0] / best


def describe_machine(args: argparse.Namespace) -> Results:
    """What the figures depend on; nothing that names the machine."""
    return {
        "cpu": _cpu_model(),
        "threads": args.threads,
        "dtype": args.dtype,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "prefill_chunk": args.chunk,
    }


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    flags = [
        flag for flag in ("amx_bf16", "avx512_bf16", "avx512f", "avx2") if any(flag in line for line in lines)
    ]
    return f"{len(names)} x {names[0]} ({', '.join(flags)})" if names else platform.processor()


def _prompt(tokens: int) -> torch.Tensor:
    return torch.randint(300, 100_000, (tokens,), generator=torch.Generator().manual_seed(tokens))


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure the hybrid decoder against transformers.")
    parser.add_argument(
        "folder", type=Path, help="a checkpoint of MiniCPM-V 4.6, such as make_checkpoint writes"
    )
    parser.add_argument("--prefill", type=int, nargs="+", default=[], metavar="TOKENS", help="tiers")
    parser.add_argument("--rounds", type=int, default=3, help="of the shortest tier; the others run once")
    parser.add_argument("--as-shipped", action="store_true", help="the shortest tier with every logit too")
    parser.add_argument("--components", type=int, metavar="TOKENS", help="where a prefill's time goes")
    for section in ("scan", "decode", "picture"):
        parser.add_argument(f"--{section}", action="store_true")
    parser.add_argument(
        "--chunk", type=int, default=512, help="kaminari's prefill chunk; the service's default"
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    native = "bfloat16" if multiplies_bfloat16(CPU) else "float32"
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default=native)
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args(argv)
    if not (args.folder / "config.json").is_file():
        parser.error(f"no checkpoint in {args.folder}")
    if not (args.prefill or args.components or args.scan or args.decode or args.picture):
        parser.error("nothing to measure; name a section")
    if min([*args.prefill, args.components or 1, args.chunk, args.threads, args.rounds]) < 1:
        parser.error("token counts, chunk, threads and rounds are at least 1")
    return args


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
