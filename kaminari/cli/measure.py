"""`kaminari doctor --measure`: half a minute of decoding, and the settings that its numbers speak for."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kaminari.bench.advice import Advice, Rate, advise
from kaminari.bench.formats import formats_of, measure, missing_formats
from kaminari.cli.errors import CommandError
from kaminari.config import Settings
from kaminari.engine.capacity import CapacityError
from kaminari.engine.placement import PlacementError
from kaminari.model.family import CheckpointError

SECONDS = 30.0
"""Of decoding, over all formats: with loading three formats of a 2B it makes a minute."""


def print_measurements(console: Console, settings: Settings, seconds: float = SECONDS) -> None:
    """Measure every format that is here, print the rates and what they recommend.

    A format that does not load here is left out with its reason. Raises `CommandError` where none does.
    """
    formats = formats_of(settings)
    rates: list[Rate] = []
    with console.status("Measuring") as status:
        for name, wanted in formats.items():
            try:
                rates += measure(wanted, name, seconds / len(formats), status.update)
            except (CheckpointError, CapacityError, PlacementError, ValueError) as error:
                console.print(Text(f"  {name} is left out: {error}", style="yellow"))
    if not rates:
        raise CommandError(f"{settings.model.source} could not be measured in any format")
    console.print(Text("Measured", style="bold"))
    console.print(_table(rates))
    _print_advice(console, advise(rates))
    for name in missing_formats(settings):
        command = f"kaminari quantize {settings.model.source} --to {name}"
        console.print(Text(f"  {name} was not measured; {command} makes its pack"))


def _table(rates: list[Rate]) -> Table:
    """A row per format and thread count, a column per number of rows; tokens per second."""
    counts = sorted({rate.rows for rate in rates})
    table = Table.grid(padding=(0, 2))
    table.add_row(
        "  tokens/s", "threads", *(f"{count} row{'s' if count > 1 else ''}" for count in counts), style="dim"
    )
    found = {(rate.format, rate.threads, rate.rows): rate.tokens for rate in rates}
    for name, threads in dict.fromkeys((rate.format, rate.threads) for rate in rates):
        cells = (found.get((name, threads, count)) for count in counts)
        table.add_row(f"  {name}", str(threads), *("" if cell is None else f"{cell:.1f}" for cell in cells))
    return table


def _print_advice(console: Console, advice: Advice) -> None:
    line = f"--quantization {advice.format} --threads {advice.threads} --slots {advice.slots}"
    console.print(Text(f"Recommended: {line}", style="green"))
    for reason in advice.reasons:
        console.print(Text(f"  {reason}"))
