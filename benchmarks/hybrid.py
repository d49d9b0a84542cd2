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
import json
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import transformers
from rich.console import Console

from benchmarks.clock import count_cpu_time
from benchmarks.hybrid_sections import (
    DECODE_PROMPT,
    Results,
    measure_components,
    measure_decode,
    measure_picture,
    measure_prefill,
    measure_scan,
    random_prompt,
)
from benchmarks.sides import CPU, Ours, Theirs
from kaminari.engine.placement import multiplies_bfloat16

TIERS = (2048, 5120, 8192, 10240)


def main(argv: Sequence[str]) -> int:
    args = _parse(argv)
    torch.set_num_threads(args.threads)
    if args.cpu_time:
        count_cpu_time()
    console = Console()
    dtype = torch.bfloat16 if args.dtype == "bfloat16" else torch.float32
    console.print(f"{args.dtype}, {args.threads} threads, {_cpu_model()}")
    options = {name: value for name, value in vars(args).items() if name not in ("folder", "json")}
    results: Results = {"machine": describe_machine(), "options": options}
    with torch.inference_mode():
        longest = max([*args.prefill, args.components or 1, DECODE_PROMPT])
        ours = Ours(args.folder, dtype, longest + 64, args.chunk)
        theirs = Theirs(args.folder, dtype)
        for side in (ours, theirs):
            side.prefill(random_prompt(64))
        sections: dict[str, Callable[[], Results]] = {
            "scan": lambda: measure_scan(ours, console),
            "decode": lambda: measure_decode(ours, theirs, console),
            "picture": lambda: measure_picture(ours, theirs, args.folder, console),
            "components": lambda: measure_components(ours, theirs, args.components, args.folder, console),
            "prefill": lambda: measure_prefill(
                ours, theirs, args.prefill, args.rounds, args.as_shipped, console
            ),
        }
        for name, measure in sections.items():
            if getattr(args, name):
                results[name] = measure()
                if args.json:
                    args.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0


def describe_machine() -> Results:
    """What the figures depend on; nothing that names the machine."""
    return {
        "cpu": _cpu_model(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    flags = [
        flag for flag in ("amx_bf16", "avx512_bf16", "avx512f", "avx2") if any(flag in line for line in lines)
    ]
    return f"{len(names)} x {names[0]} ({', '.join(flags)})" if names else platform.processor()


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure the hybrid decoder against transformers.")
    parser.add_argument(
        "folder", type=Path, help="a checkpoint of MiniCPM-V 4.6, such as make_checkpoint writes"
    )
    parser.add_argument(
        "--prefill",
        type=int,
        nargs="*",
        metavar="TOKENS",
        help=f"tiers; without a number {', '.join(map(str, TIERS))}",
    )
    parser.add_argument("--rounds", type=int, default=3, help="of the shortest tier; the others run once")
    parser.add_argument("--as-shipped", action="store_true", help="the shortest tier with every logit too")
    parser.add_argument(
        "--components", type=int, metavar="TOKENS", help="where the time of a picture and a prefill goes"
    )
    for section in ("scan", "decode", "picture"):
        parser.add_argument(f"--{section}", action="store_true")
    parser.add_argument(
        "--chunk", type=int, default=512, help="kaminari's prefill chunk; the service's default"
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--cpu-time", action="store_true", help="CPU seconds, where others share the cores")
    native = "bfloat16" if multiplies_bfloat16(CPU) else "float32"
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default=native)
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args(argv)
    if not (args.folder / "config.json").is_file():
        parser.error(f"no checkpoint in {args.folder}")
    args.prefill = [] if args.prefill is None else args.prefill or list(TIERS)
    if not (args.prefill or args.components or args.scan or args.decode or args.picture):
        parser.error("nothing to measure; name a section")
    if args.cpu_time and args.threads != 1:
        parser.error("--cpu-time takes --threads 1")
    if min([*args.prefill, args.components or 1, args.chunk, args.threads, args.rounds]) < 1:
        parser.error("token counts, chunk, threads and rounds are at least 1")
    return args


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
