"""`kaminari quantize MODEL --to int4|int8`: makes a pack, on any machine, and says how good it is.

Exit code 0 where the pack is in its place, 1 where it could not be made; then nothing is left behind.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from kaminari.cli.errors import USAGE, CommandError
from kaminari.cli.flags import add_settings_flags, command_parser, parse_command
from kaminari.config import KernelChoice, ModelSettings, PackFolder, PackFormat, standard_place

if TYPE_CHECKING:
    from kaminari.model.packs.writing import MadePack, Recipe
    from kaminari.verify.prompts import Prompt
    from kaminari.verify.quality import Quality

GROUP_SIZES = (32, 64, 128)
DEFAULT_GROUP_SIZE: Final = 64
METHODS = ("fit", "hqq", "rtn")


def run(argv: Sequence[str]) -> int:
    """Make the pack, print what came of it and keep that in its folder. Raises `CommandError`."""
    parser = command_parser(
        "quantize",
        "Make a pack of a model: the projections of its decoder in int8 or int4. All else stays in the "
        "checkpoint, which `kaminari serve MODEL --quantization` reads beside the pack.",
    )
    parser.add_argument(
        "--to", required=True, choices=[each.value for each in PackFormat], help="format of the projections"
    )
    parser.add_argument(
        "--group-size",
        type=int,
        choices=GROUP_SIZES,
        help=f"int4: columns that share a scale and a zero (default: {DEFAULT_GROUP_SIZE})",
    )
    parser.add_argument(
        "--method",
        choices=METHODS,
        help="int4: how a scale is chosen: fit, least squares; hqq, half-quadratic; rtn, its range "
        "(default: fit)",
    )
    parser.add_argument("--head", action="store_true", help="make the head int8 too")
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        metavar="DIR",
        help="the pack's folder (default: the model's place in the cache)",
    )
    parser.add_argument(
        "--report",
        action="store_true",
        help="run the model with its own weights and from the pack, and compare; needs memory for the former",
    )
    parser.add_argument("--ask", metavar="TEXT", help="report on this prompt instead of the built-in ones")
    parser.add_argument("--image", action="append", default=[], metavar="FILE", help="a picture to ask about")
    parser.add_argument(
        "--tokens", type=_count, default=32, metavar="N", help="length of the report's answers (default: 32)"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    add_settings_flags(parser, ("model",), but=("model.quantization", "model.served_name", "model.aliases"))
    command = parse_command(parser, argv)
    from kaminari.model.packs.writing import save_report

    args, settings = command.args, command.settings.model
    recipe = _recipe(args)
    prompts = _prompts(args)
    folder: Path = args.out or standard_place(settings.source, PackFormat(args.to))
    console = Console(stderr=True, highlight=False)
    console.quiet = args.json or not console.is_terminal
    made = make(settings, recipe, folder, console)
    quality = None
    if args.report:
        with console.status("starting") as status:
            quality = measure(settings, made, prompts, args.tokens, status.update)
    text = as_json(made, quality)
    try:
        save_report(made.pack.folder, text)
    except OSError as error:
        raise CommandError(f"cannot write {made.pack.folder}: {error.strerror or error}") from error
    if args.json:
        print(text)
    else:
        _print(settings, made, quality)
    return 0


def make(settings: ModelSettings, recipe: Recipe, folder: Path, console: Console) -> MadePack:
    """Make the pack behind a progress bar. Raises `CommandError`."""
    from kaminari.engine.loading import checkpoint_folder
    from kaminari.model.family import CheckpointError, find_family
    from kaminari.model.packs.writing import make_pack

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(f"Quantizing {settings.name}", total=None)
        try:
            checkpoint = checkpoint_folder(settings.source)
            family = find_family(checkpoint)
            return make_pack(
                family.open(checkpoint),
                recipe,
                folder,
                model=str(settings.source),
                family=family.name,
                progress=lambda done, total: bar.update(task, completed=done, total=total),
            )
        except CheckpointError as error:
            raise CommandError(str(error)) from error
        except OSError as error:
            raise CommandError(f"cannot write {folder}: {error.strerror or error}") from error


def measure(
    settings: ModelSettings,
    made: MadePack,
    prompts: Sequence[Prompt],
    tokens: int,
    progress: Callable[[str], None],
) -> Quality:
    """Run the model with its own weights, then from the pack, and compare. Raises `CommandError`."""
    from kaminari.engine.errors import RequestError
    from kaminari.engine.loading import checkpoint_folder
    from kaminari.engine.placement import PlacementError, resolve_device, resolve_dtypes
    from kaminari.model.family import CheckpointError, LoadOptions, find_family
    from kaminari.model.kernels.native.build import allow_native
    from kaminari.model.stages import find_stages
    from kaminari.verify.quality import Observation, compare, observe
    from kaminari.verify.replay import Replayer, open_frontend

    allow_native(settings.kernels is KernelChoice.AUTO)
    try:
        device = resolve_device(settings.device)
        dtypes = resolve_dtypes(settings, device)
        folder = checkpoint_folder(settings.source)
        family, stages = find_family(folder), find_stages(folder)
        frontend = open_frontend(folder, max(len(prompt.pictures) for prompt in prompts))
        prepared = {prompt.name: frontend.prepare(prompt.conversation()) for prompt in prompts}
        seen: list[list[Observation]] = []
        for pack, words in ((None, "its own weights"), (made.pack, "the pack")):
            progress(f"running the model with {words}")
            options = LoadOptions(device, dtypes.decoder, dtypes.vision, pack=pack)
            replayer = Replayer(family.load(folder, options), stages, frontend)
            seen.append(observe(replayer, prepared, tokens, given=seen[0] if seen else ()))
            del replayer
        return compare(*seen)
    except (CheckpointError, PlacementError) as error:
        raise CommandError(str(error)) from error
    except RequestError as error:
        raise CommandError(f"the prompt cannot be made: {error.message}") from error


def as_json(made: MadePack, quality: Quality | None) -> str:
    """What is known of a pack; `quality` is null where nothing was run."""
    header = made.pack.header
    return json.dumps(
        {
            "pack": header.word,
            "model": header.model,
            "method": header.method,
            "bytes": made.pack.nbytes,
            "source_bytes": made.source_bytes,
            "weight_errors": dict(made.errors),
            "quality": None if quality is None else dataclasses.asdict(quality),
        },
        ensure_ascii=False,
        indent=1,
    )


def _recipe(args: argparse.Namespace) -> Recipe:
    from kaminari.model.packs.rounding import Method
    from kaminari.model.packs.writing import Recipe

    target = PackFormat(args.to)
    if target is PackFormat.INT8:
        for flag, value in (("--group-size", args.group_size), ("--method", args.method)):
            if value is not None:
                raise CommandError(
                    f"{flag} belongs to int4: an int8 weight has one scale per row, rounded to nearest",
                    exit_code=USAGE,
                )
    if not args.report and (args.ask is not None or args.image):
        raise CommandError("--ask and --image say what to report on: give --report too", exit_code=USAGE)
    return Recipe(
        target,
        group_size=args.group_size or DEFAULT_GROUP_SIZE,
        method=Method(args.method or METHODS[0]),
        head=args.head,
    )


def _prompts(args: argparse.Namespace) -> tuple[Prompt, ...]:
    from kaminari.verify.prompts import chosen

    try:
        return chosen(args.ask, args.image)
    except OSError as error:
        raise CommandError(f"cannot read the picture {error.filename}: {error.strerror}") from error


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return count


def _print(settings: ModelSettings, made: MadePack, quality: Quality | None) -> None:
    from kaminari.engine.capacity import format_bytes

    console = Console(highlight=False)
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
    if quality is not None:
        _print_quality(console, quality)
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
