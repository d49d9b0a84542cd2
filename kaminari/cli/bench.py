"""`kaminari bench SUITE [MODEL]`: how fast a model runs here, beside the machine's limits and its peers.

Exit code 0 where everything was measured, 1 where it could not be, 130 where it was interrupted; what was
measured until then is printed all the same.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from kaminari.bench.options import (
    BATCHES,
    CLIENTS,
    CONTEXTS,
    HF,
    LLAMA_CPP,
    PICTURES,
    PROMPTS,
    READING,
    Options,
)
from kaminari.cli.errors import FAILURE, INTERRUPTED, USAGE, CommandError
from kaminari.cli.flags import CommandParser, add_settings_flags, command_parser, parse_command
from kaminari.cli.interrupt import ended_as_interrupted
from kaminari.config import Settings

if TYPE_CHECKING:
    from kaminari.bench.result import Result
    from kaminari.bench.running import Reporting

PIPED_WIDTH = 160
SUITES = {
    "decode": "seconds per step, by batch and context",
    "prefill": "seconds of a prompt, by length",
    "vision": "seconds of a picture, by tokens",
    "startup": "seconds until a server is ready, for a first and a second start",
    "serve": "what clients see over HTTP, from one client to many",
    "ladder": "what each way to run the decoder adds",
}
# fewer rounds of fewer cases: enough to see whether something is badly wrong
QUICK = {
    "rounds": 2,
    "tokens": 4,
    "batches": (1, 8),
    "contexts": (512,),
    "prompts": (512,),
    "pictures": (512,),
    "clients": (1, 8),
    "requests": 2,
}


def run(argv: Sequence[str]) -> int:
    """Measure and print. Raises `CommandError` where nothing can be measured."""
    command = parse_command(_parser(), argv)
    args = command.args
    options = _options(args)
    result = measure(args.suite, command.settings, options, _as_typed(argv), quiet=args.json)
    if args.json:
        print(result.model_dump_json(indent=1))
    else:
        _print(result)
    if result.complete:
        return 0
    return INTERRUPTED if any(note.startswith("interrupted") for note in result.notes) else FAILURE


def measure(suite: str, settings: Settings, options: Options, typed: str, *, quiet: bool) -> Result:
    """Run a suite behind a progress bar. Raises `CommandError`."""
    from kaminari.bench.llama_cpp import PeerError
    from kaminari.bench.load import LoadError
    from kaminari.bench.running import check_peers
    from kaminari.bench.running import measure as run_suite
    from kaminari.bench.subject import CasesError
    from kaminari.engine.capacity import CapacityError
    from kaminari.engine.placement import PlacementError
    from kaminari.model.family import CheckpointError

    try:
        check_peers(suite, options)
    except CasesError as error:
        raise CommandError(str(error), exit_code=USAGE) from error
    console = Console(stderr=True)
    console.quiet = quiet or not console.is_terminal
    with _reporting(console) as reporting, ended_as_interrupted():
        try:
            return run_suite(suite, settings, options, typed, reporting)
        except (CasesError, CheckpointError, CapacityError, PlacementError, PeerError, LoadError) as error:
            raise CommandError(str(error)) from error


@contextmanager
def _reporting(console: Console) -> Iterator[Reporting]:
    from kaminari.bench.running import Reporting

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("Loading", total=None)

        def loading(done: int, total: int) -> None:
            bar.update(task, description=f"Loading, {done / max(1, total):.0%}", completed=0, total=None)

        def measuring(text: str, done: int, total: int) -> None:
            bar.update(task, description=text, completed=done, total=total or None)

        yield Reporting(loading, measuring)


def _parser() -> CommandParser:
    parser = command_parser("bench", "Measure how fast a model runs here, beside the machine's limits.")
    parser.usage = "kaminari bench SUITE [MODEL] [FLAGS]"
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "suites:\n" + "\n".join(f"  {name:8} {about}" for name, about in SUITES.items())
    parser.add_argument("suite", metavar="SUITE", choices=SUITES, help="what to measure, see below")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--quick", action="store_true", help="fewer rounds of fewer cases")
    parser.add_argument(
        "--against",
        type=_peer,
        action="append",
        default=[],
        metavar="PEER",
        help="hf: transformers, in turns; reading: of as many bytes as a step reads, in turns; "
        "llama.cpp=DIR: the programs of a build",
    )
    parser.add_argument("--gguf", type=Path, metavar="FILE", help="the same model for llama.cpp")
    parser.add_argument("--rounds", type=_count, metavar="N", help="turns of everybody per case (default: 5)")
    parser.add_argument(
        "--tokens", type=_count, metavar="N", help="steps per turn, and tokens of a served answer"
    )
    for name, default, what in (
        ("batches", BATCHES, "rows of a decode step"),
        ("contexts", CONTEXTS, "tokens that a row holds while it decodes"),
        ("prompts", PROMPTS, "prompt tokens of the prefill suite"),
        ("pictures", PICTURES, "tokens of a picture of the vision suite"),
        ("clients", CLIENTS, "clients of the closed loop"),
    ):
        shown = ",".join(str(each) for each in default)
        parser.add_argument(f"--{name}", type=_counts, metavar="N[,N]", help=f"{what} (default: {shown})")
    parser.add_argument("--requests", type=_count, metavar="N", help="requests per client (default: 4)")
    parser.add_argument(
        "--pictures-share", type=_share, metavar="X", help="of the requests, from 0 to 1 (default: 0.5)"
    )
    parser.add_argument(
        "--rate", type=_rate, metavar="X", help="requests per second of the open loop (default: by measure)"
    )
    parser.add_argument(
        "--rungs", type=_rungs, metavar="RUNG[,RUNG]", help="of the ladder (default: all that the model has)"
    )
    parser.add_argument(
        "--profile",
        action="store_true",
        help="say what takes the time of a decode step, with decode and serve",
    )
    add_settings_flags(parser, ("model", "engine"))
    return parser


def _options(args: argparse.Namespace) -> Options:
    """What was asked, over the quick choices where those are asked for, over the defaults."""
    chosen: dict[str, Any] = dict(QUICK) if args.quick else {}
    named = ("rounds", "tokens", "batches", "contexts", "prompts", "pictures", "clients")
    for name in (*named, "requests", "pictures_share", "rate", "rungs"):
        if getattr(args, name) is not None:
            chosen[name] = getattr(args, name)
    asked = frozenset(name for name in named if getattr(args, name) is not None)
    folders = [folder for peer, folder in args.against if peer == LLAMA_CPP]
    return Options(
        **chosen,
        asked=asked,
        hf=any(peer == HF for peer, _ in args.against),
        reading=any(peer == READING for peer, _ in args.against),
        llama_cpp=folders[-1] if folders else None,
        gguf=args.gguf,
        profile=args.profile,
    )


def _peer(text: str) -> tuple[str, Path | None]:
    if text in (HF, READING):
        return text, None
    name, equals, folder = text.partition("=")
    if name == LLAMA_CPP and equals and folder:
        return LLAMA_CPP, Path(folder)
    raise argparse.ArgumentTypeError(f"must be {HF}, {READING} or {LLAMA_CPP}=DIR, not {text!r}")


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return count


def _counts(text: str) -> tuple[int, ...]:
    try:
        return tuple(_count(part) for part in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"must be whole numbers with commas between, not {text!r}"
        ) from error


def _rungs(text: str) -> tuple[str, ...]:
    from kaminari.bench.ladder import RUNGS

    names = tuple(text.split(","))
    for name in names:
        if name not in RUNGS:
            raise argparse.ArgumentTypeError(f"no such rung: {name!r}; there are {', '.join(RUNGS)}")
    return names


def _share(text: str) -> float:
    return _bounded(text, lambda number: 0 <= number <= 1, "from 0 to 1")


def _rate(text: str) -> float:
    return _bounded(text, lambda number: 0 < number < 1e6, "above 0")


def _bounded(text: str, holds: Callable[[float], bool], rule: str) -> float:
    number = float(text)
    if not holds(number):
        raise argparse.ArgumentTypeError(f"must be {rule}, not {text}")
    return number


def _as_typed(argv: Sequence[str]) -> str:
    """The command line without the folders of this machine: a path stands as its last name."""
    words = []
    for word in argv:
        head, equals, tail = word.partition("=")
        words.append(f"{head}={_last_name(tail)}" if equals else _last_name(word))
    return shlex.join(["kaminari", "bench", *words])


def _last_name(word: str) -> str:
    path = Path(word).expanduser()
    is_path = word.startswith((".", "/", "~")) or ("/" in word and path.exists())
    return path.resolve().name if is_path else word


def _print(result: Result) -> None:
    from kaminari.bench.table import limit_lines, tables

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, PIPED_WIDTH)
    for line in limit_lines(result.limits):
        console.print(Text(f"this machine {line}", style="dim"))
    for table in tables(result):
        drawn = Table(title=table.title, title_justify="left", box=SIMPLE_HEAD)
        for header in table.headers:
            drawn.add_column(header, justify="left" if header in ("entrant", "component") else "right")
        for row in table.rows:
            drawn.add_row(*row)
        console.print(drawn)
    for note in result.notes:
        console.print(Text(note, style="yellow"))
