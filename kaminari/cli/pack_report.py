"""What `kaminari quantize` says of the pack that it made, as tables and as JSON."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kaminari.config import ModelSettings, PackFolder, standard_place
from kaminari.engine.capacity import format_bytes
from kaminari.model.packs.writing import MadePack
from kaminari.verify.packs import ReadPages
from kaminari.verify.quality import Quality


@dataclass(frozen=True, slots=True)
class PackReport:
    """What is known of a pack.

    quality:  beside the model's own weights; None where nothing was run
    pages:    how pages were read, by kind; empty where none were
    """

    made: MadePack
    quality: Quality | None = None
    pages: tuple[ReadPages, ...] = ()


def as_json(report: PackReport) -> str:
    """`quality` and `pages` are null where nothing was run; rates are fractions."""
    made = report.made
    header = made.pack.header
    pages = [
        {
            "kind": each.own.kind,
            "pages": each.own.pages,
            "characters": each.own.characters,
            **{
                name: {"exact": reading.exact, "character_error_rate": reading.character_error_rate}
                for name, reading in (("own", each.own), ("pack", each.pack))
            },
        }
        for each in report.pages
    ]
    return json.dumps(
        {
            "pack": header.word,
            "model": header.model,
            "method": header.method,
            "bytes": made.pack.nbytes,
            "source_bytes": made.source_bytes,
            "weight_errors": dict(made.errors),
            "quality": None if report.quality is None else dataclasses.asdict(report.quality),
            "pages": pages or None,
        },
        ensure_ascii=False,
        indent=1,
    )


def print_report(settings: ModelSettings, report: PackReport) -> None:
    """Print it, and how to serve the pack."""
    console = Console(highlight=False)
    made = report.made
    header, errors = made.pack.header, sorted(made.errors.items(), key=lambda each: each[1])
    worst, largest = errors[-1]
    median = errors[len(errors) // 2][1]
    lines = [
        f"{header.word} pack of {settings.name} in {made.pack.folder}",
        f"  {len(errors)} weights of {format_bytes(made.source_bytes)} became "
        f"{format_bytes(made.pack.nbytes)}; {made.kept} tensors keep their place in the checkpoint",
        f"  error of a weight: median {median:.2%}, largest {largest:.2%} ({worst})",
    ]
    for line in lines:
        console.print(Text(line), soft_wrap=True)
    if report.quality is not None:
        _print_quality(console, report.quality)
    if report.pages:
        _print_pages(console, report.pages)
    place = standard_place(settings.source, header.format)
    chosen = str(header.format) if made.pack.folder == place else str(PackFolder(made.pack.folder))
    console.print(Text(f"Serve it with: kaminari serve {settings.source} --quantization {chosen}"))


def _print_quality(console: Console, quality: Quality) -> None:
    stages = Table(title="Error of each stage, beside the model's own weights", title_justify="left")
    stages.add_column("stage")
    stages.add_column("error", justify="right")
    for name, error in quality.stage_errors.items():
        stages.add_row(name, f"{error:.2%}")
    prompts = Table(title="Answers", title_justify="left")
    for name in ("prompt", "same tokens", "likeliest token agrees", "divergence", "logit error"):
        prompts.add_column(name, justify="left" if name == "prompt" else "right")
    for each in quality.prompts:
        prompts.add_row(
            each.prompt,
            f"{each.same} of {each.tokens}",
            f"{each.agreement:.1%}",
            f"{each.divergence:.4f}",
            f"{each.logit_error:.2%}",
        )
    console.print(stages, prompts)


def _print_pages(console: Console, pages: tuple[ReadPages, ...]) -> None:
    table = Table(title="Pages, with the model's own weights and from the pack", title_justify="left")
    table.add_column("kind")
    for name in ("pages", "characters", "wrong, own", "wrong, pack", "exact, own", "exact, pack"):
        table.add_column(name, justify="right")
    for each in pages:
        table.add_row(
            each.own.kind,
            str(each.own.pages),
            str(each.own.characters),
            f"{each.own.character_error_rate:.2%}",
            f"{each.pack.character_error_rate:.2%}",
            str(each.own.exact),
            str(each.pack.exact),
        )
    console.print(table)
