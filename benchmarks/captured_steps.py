"""What capturing brings a decode step: captured steps and uncaptured ones in turns, in one process.

    python -m benchmarks.captured_steps --model demo --threads 1 --rows 1 8 16

Milliseconds a step, sampling and the transfer included, at up to `--context` tokens: medians. Any other model
is a folder.
"""

from __future__ import annotations

import argparse
import statistics

import torch

from kaminari.bench.session import Session, random_prompt
from kaminari.bench.subject import load_subject
from kaminari.config.loading import load_settings

ROUNDS = 3
WARM = 2


def main() -> None:
    parser = argparse.ArgumentParser(description="Captured decode steps beside uncaptured ones.")
    parser.add_argument("--model", default="demo", help="a checkpoint's folder")
    parser.add_argument("--quantization", default="none", help="a pack's folder")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", default="auto")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 16])
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--steps", type=int, default=8, help="of a turn")
    args = parser.parse_args()
    most = max(args.rows)
    settings = load_settings(
        {
            "model.source": args.model,
            "model.quantization": args.quantization,
            "model.dtype": args.dtype,
            "engine.threads": args.threads,
            "engine.slots": str(most),
            "engine.max_choices": str(most),
            "engine.context": str(args.context),
        }
    )
    loaded = load_subject(settings).loaded
    print(f"{loaded.info.model}, {loaded.info.dtype}, {loaded.info.quantization}, {loaded.info.kernels}")
    length = args.context - (WARM + ROUNDS * args.steps) * len(args.rows) - 1
    with torch.inference_mode():
        sessions = {
            name: Session(loaded, most, args.context, loaded.info.prefill_chunk, captured=name == "captured")
            for name in ("uncaptured", "captured")
        }
        for session in sessions.values():
            session.prefill(random_prompt(loaded, length), most)
        for rows in sorted(args.rows, reverse=True):
            seconds: dict[str, list[float]] = {name: [] for name in sessions}
            for session in sessions.values():
                session.narrow(rows)
                session.steps(WARM)
            for _ in range(ROUNDS):
                for name, session in sessions.items():
                    seconds[name] += session.steps(args.steps)
            medians = {name: statistics.median(each) * 1e3 for name, each in seconds.items()}
            print(f"{rows:3} rows: " + ", ".join(f"{name} {each:.2f}" for name, each in medians.items()))


if __name__ == "__main__":
    main()
