"""`kaminari quantize MODEL --to int4|int8`: makes a pack, on any machine, and says how good it is.

Exit code 0 where the pack is in its place, 1 where it could not be made; then nothing is left behind.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from kaminari.cli.errors import USAGE, CommandError
from kaminari.cli.flags import add_settings_flags, command_parser, parse_command
from kaminari.cli.interrupt import ended_as_interrupted
from kaminari.config import PackFormat, Settings, standard_place

if TYPE_CHECKING:
    from kaminari.cli.pack_report import PackReport
    from kaminari.model.packs.writing import MadePack, Recipe
    from kaminari.verify.pages import Page
    from kaminari.verify.prompts import Prompt

GROUP_SIZES = (32, 64, 128)
DEFAULT_GROUP_SIZE: Final = 64
ANSWER_TOKENS: Final = 32
METHODS = ("fit", "gptq", "hqq", "rtn")


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
        help="int4: fit, scales of least squares; gptq, codes too that change products the least, which runs "
        "the model; hqq, half-quadratic; rtn, a group's range (default: fit)",
    )
    parser.add_argument(
        "--calibrate",
        type=Path,
        metavar="FILE",
        help="gptq: pages, as of --pages, that stand for the model's use (default: built-in prompts)",
    )
    parser.add_argument(
        "--head", action="store_true", help="make the head int8 too, and an embedding that is tied to it"
    )
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
        "--pages",
        type=Path,
        metavar="FILE",
        help="report how pictures are read whose text is known: JSON lines with image and text, "
        "and question and kind if you like",
    )
    parser.add_argument(
        "--tokens",
        type=_count,
        default=ANSWER_TOKENS,
        metavar="N",
        help=f"length of the report's answers (default: {ANSWER_TOKENS})",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    add_settings_flags(parser, ("model",), but=("model.quantization", "model.served_name", "model.aliases"))
    command = parse_command(parser, argv)
    from kaminari.cli.pack_report import PackReport, as_json, print_report
    from kaminari.model.packs.writing import save_report

    args, settings = command.args, command.settings
    recipe = _recipe(args)
    pages = _pages(args.pages)
    prompts = _prompts(args, pages)
    calibration = [page.prompt() for page in _pages(args.calibrate)]
    folder: Path = args.out or standard_place(settings.model.source, PackFormat(args.to))
    console = Console(stderr=True, highlight=False)
    console.quiet = args.json or not console.is_terminal
    with ended_as_interrupted():
        made = make(settings, recipe, folder, console, calibration)
    report = PackReport(made)
    if args.report:
        with console.status("starting") as status:
            report = measure(settings, made, prompts, args.tokens, pages, status.update)
    text = as_json(report)
    try:
        save_report(made.pack.folder, text)
    except OSError as error:
        raise CommandError(f"cannot write {made.pack.folder}: {error.strerror or error}") from error
    if args.json:
        print(text)
    else:
        print_report(settings.model, report)
    return 0


def make(
    settings: Settings, recipe: Recipe, folder: Path, console: Console, calibration: Sequence[Prompt] = ()
) -> MadePack:
    """Make the pack behind a progress bar. Raises `CommandError`.

    calibration:  what gptq lets the model read; by default the built-in prompts
    """
    from kaminari.engine.errors import RequestError
    from kaminari.engine.loading import checkpoint_folder
    from kaminari.engine.placement import PlacementError
    from kaminari.model.family import CheckpointError, find_family
    from kaminari.model.packs.rounding import Method
    from kaminari.model.packs.writing import check_place, make_pack
    from kaminari.verify.packs import calibrate
    from kaminari.verify.prompts import built_in

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(f"Quantizing {settings.model.name}", total=None)
        try:
            check_place(folder)
            checkpoint = checkpoint_folder(settings.model.source)
            family = find_family(checkpoint)
            moments = None
            if recipe.method is Method.GPTQ:
                moments = calibrate(settings, calibration or built_in(), ANSWER_TOKENS)
            return make_pack(
                family.open(checkpoint),
                recipe,
                folder,
                model=str(settings.model.source),
                family=family.name,
                moments=moments,
                progress=lambda done, total: bar.update(task, completed=done, total=total),
            )
        except (CheckpointError, PlacementError) as error:
            raise CommandError(str(error)) from error
        except RequestError as error:
            raise CommandError(f"the model cannot be calibrated: {error.message}") from error
        except OSError as error:
            raise CommandError(f"cannot write {folder}: {error.strerror or error}") from error


def measure(
    settings: Settings,
    made: MadePack,
    prompts: Sequence[Prompt],
    tokens: int,
    pages: Sequence[Page],
    say: Callable[[str], None],
) -> PackReport:
    """Run the model with its own weights and from the pack, and compare. Raises `CommandError`."""
    from kaminari.cli.pack_report import PackReport
    from kaminari.engine.capacity import CapacityError
    from kaminari.engine.errors import EngineFault, EngineUnavailable, RequestError
    from kaminari.engine.placement import PlacementError
    from kaminari.model.family import CheckpointError
    from kaminari.verify.packs import compare_pages, compare_prompts
    from kaminari.verify.pages import PageError

    try:
        quality = compare_prompts(settings, made.pack, prompts, tokens, say)
        read = compare_pages(settings, made.pack, pages, say) if pages else ()
    except RequestError as error:
        raise CommandError(f"the prompt cannot be made: {error.message}") from error
    except (CheckpointError, PlacementError, CapacityError, PageError) as error:
        raise CommandError(str(error)) from error
    except (EngineFault, EngineUnavailable) as error:
        raise CommandError(f"the pages could not be read: {error}") from error
    return PackReport(made, quality, read)


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
    if args.calibrate is not None and args.method != "gptq":
        raise CommandError("--calibrate belongs to --method gptq", exit_code=USAGE)
    if not args.report and (args.ask is not None or args.image or args.pages):
        raise CommandError(
            "--ask, --image and --pages say what to report on: give --report too", exit_code=USAGE
        )
    return Recipe(
        target,
        group_size=args.group_size or DEFAULT_GROUP_SIZE,
        method=Method(args.method or METHODS[0]),
        head=args.head,
    )


def _prompts(args: argparse.Namespace, pages: Sequence[Page]) -> tuple[Prompt, ...]:
    """What stages and answers are compared on: a prompt of one's own, else the first page of each kind."""
    from kaminari.verify.prompts import chosen

    if pages and args.ask is None and not args.image:
        firsts: dict[str, Prompt] = {}
        for page in pages:
            firsts.setdefault(page.kind, page.prompt())
        return tuple(firsts.values())
    try:
        return chosen(args.ask, args.image)
    except OSError as error:
        raise CommandError(f"cannot read the picture {error.filename}: {error.strerror}") from error


def _pages(file: Path | None) -> tuple[Page, ...]:
    from kaminari.verify.pages import PageError, read_pages

    try:
        return read_pages(file) if file is not None else ()
    except PageError as error:
        raise CommandError(str(error)) from error


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return count
