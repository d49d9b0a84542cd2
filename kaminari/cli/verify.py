"""`kaminari verify MODEL`: whether a checkpoint gives the reference's numbers at every stage, and its tokens.

Exit code 0 where everything is within tolerance, 1 where something is not or cannot be run.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kaminari.cli.errors import USAGE, CommandError
from kaminari.cli.flags import add_settings_flags, command_parser, parse_command
from kaminari.config import DtypeChoice, ModelSettings

if TYPE_CHECKING:
    from kaminari.verify.prompts import Prompt
    from kaminari.verify.replay import Mode
    from kaminari.verify.trace import Trace
    from kaminari.verify.verifying import Fault, Report

MODES = ("isolated", "through", "both")


def run(argv: Sequence[str]) -> int:
    """Verify and print the tables. Raises `CommandError` where there is nothing to compare."""
    parser = command_parser(
        "verify",
        "Run the reference and kaminari stage by stage on a checkpoint and say where they part. "
        'Here --dtype auto is float32, which "same tokens" is stated for.',
    )
    parser.add_argument("--ask", metavar="TEXT", help="this prompt instead of the built-in ones")
    parser.add_argument("--image", action="append", default=[], metavar="FILE", help="a picture to ask about")
    parser.add_argument(
        "--mode",
        choices=MODES,
        default="both",
        help="isolated: each stage takes the reference's own input; through: errors add up (default: both)",
    )
    parser.add_argument(
        "--tokens", type=_count, default=16, metavar="N", help="length of the greedy answers (default: 16)"
    )
    parser.add_argument("--save", type=Path, metavar="FILE", help="keep the reference's trace (safetensors)")
    parser.add_argument("--against", type=Path, metavar="FILE", help="use a saved trace; run no reference")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    add_settings_flags(parser, ("model",))
    command = parse_command(parser, argv)
    args = command.args
    _check(args)
    if command.settings.model.pack_folder is not None:
        raise CommandError(
            "verify holds the checkpoint's own weights to the reference: use --quantization none; "
            "`kaminari quantize --report` measures a pack",
            exit_code=USAGE,
        )
    progress = Console(stderr=True, highlight=False, quiet=args.json)
    with progress.status("starting") as status:
        trace, report = verify(
            command.settings.model, _prompts(args), args, lambda doing: status.update(doing)
        )
    if args.json:
        print(_as_json(trace, report))
    else:
        _print_tables(trace, report)
    return 0 if report.passed else 1


def verify(
    settings: ModelSettings,
    prompts: Sequence[Prompt],
    args: argparse.Namespace,
    progress: Callable[[str], None],
) -> tuple[Trace, Report]:
    """Record or read a trace, then hold the model to it. Raises `CommandError`."""
    import transformers

    from kaminari.engine.errors import RequestError
    from kaminari.engine.loading import checkpoint_folder
    from kaminari.engine.placement import PlacementError, resolve_device
    from kaminari.model.family import CheckpointError, LoadOptions, find_family
    from kaminari.model.stages import find_stages
    from kaminari.verify.reference import record_reference
    from kaminari.verify.replay import Replayer, open_frontend
    from kaminari.verify.trace import TraceError, checkpoint_digest, load_trace, save_trace
    from kaminari.verify.verifying import hold_to

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    dtype, vision_dtype = _dtypes(settings)
    try:
        device = resolve_device(settings.device)
        folder = checkpoint_folder(settings.source)
        stages = find_stages(folder)
        if args.against is not None:
            trace = load_trace(args.against)
            if trace.checkpoint != checkpoint_digest(folder):
                raise TraceError(f"{args.against} is the trace of another checkpoint than {folder}")
        else:
            trace = record_reference(folder, prompts, dtype, tokens=args.tokens, progress=progress)
        if args.save is not None:
            save_trace(trace, args.save)
        progress("loading kaminari's model")
        frontend = open_frontend(folder, max(len(each.prompt.pictures) for each in trace.prompts))
        model = find_family(folder).load(folder, LoadOptions(device, dtype, vision_dtype))
        coarsest = min((dtype, vision_dtype), key=lambda each: each.itemsize)
        replayer = Replayer(model, stages, frontend)
        return trace, hold_to(trace, replayer, coarsest, modes=_modes(args.mode), progress=progress)
    except (CheckpointError, PlacementError, TraceError) as error:
        raise CommandError(str(error)) from error
    except RequestError as error:
        raise CommandError(f"the prompt cannot be made: {error.message}") from error
    except OSError as error:
        raise CommandError(f"cannot write {args.save}: {error.strerror or error}") from error


def _check(args: argparse.Namespace) -> None:
    """Refuse before anything is loaded what cannot go together or cannot be written."""
    if args.against is not None and (args.save is not None or args.ask is not None or args.image):
        raise CommandError(
            "--against brings its own prompts and its own trace: leave out --ask, --image and --save",
            exit_code=USAGE,
        )
    if args.save is not None and not args.save.absolute().parent.is_dir():
        raise CommandError(f"cannot write {args.save}: its folder does not exist")


def _prompts(args: argparse.Namespace) -> tuple[Prompt, ...]:
    from kaminari.verify.prompts import chosen

    try:
        return chosen(args.ask, args.image)
    except OSError as error:
        raise CommandError(f"cannot read the picture {error.filename}: {error.strerror}") from error


def _dtypes(settings: ModelSettings) -> tuple[Any, Any]:
    """Of the decoder and of the tower."""
    import torch

    named = {DtypeChoice.FLOAT32: torch.float32, DtypeChoice.BFLOAT16: torch.bfloat16}
    dtype = named.get(settings.dtype, torch.float32)
    return dtype, named.get(settings.vision_dtype, dtype)


def _modes(choice: str) -> tuple[Mode, ...]:
    from kaminari.verify.replay import Mode

    return (Mode.ISOLATED, Mode.THROUGH) if choice == "both" else (Mode(choice),)


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return count


def _as_json(trace: Trace, report: Report) -> str:
    """JSON has no infinity: a difference that cannot be measured is null."""
    stages = [
        {
            "prompt": comparison.prompt,
            "mode": comparison.mode.value,
            "stage": stage.stage,
            "input": _finite(stage.entering),
            "output": _finite(stage.output),
            "tolerance": stage.tolerance,
            "fault": stage.fault,
        }
        for comparison in report.comparisons
        for stage in comparison.stages
    ]
    answers = [
        {
            "prompt": answer.prompt,
            "tokens": answer.tokens,
            "parted": answer.parted,
            "near_tie": answer.excused,
            "passed": answer.passed,
        }
        for answer in report.answers
    ]
    fault = report.first_fault
    return json.dumps(
        {
            "passed": report.passed,
            "reference": {"dtype": trace.dtype, "made_with": trace.made_with},
            "first_fault": None
            if fault is None
            else {
                "stage": fault.stage.stage,
                "where": fault.where,
                "mode": fault.mode.value,
                "prompt": fault.prompt,
            },
            "stages": stages,
            "greedy": answers,
        },
        ensure_ascii=False,
        indent=2,
    )


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _print_tables(trace: Trace, report: Report) -> None:
    console = Console(highlight=False)
    console.print(Text(f"Reference in {trace.dtype}, {trace.made_with}", style="dim"))
    for mode in dict.fromkeys(comparison.mode for comparison in report.comparisons):
        table = Table(title=f"{mode.value}: largest relative differences", title_justify="left")
        for name in ("stage", "input", "output", "tolerance"):
            table.add_column(name, justify="left" if name == "stage" else "right")
        table.add_column("")
        for stage in report.largest(mode):
            verdict = (
                Text("ok", style="green") if stage.fault is None else Text(stage.fault, style="bold red")
            )
            numbers = (stage.entering, stage.output, stage.tolerance)
            table.add_row(stage.stage, *(_spell(number) for number in numbers), verdict)
        console.print(table)
    for answer in report.answers:
        console.print(Text(f"greedy, {answer.prompt}: {_told(answer.parted, answer.tokens, answer.excused)}"))
    console.print(_verdict(report.first_fault, report.passed))


def _spell(number: float) -> str:
    return "0" if number == 0 else f"{number:.1e}" if math.isfinite(number) else "other"


def _told(parted: int | None, tokens: int, excused: bool) -> str:
    if parted is None:
        return f"the same {tokens} tokens"
    tie = ", where the reference's own top two logits nearly tie" if excused else ""
    return f"another token at place {parted} of {tokens}{tie}"


def _verdict(fault: Fault | None, passed: bool) -> Text:
    if fault is not None:
        stage = fault.stage
        amount = stage.entering if fault.where == "input" else stage.output
        place = f"what enters {stage.stage}" if fault.where == "input" else stage.stage
        return Text(
            f"first out of tolerance: {place} ({fault.mode.value}, prompt {fault.prompt!r}, "
            f"{_spell(amount)} against {_spell(stage.tolerance)})",
            style="bold red",
        )
    if not passed:
        return Text("every stage is within tolerance, and the greedy tokens differ", style="bold red")
    return Text("every stage is within tolerance, and the greedy tokens are the same", style="green")
