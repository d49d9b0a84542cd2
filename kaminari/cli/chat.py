"""`kaminari chat`: talk to a model in the terminal, with pictures. The engine runs in this process."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from kaminari.cli.errors import USAGE, CommandError
from kaminari.cli.flags import add_settings_flags, command_parser, parse_command
from kaminari.cli.loading import load_engine

if TYPE_CHECKING:
    from kaminari.engine.conversation import Message
    from kaminari.engine.engine import Engine
    from kaminari.engine.params import SamplingParams

HELP = """\
/image FILE   add a picture to your next message (as often as you like)
/clear        start a new conversation
/help         this list
/exit         leave (so does Ctrl-D; Ctrl-C stops an answer)"""


def run(argv: Sequence[str]) -> int:
    parser = command_parser("chat", "Talk to a model in the terminal. Without --ask, a prompt opens.")
    parser.add_argument("--image", action="append", default=[], metavar="FILE", help="a picture to ask about")
    parser.add_argument("--ask", metavar="TEXT", help="ask this, print the answer, and leave")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default: 0)")
    parser.add_argument("--max-tokens", type=int, default=None, help="longest answer in tokens")
    add_settings_flags(parser, ("model", "engine", "pictures"))
    command = parse_command(parser, argv)
    pictures = [_read(Path(name)) for name in command.args.image]
    params = _params(command.args)
    console = Console(stderr=True, highlight=False)
    with load_engine(command.settings, console) as engine:
        chat = Chat(engine, params, pictures)
        if command.args.ask is not None:
            return 0 if chat.say(command.args.ask) else 1
        info = engine.info
        numbers = precision(info.dtype, info.quantization)
        console.print(f"{info.model} on {info.device}, {numbers}. /help lists the commands.", style="dim")
        return _converse(chat, console)


def precision(dtype: str, pack: str) -> str:
    """How precise a model is, in words."""
    return dtype if pack == "none" else f"{dtype}, quantized {pack}"


def _params(args: argparse.Namespace) -> SamplingParams:
    from kaminari.engine.errors import RequestError
    from kaminari.engine.params import SamplingParams

    try:
        return SamplingParams(temperature=args.temperature, max_tokens=args.max_tokens)
    except RequestError as error:
        raise CommandError(error.message, exit_code=USAGE) from error


class Chat:
    """A conversation with one engine, and the pictures that wait for the next message."""

    def __init__(self, engine: Engine, params: SamplingParams, pictures: Sequence[bytes] = ()) -> None:
        self._engine = engine
        self._params = params
        self._pictures = list(pictures)
        self._turns: list[Message] = []

    def add_picture(self, data: bytes) -> None:
        self._pictures.append(data)

    def clear(self) -> None:
        self._pictures.clear()
        self._turns.clear()

    def say(self, text: str) -> bool:
        """Send a message and print the answer as it comes. False where the message was refused or failed."""
        from kaminari.engine.conversation import Conversation, Message, Part, PicturePart, Role, TextPart
        from kaminari.engine.errors import RequestError
        from kaminari.engine.events import Delta, Failed

        parts: tuple[Part, ...] = (*map(PicturePart, self._pictures), TextPart(text))
        turns = [*self._turns, Message(Role.USER, parts)]
        answer = ""
        try:
            stream = self._engine.submit(self._engine.prepare(Conversation(tuple(turns))), self._params)
            for event in stream:
                if isinstance(event, Delta):
                    answer += event.text
                    print(event.text, end="", flush=True)
                elif isinstance(event, Failed):
                    print(f"\n{event.message}", file=sys.stderr)
                    return False
        except RequestError as error:
            print(error.message, file=sys.stderr)
            return False
        except KeyboardInterrupt:
            print(" [stopped]", end="")
        print()
        self._turns = [*turns, Message.text(Role.ASSISTANT, answer)]
        self._pictures.clear()
        return True


def _converse(chat: Chat, console: Console) -> int:
    while True:
        try:
            line = console.input("[bold]> [/bold]").strip()
        except EOFError:
            return 0
        except KeyboardInterrupt:
            console.print()
            continue
        word, _, rest = line.partition(" ")
        if word in ("/exit", "/quit"):
            return 0
        if word == "/help":
            console.print(HELP)
        elif word == "/clear":
            chat.clear()
        elif word == "/image":
            _add_pictures(chat, rest, console)
        elif word.startswith("/"):
            console.print(f"no such command: {word}; /help lists them", markup=False)
        elif line:
            chat.say(line)


def _add_pictures(chat: Chat, names: str, console: Console) -> None:
    try:
        for name in shlex.split(names):
            chat.add_picture(_read(Path(name).expanduser()))
    except (CommandError, ValueError) as error:
        console.print(str(error), markup=False)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CommandError(f"cannot read the picture {path}: {error.strerror}") from error
