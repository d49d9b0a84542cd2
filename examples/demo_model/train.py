"""Train the demo, or go on training it.

    python -m examples.demo_model.train --out RUN --tiles 1500 --steps 30000 --cool-down 8000
    python -m examples.demo_model.train --out RUN --start kaminari/demo/model.safetensors --steps 4000

Run it from the project's root. The same command again goes on where the run in RUN stands, after an interrupt
too. `--branch` begins a new run where another stands: to cool it down, while the other could go on.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from examples.demo_model.network import Network
from examples.demo_model.schedule import Schedule
from examples.demo_model.tokens import Scribe
from examples.demo_model.trainer import Plan, Trainer, make_optimizer
from examples.demo_model.training_log import LOG, TrainingLog
from examples.demo_model.training_state import FILE, StateError, load_state, load_weights, save_state
from kaminari.model.family import CheckpointError

DEMO = Path("kaminari/demo")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train the demo model on pictures made by a program.")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="RUN", help="the run's folder: state and log"
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--start", type=Path, metavar="FILE", help="weights to begin with (random ones)")
    source.add_argument("--branch", type=Path, metavar="RUN", help="a run to begin where it stands")
    parser.add_argument(
        "--model", type=Path, default=DEMO, help="folder with config and tokenizer (the demo)"
    )
    parser.add_argument("--steps", type=int, default=4000, help="steps of the whole run (4000)")
    parser.add_argument("--tiles", type=int, default=0, help="first steps on tiles of text alone (0)")
    parser.add_argument(
        "--harder",
        action="store_true",
        help="show photographs, small print, longer receipts, two of them, tables and charts too",
    )
    parser.add_argument(
        "--cool-down", type=int, default=0, help="last steps, with a falling learning rate (0)"
    )
    parser.add_argument("--rate", type=float, default=6e-4, help="learning rate (0.0006)")
    parser.add_argument("--warm-up", type=int, default=100, help="steps until that rate (100)")
    parser.add_argument("--seed", type=int, default=0, help="of everything that is drawn (0)")
    parser.add_argument("--save-every", type=int, default=200, help="steps between two states (200)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, help="CPU threads (what torch takes)")
    args = parser.parse_args(arguments)
    for name in ("steps", "save_every"):
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    if not 0 <= args.cool_down <= args.steps or not 0 <= args.tiles <= args.steps:
        parser.error("--tiles and --cool-down must be between 0 and --steps")
    if not 0 < args.rate < 1:
        parser.error("--rate must be between 0 and 1")
    return args


def main(arguments: Sequence[str] | None = None) -> int:
    args = parse(arguments)
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    try:
        train(args)
    except (StateError, CheckpointError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from the last state", file=sys.stderr)
        return 130
    return 0


def train(args: argparse.Namespace) -> None:
    """Train as the arguments say, from the folder's state if there is one."""
    scribe = Scribe(args.model)
    network = Network(scribe.config, args.seed).to(args.device)
    optimizer = make_optimizer(network)
    step, first = 0, 0
    begun = (args.out / FILE).exists()
    if begun or args.branch is not None:
        step, first = load_state(args.out if begun else args.branch, network, optimizer)
    elif args.start is not None:
        load_weights(args.start, network)
    args.out.mkdir(parents=True, exist_ok=True)
    log = TrainingLog(args.out / LOG)
    if not begun:
        log.begin(step, {name: str(value) for name, value in vars(args).items()})
    last = log.first_step() + args.steps
    schedule = Schedule(args.rate, first, args.warm_up, last, args.cool_down)
    trainer = Trainer(network, optimizer, scribe, Plan(args.seed, args.tiles, schedule, args.harder))
    with Progress(
        TextColumn("{task.description}"),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    ) as bar:
        task = bar.add_task("training", total=last, completed=step)
        while step < last:
            began = time.perf_counter()
            figures = trainer.step(step)
            log.add(step, schedule.rate(step), time.perf_counter() - began, figures)
            step += 1
            if step % args.save_every == 0 or step == last:
                save_state(args.out, network, optimizer, step, first)
            bar.update(task, completed=step, description=_summary(figures))


def _summary(figures: dict[str, dict[str, float]]) -> str:
    kind, first = next(iter(figures.items()))
    return f"{kind} " + " ".join(f"{name} {value:.3f}" for name, value in first.items())


if __name__ == "__main__":
    sys.exit(main())
