"""`kaminari smoke URL`: whether a running OpenAI-compatible server answers simple questions about pictures.

Exit code 0 where every item passes, 1 where one fails or the server cannot be reached.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kaminari.cli.errors import USAGE, CommandError
from kaminari.smoke.battery import ITEMS
from kaminari.smoke.client import ChatClient, ServerError, api_root
from kaminari.smoke.running import Outcome, run_battery

ANSWER_SHOWN = 80
_NAMES = tuple(item.name for item in ITEMS)


def run(argv: Sequence[str]) -> int:
    """Run the battery and print its table. Raises `CommandError` where the server cannot be asked."""
    args = _parser().parse_args(argv)
    items = [item for item in ITEMS if item.name in (args.only or _NAMES) and item.name not in args.skip]
    if not items:
        raise CommandError("--only and --skip leave no item", exit_code=USAGE)
    progress = Console(stderr=True, quiet=args.json)
    with ChatClient(args.url, api_key=args.api_key, timeout=args.timeout) as client:
        try:
            model = args.model or client.first_model()
            outcomes = []
            with progress.status(f"Asking {model}") as status:
                for outcome in run_battery(client, model, items, args.max_tokens):
                    outcomes.append(outcome)
                    status.update(f"Asking {model}: {len(outcomes)} of {len(items)} items done")
        except ServerError as error:
            raise CommandError(str(error)) from error
    if args.json:
        print(_as_json(args.url, model, outcomes))
    else:
        _print_table(args.url, model, outcomes)
    return 0 if all(outcome.passed for outcome in outcomes) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kaminari smoke",
        description="Ask any running OpenAI-compatible server simple questions about pictures.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="items:\n" + "\n".join(f"  {item.name:9} {item.shows}" for item in ITEMS),
        allow_abbrev=False,
    )
    parser.add_argument("url", metavar="URL", type=_url, help="the server, such as http://127.0.0.1:8000")
    parser.add_argument("--model", help="the model to ask (default: the first that the server lists)")
    parser.add_argument("--api-key", metavar="KEY", help="sent as a bearer token (default: none)")
    parser.add_argument("--only", type=_names, action="extend", default=[], metavar="ITEM[,ITEM]")
    parser.add_argument("--skip", type=_names, action="extend", default=[], metavar="ITEM[,ITEM]")
    parser.add_argument(
        "--timeout", type=_seconds, default=120.0, metavar="SECONDS", help="for each answer (default: 120)"
    )
    parser.add_argument(
        "--max-tokens", type=_count, default=256, metavar="TOKENS", help="longest answer (default: 256)"
    )
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    return parser


def _url(text: str) -> str:
    try:
        return api_root(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _names(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in _NAMES:
            raise argparse.ArgumentTypeError(f"no such item: {name!r}; there are {', '.join(_NAMES)}")
    return names


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"must be above 0, not {text}")
    return seconds


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return count


def _as_json(url: str, model: str, outcomes: Sequence[Outcome]) -> str:
    items = [
        {
            "name": outcome.item.name,
            "shows": outcome.item.shows,
            "passed": outcome.passed,
            "problem": outcome.problem,
            "answers": list(outcome.answers),
            "seconds": round(outcome.seconds, 3),
        }
        for outcome in outcomes
    ]
    passed = all(outcome.passed for outcome in outcomes)
    return json.dumps(
        {"url": url, "model": model, "passed": passed, "items": items}, ensure_ascii=False, indent=2
    )


def _print_table(url: str, model: str, outcomes: Sequence[Outcome]) -> None:
    console = Console(highlight=False)
    table = Table(title=Text(f"{model} at {url}"), title_justify="left")
    table.add_column("item")
    table.add_column("shows")
    table.add_column("")
    table.add_column("seconds", justify="right")
    table.add_column("last answer, and what is wrong with it", overflow="fold")
    for outcome in outcomes:
        told = Text(_shortened(outcome.answers[-1]) if outcome.answers else "")
        if outcome.problem is not None:
            told.append(f"{' ' if told else ''}({outcome.problem})", style="red")
        table.add_row(
            outcome.item.name,
            outcome.item.shows,
            Text("pass", style="green") if outcome.passed else Text("FAIL", style="bold red"),
            f"{outcome.seconds:.1f}",
            told,
        )
    console.print(table)
    failed = [outcome.item.name for outcome in outcomes if not outcome.passed]
    summary = f"{len(outcomes) - len(failed)} of {len(outcomes)} items passed"
    console.print(Text(summary + (f"; failed: {', '.join(failed)}" if failed else "")))


def _shortened(answer: str) -> str:
    line = " ".join(answer.split())
    return line if len(line) <= ANSWER_SHOWN else f"{line[:ANSWER_SHOWN]} ..."
