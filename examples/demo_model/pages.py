"""Draw pictures of the demo's kinds with their text, as `kaminari quantize --report --pages` reads them.

    python -m examples.demo_model.pages -n 20 -o demo-pages
    kaminari quantize demo --to int4 --report --pages demo-pages/pages.jsonl

Run it from the project's root. No training has seen the pictures, which are those of an evaluation.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from examples.demo_model.sample import Sample
from examples.demo_model.tasks import evaluation_samples

FILE = "pages.jsonl"
TASKS = ("receipt", "line", "total", "price")  # one picture and one question each


def write_pages(samples: Sequence[Sample], folder: Path) -> Path:
    """Write each sample's picture, and the file that names them all, which is returned. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for number, sample in enumerate(samples, 1):
        (drawing,), (turn,) = sample.drawings, sample.turns
        image = f"{number:04}.png"
        drawing.image.save(folder / image)
        kind = f"{sample.task}, {sample.style}"
        line = {"image": image, "text": turn.answer, "question": turn.question, "kind": kind}
        lines.append(json.dumps(line, ensure_ascii=False))
    file = folder / FILE
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Draw pictures of the demo's kinds with their text.")
    parser.add_argument("-n", type=int, default=20, metavar="COUNT", help="of each kind and style (20)")
    parser.add_argument("--seed", type=int, default=0, help="another seed, other pictures (0)")
    parser.add_argument(
        "--tasks", nargs="+", choices=TASKS, default=["receipt", "line", "total"], metavar="TASK"
    )
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="DIR", help="their folder")
    args = parser.parse_args(arguments)
    if args.n < 1:
        parser.error("-n must be at least 1")
    samples = evaluation_samples(args.n, args.seed, args.tasks)
    try:
        print(f"{len(samples)} pages in {write_pages(samples, args.out)}")
    except OSError as error:
        print(f"cannot write {args.out}: {error.strerror or error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
