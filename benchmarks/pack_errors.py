"""How well a model reads pages from packs of every format, beside its own weights: character errors.

    python -m examples.demo_model.pages -n 40 -o pages
    python -m examples.demo_model.pages -n 2 --seed 1 -o others
    python -m benchmarks.pack_errors --pages pages/pages.jsonl --calibrate others/pages.jsonl

The pages are read once with the model's own weights and once from each pack, and counted as by `kaminari
quantize --report --pages`. The difference comes with its standard error over the pages, which are the same
for both: what goes astray by chance is in it. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from kaminari.cli.quantize import make
from kaminari.config import NoQuantization, PackFolder, PackFormat, load_settings
from kaminari.model.packs.format import GROUP_SIZES
from kaminari.model.packs.rounding import Method
from kaminari.model.packs.writing import Recipe
from kaminari.verify.edit_distance import edit_distance
from kaminari.verify.packs import answer_pages
from kaminari.verify.pages import Page, read_pages

HEADER = ("weights", "method", "head", "wrong", "difference", "standard error", "exact")


@dataclass(frozen=True, slots=True)
class Counts:
    """Edits of each page's answer, in the order of the pages, and how many answers are exact."""

    edits: tuple[int, ...]
    exact: int


def count(pages: Sequence[Page], answers: Sequence[str]) -> Counts:
    pairs = list(zip(pages, answers, strict=True))
    return Counts(
        tuple(edit_distance(answer, page.text) for page, answer in pairs),
        sum(answer == page.text for page, answer in pairs),
    )


def difference(pages: Sequence[Page], own: Counts, pack: Counts) -> tuple[float, float]:
    """How many more characters are wrong, as a fraction of all, and the standard error of that.

    The error is that of a ratio of sums over pages that were drawn independently.
    """
    lengths = [len(page.text) for page in pages]
    more = [theirs - ours for ours, theirs in zip(own.edits, pack.edits, strict=True)]
    mean = sum(more) / sum(lengths)
    off = sum((each - mean * length) ** 2 for each, length in zip(more, lengths, strict=True))
    n = len(pages)
    return mean, math.sqrt(off * n / max(1, n - 1)) / sum(lengths)


def recipes(methods: Sequence[Method]) -> Iterator[Recipe]:
    for head in (False, True):
        yield Recipe(PackFormat.INT8, head=head)
    for group_size in GROUP_SIZES:
        for method in methods:
            for head in (False, True):
                yield Recipe(PackFormat.INT4, group_size, method, head)


def main() -> None:
    parser = argparse.ArgumentParser(description="Character errors of packs beside a model's own weights.")
    parser.add_argument("--model", default="demo", help="a checkpoint's folder")
    parser.add_argument("--pages", type=Path, required=True, help="as of kaminari quantize")
    parser.add_argument("--calibrate", type=Path, help="gptq's pages; by default the built-in prompts")
    parser.add_argument("--methods", nargs="+", type=Method, default=[Method.RTN, Method.FIT, Method.GPTQ])
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--kernels", default="auto")
    parser.add_argument("--threads", default="auto")
    args = parser.parse_args()
    settings = load_settings(
        {
            "model.source": args.model,
            "model.dtype": args.dtype,
            "model.kernels": args.kernels,
            "engine.threads": args.threads,
        }
    )
    pages = read_pages(args.pages)
    calibration = [page.prompt() for page in read_pages(args.calibrate)] if args.calibrate else []
    characters = sum(len(page.text) for page in pages)
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory() as scratch, console.status("starting") as status:
        own = count(pages, answer_pages(settings, NoQuantization(), pages, status.update))
        print(f"{len(pages)} pages, {characters} characters\n")
        print(_line(HEADER), _line("---" for _ in HEADER), sep="\n")
        print(
            _line([f"its own, {args.dtype}", "", "", f"{sum(own.edits) / characters:.2%}", "", "", own.exact])
        )
        for number, recipe in enumerate(recipes(args.methods)):
            made = make(settings, recipe, Path(scratch) / str(number), Console(quiet=True), calibration)
            found = count(pages, answer_pages(settings, PackFolder(made.pack.folder), pages, status.update))
            mean, error = difference(pages, own, found)
            int4 = recipe.format is PackFormat.INT4
            cells = (
                f"int4, groups of {recipe.group_size}" if int4 else "int8",
                recipe.method if int4 else "",
                "int8" if recipe.head else "",
                f"{sum(found.edits) / characters:.2%}",
                f"{100 * mean:+.2f}",
                f"{100 * error:.2f}",
                found.exact,
            )
            print(_line(cells))
            sys.stdout.flush()


def _line(cells: Iterator[object] | Sequence[object]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


if __name__ == "__main__":
    main()
