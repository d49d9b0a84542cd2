"""`kaminari doctor`: whether this machine can serve a model, how much of it fits, and what is missing.

Reads headers and configuration, and downloads nothing unless told to; weights only with `--measure`, which
decodes for a while to recommend settings. On CUDA it tries the kernels of attention on a few small rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kaminari.cli.errors import CommandError
from kaminari.cli.flags import add_settings_flags, command_parser, parse_command
from kaminari.config import Folder, Hub, KernelChoice, Settings

if TYPE_CHECKING:
    from kaminari.cli.machine import Fact
    from kaminari.engine.loading import ModelPlan


def run(argv: Sequence[str]) -> int:
    """Print the report. Returns 0 where the model can be served; raises `CommandError` where it cannot."""
    parser = command_parser("doctor", "Say whether this machine can serve a model, and what is missing.")
    parser.add_argument("--download", action="store_true", help="fetch a hub model that is not here yet")
    parser.add_argument(
        "--measure", action="store_true", help="decode for a while, and recommend format, threads and slots"
    )
    add_settings_flags(parser, ("model", "engine"))
    command = parse_command(parser, argv)
    console = Console(highlight=False)
    try:
        from kaminari.cli import machine
    except ImportError as error:
        raise CommandError(f"the installation is broken: {' '.join(str(error).split())}") from error
    settings = command.settings
    _section(console, "Software", machine.versions())
    _section(console, "Machine", [*machine.devices(), *machine.memory(settings.engine.memory_limit)])
    _notes(console, machine.missing())
    plan = examine(settings, download=command.args.download)
    _section(console, "Model", describe(plan, settings))
    _verdict(console, plan, settings)
    if command.args.measure:
        from kaminari.cli.measure import print_measurements

        print_measurements(console, settings)
    return 0


def examine(settings: Settings, *, download: bool) -> ModelPlan:
    """Plan the model as `kaminari serve` would. Raises `CommandError` with the reason where it cannot run."""
    from kaminari.engine.capacity import CapacityError
    from kaminari.engine.loading import plan_model
    from kaminari.engine.placement import PlacementError
    from kaminari.model.family import CheckpointError

    source = settings.model.source
    if isinstance(source, Hub) and not download:
        settings = _with_source(settings, _local_copy(source))
    try:
        return plan_model(settings)
    except (CheckpointError, CapacityError, PlacementError) as error:
        raise CommandError(f"{source} cannot be served: {error}") from error


def describe(plan: ModelPlan, settings: Settings) -> list[Fact]:
    """The plan in lines: what it is, how precise, how large, and how much of it fits."""
    from kaminari.cli.machine import Fact
    from kaminari.engine.capacity import format_bytes, slot_bytes

    capacity, footprint, dtypes = plan.capacity, plan.footprint, plan.dtypes
    tables = capacity.table_bytes // capacity.slots
    per_slot = slot_bytes(footprint, capacity.context) + tables
    total = capacity.weight_bytes + capacity.cache_bytes + capacity.table_bytes
    return [
        Fact("served as", f"{settings.model.name}, from {settings.model.source}"),
        Fact("family", plan.family.name),
        Fact("device", str(plan.device)),
        Fact("dtype", f"{_chosen(dtypes.decoder, settings.model.dtype)}, vision {dtype_name(dtypes.vision)}"),
        Fact("quantization", _quantization(plan)),
        _kernels(plan, settings),
        Fact("weights", format_bytes(footprint.weights)),
        Fact(
            "cache",
            f"{format_bytes(footprint.cache_per_token)} a token, {format_bytes(per_slot - tables)} a slot",
        ),
        Fact("tables", f"{format_bytes(tables)} a slot, for penalties and sampling"),
        Fact(
            "context", f"{capacity.context} tokens a slot; the model allows {plan.prompt_format.max_context}"
        ),
        Fact("slots", _slots(plan, per_slot)),
        Fact("in all", f"{format_bytes(total)} of {format_bytes(plan.memory)} that may be used"),
        *_beside_own_weights(plan, total),
    ]


def dtype_name(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")


def _chosen(dtype: object, choice: str) -> str:
    return f"{dtype_name(dtype)} (auto)" if choice == "auto" else dtype_name(dtype)


def _kernels(plan: ModelPlan, settings: Settings) -> Fact:
    """Whose kernels would run; on CUDA after trying those of attention."""
    from kaminari.cli.machine import Fact
    from kaminari.engine.loading import kernels_word
    from kaminari.model.kernels.native.build import foreseen_word

    return Fact(
        "kernels", kernels_word(plan, lambda: foreseen_word(settings.model.kernels is KernelChoice.AUTO))
    )


def _quantization(plan: ModelPlan) -> str:
    if plan.pack is None:
        return "none"
    return f"{plan.pack.header.word}, from {plan.pack.folder}"


def _beside_own_weights(plan: ModelPlan, total: int) -> list[Fact]:
    """What a pack saves of all that the model takes."""
    if plan.pack is None:
        return []
    from kaminari.cli.machine import Fact
    from kaminari.engine.capacity import format_bytes

    own = total - plan.footprint.weights + plan.own_weight_bytes
    return [
        Fact("own weights", f"would make it {format_bytes(own)}; the pack takes {total / own:.3f} of that")
    ]


def _slots(plan: ModelPlan, per_slot: int) -> str:
    slots = plan.capacity.slots
    if not per_slot:
        return str(slots)
    return f"{slots}; memory for {max(slots, (plan.memory - plan.footprint.weights) // per_slot)}"


def _local_copy(source: Hub) -> Folder:
    """The folder of a hub model that was downloaded before."""
    from pathlib import Path

    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Folder(Path(snapshot_download(source.repo, revision=source.revision, local_files_only=True)))
    except LocalEntryNotFoundError as error:
        raise CommandError(
            f"{source} is not on this machine yet: `kaminari serve {source}` downloads it, "
            "and so does `kaminari doctor --download`"
        ) from error


def _with_source(settings: Settings, source: Folder) -> Settings:
    model = settings.model.model_copy(update={"source": source, "served_name": settings.model.name})
    return settings.model_copy(update={"model": model})


def _section(console: Console, title: str, facts: Iterable[Fact]) -> None:
    console.print(Text(title, style="bold"))
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", min_width=14)
    table.add_column(overflow="fold")
    for fact in facts:
        table.add_row(f"  {fact.name}", Text(fact.value))
    console.print(table)


def _notes(console: Console, notes: Sequence[str]) -> None:
    if notes:
        console.print(Text("Missing", style="bold"))
    for note in notes:
        console.print(Text(f"  {note}", style="yellow"))


def _verdict(console: Console, plan: ModelPlan, settings: Settings) -> None:
    slots = plan.capacity.slots
    count = "1 slot" if slots == 1 else f"{slots} slots"
    console.print(
        Text(f"{settings.model.name} can be served: {count} of {plan.capacity.context} tokens", style="green")
    )
