"""Measure how well a model reads, on pictures that no training has seen; print a table.

    python -m examples.demo_model.evaluate -n 60
    python -m examples.demo_model.evaluate --url http://127.0.0.1:8000 --json read.json

Run it from the project's root. Without `--url` the demo answers in this process; its other settings are those
of the environment, such as `KAMINARI_ENGINE__THREADS` and `KAMINARI_MODEL__QUANTIZATION`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
from rich.console import Console
from rich.progress import Progress

from examples.demo_model.askers import Ask, engine_asker, served_model, server_asker
from examples.demo_model.sample import Sample
from examples.demo_model.scoring import Score
from examples.demo_model.tasks import ALL_TASKS, EVALUATED, evaluation_samples
from kaminari import Engine
from kaminari.config import ConfigError, load_settings

IN_FLIGHT = 8
PATIENCE_SECONDS = 300.0
Scores = Mapping[tuple[str, str], Score]


def evaluate(
    ask: Ask,
    samples: Sequence[Sample],
    in_flight: int = IN_FLIGHT,
    answered: Callable[[], object] | None = None,
) -> Scores:
    """Ask the last question of each sample, several at a time, and score by (task, style).

    `ask` is called from worker threads; what it raises ends the evaluation and is raised here. `answered` is
    called after each answer, on the caller's thread.
    """
    scores: dict[tuple[str, str], Score] = {}
    with ThreadPoolExecutor(in_flight) as pool:
        try:
            for sample, given in zip(samples, pool.map(ask, samples), strict=True):
                score = scores.setdefault((sample.task, sample.style), Score())
                score.add(sample.question, sample.answer, given)
                if answered is not None:
                    answered()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return scores


def table(scores: Scores) -> str:
    """A Markdown table of the scores, in their order."""
    rows = ["| task | pictures | exact | character error | n |", "|---|---|---|---|---|"]
    for (task, style), score in scores.items():
        figures = f"{score.exact_rate:.2f} | {score.character_error_rate:.3f} | {score.asked}"
        rows.append(f"| {task} | {style} | {figures} |")
    return "\n".join(rows)


def as_data(model: str, seed: int, scores: Scores) -> dict[str, object]:
    """The scores with every wrong answer, for a file of JSON."""
    return {
        "model": model,
        "seed": seed,
        "fonts": fonts_used(),
        "scores": [
            {
                "task": task,
                "pictures": style,
                "n": score.asked,
                "exact": score.exact,
                "exact_rate": score.exact_rate,
                "character_error_rate": score.character_error_rate,
                "wrong": [
                    {"question": question, "right": right, "given": given}
                    for question, right, given in score.wrong
                ],
            }
            for (task, style), score in scores.items()
        ],
    }


def fonts_used() -> dict[str, list[str]]:
    """The fonts of each style on this machine."""
    return {style.name: list(style.fonts) for style, _ in EVALUATED}


@contextmanager
def asker(url: str | None, model: str | None, key: str, dtype: str = "float32") -> Iterator[tuple[str, Ask]]:
    """Open the way to a model, and say its name: to a server at `url`, else to an engine in this process.

    `model` is a name that the server lists, or what the engine loads; by default the first, and the demo.
    `dtype` is the engine's.
    """
    if url is None:
        settings = load_settings({"model.source": model or "demo", "model.dtype": dtype})
        with Engine.load(settings) as engine:
            yield engine.info.model, engine_asker(engine)
        return
    headers = {"Authorization": f"Bearer {key}"}
    with httpx.Client(base_url=url, headers=headers, timeout=PATIENCE_SECONDS, trust_env=False) as client:
        name = model or served_model(client)
        yield name, server_asker(client, name)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Measure how well a model reads the demo's kinds of pictures."
    )
    parser.add_argument("--url", help="a running server, such as http://127.0.0.1:8000")
    parser.add_argument("--model", help="the server's name for it, or what the engine here loads (the demo)")
    parser.add_argument("--dtype", default="float32", help="of the engine here (float32)")
    parser.add_argument("--key", default="not-needed", help="the server's API key")
    parser.add_argument("-n", type=int, default=60, metavar="COUNT", help="questions of each row (60)")
    parser.add_argument("--seed", type=int, default=0, help="another seed, other pictures (0)")
    parser.add_argument(
        "--tasks", nargs="+", choices=list(ALL_TASKS), default=list(ALL_TASKS), metavar="TASK"
    )
    parser.add_argument("--in-flight", type=int, default=IN_FLIGHT, help="questions at a time (8)")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the scores and all wrong answers here"
    )
    args = parser.parse_args(arguments)
    if args.n < 1 or args.in_flight < 1:
        parser.error("-n and --in-flight must be at least 1")
    samples = evaluation_samples(args.n, args.seed, args.tasks)
    try:
        with (
            asker(args.url, args.model, args.key, args.dtype) as (name, ask),
            Progress(console=Console(stderr=True)) as bar,
        ):
            asked = bar.add_task(name, total=len(samples))
            scores = evaluate(ask, samples, args.in_flight, lambda: bar.advance(asked))
    except (httpx.HTTPError, httpx.InvalidURL, ConfigError) as error:
        print(f"{args.url or 'engine'}: {error}", file=sys.stderr)
        return 1
    print(table(scores))
    missing = [style for style, used in fonts_used().items() if not used]
    if missing:
        print(f"no fonts here for: {', '.join(missing)}", file=sys.stderr)
    if args.json is not None:
        data = as_data(name, args.seed, scores)
        args.json.write_text(json.dumps(data, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
