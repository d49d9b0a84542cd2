"""`kaminari serve`: binds the port, answers `/health` while the model loads, then serves until told to stop.

The server's loop has the main thread (signals reach it there); the model is loaded beside it.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from kaminari import __version__
from kaminari.cli.chat import precision
from kaminari.cli.errors import CommandError
from kaminari.cli.flags import add_settings_flags, command_parser, parse_command
from kaminari.cli.loading import load_engine
from kaminari.config import DeviceChoice, LogLevel, ServerSettings, Settings
from kaminari.engine.heap import share_heap

if TYPE_CHECKING:
    from kaminari.engine.engine import Engine
    from kaminari.engine.info import EngineInfo
    from kaminari.openai_api.lifecycle import Lifecycle
    from kaminari.openai_api.server import Server

log = logging.getLogger("kaminari.serve")

CLOSING_SECONDS = 10.0
REAL_MODEL = "Qwen/Qwen3-VL-2B-Instruct"


def run(argv: Sequence[str]) -> int:
    parser = command_parser("serve", "Serve a model behind the OpenAI API. Without MODEL: the embedded demo.")
    add_settings_flags(parser)
    return serve(parse_command(parser, argv).settings)


def serve(settings: Settings) -> int:
    """Serve until SIGINT or SIGTERM, and return 0. Raises `CommandError` for a start that fails."""
    configure_logging(settings.server.log_level)
    console = Console(stderr=True, highlight=False)
    progress = Console(stderr=True, quiet=not console.is_terminal)
    folder = settings.media.folder
    if folder is not None and not folder.is_dir():
        raise CommandError(f"the media folder {folder} is not a folder; change KAMINARI_MEDIA__FOLDER")
    listener = _listen(settings.server)
    if settings.model.device is not DeviceChoice.CUDA:
        share_heap()
    from kaminari.openai_api.app import create_app
    from kaminari.openai_api.lifecycle import Lifecycle
    from kaminari.openai_api.server import Server

    url = base_url(listener)
    if not settings.server.api_keys:
        _warn_of_strangers(listener, console)
    lifecycle = Lifecycle(grace=settings.server.grace.total_seconds())
    server = Server(create_app(lifecycle, settings), lifecycle, settings.server)
    loading = Loading(settings, progress, lifecycle, server, url)
    loading.start()
    server.run(sockets=[listener])
    return loading.leave()


class Loading(threading.Thread):
    """Loads the engine beside the running server and hands it over, or stops the server."""

    def __init__(
        self, settings: Settings, console: Console, lifecycle: Lifecycle, server: Server, url: str
    ) -> None:
        super().__init__(name="kaminari-loading", daemon=True)
        self._settings = settings
        self._console = console
        self._lifecycle = lifecycle
        self._server = server
        self._url = url
        self._engine: Engine | None = None
        self._failure: CommandError | None = None

    def run(self) -> None:
        try:
            self._engine = load_engine(self._settings, self._console)
        except CommandError as error:
            self._failure = error
        except Exception as error:
            log.debug("loading failed", exc_info=True)
            self._failure = CommandError(f"loading failed: {type(error).__name__}: {_first_line(error)}")
        if self._engine is None:
            self._server.should_exit = True
            return
        self._lifecycle.attach(self._engine)
        print(ready_text(self._engine.info, self._url), flush=True)

    def leave(self) -> int:
        """The server has stopped: close the engine and return 0. Raises what a failed load left."""
        if self.is_alive() and self._engine is None and self._failure is None:
            self._console.show_cursor(True)
            _exit_now()
        self.join()
        if self._failure is not None:
            raise self._failure
        if self._engine is not None:
            closing = threading.Thread(target=self._engine.close, name="kaminari-closing", daemon=True)
            closing.start()
            closing.join(CLOSING_SECONDS)
            if closing.is_alive():
                log.warning("the engine did not stop within %g s", CLOSING_SECONDS)
                _exit_now()
        if self._lifecycle.work_left:
            _exit_now()
        return 0


def configure_logging(level: LogLevel) -> None:
    """Log to stderr. What the libraries say of their own doings stays out, except when debugging."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    chosen = logging.getLevelNamesMapping()[level.value.upper()]
    for name in ("kaminari", "uvicorn.access"):
        logging.getLogger(name).setLevel(chosen)
    debugging = level is LogLevel.DEBUG
    logging.getLogger("uvicorn.error").setLevel(logging.INFO if debugging else max(chosen, logging.WARNING))


def base_url(listener: socket.socket) -> str:
    """The address to give to a client of this machine."""
    host, port = listener.getsockname()[:2]
    address = ipaddress.ip_address(host)
    if address.is_unspecified:
        host = "127.0.0.1" if address.version == 4 else "::1"
    return f"http://[{host}]:{port}/v1" if ":" in host else f"http://{host}:{port}/v1"


def ready_text(info: EngineInfo, url: str) -> str:
    """What a person needs to know once requests are served; the first line holds all the facts."""
    lines = [
        f"kaminari {__version__} is ready at {url}: model {info.model}, device {info.device}, "
        f"dtype {precision(info.dtype, info.quantization)}, "
        f"{f'kernels {info.kernels}, ' if info.kernels else ''}"
        f"{info.slots} {'slot' if info.slots == 1 else 'slots'}, context {info.context} tokens"
    ]
    if info.demo:
        lines += [
            "This is the embedded demo: a very small model that reads small rendered pictures (one line of",
            "text, a short receipt, shapes and colours) and nothing else. To serve a real one:",
            f"  kaminari serve {REAL_MODEL}",
        ]
    body = '{"messages": [{"role": "user", "content": "What is the capital of France?"}]}'
    lines += [
        "Try it:",
        f"  curl {url}/chat/completions -H 'Content-Type: application/json' -d '{body}'",
    ]
    return "\n".join(lines)


def _listen(settings: ServerSettings) -> socket.socket:
    from kaminari.openai_api.server import listen

    try:
        return listen(settings)
    except OSError as error:
        raise CommandError(
            f"cannot listen on {settings.host} port {settings.port}: {error.strerror}; "
            "choose another with --host and --port"
        ) from error


def _warn_of_strangers(listener: socket.socket, console: Console) -> None:
    host = listener.getsockname()[0]
    if not ipaddress.ip_address(host).is_loopback:
        console.print(
            f"warning: listening on {host}, beyond this machine, and there is no API key: "
            "whoever reaches the port can use the model",
            style="yellow",
        )


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or ["no details"])[0]


def _exit_now() -> None:
    """Leave without waiting for a thread that cannot be stopped; the interpreter's own end would wait."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
