"""uvicorn, told how this server starts and stops: a socket that is bound first, and a lifecycle to end by."""

from __future__ import annotations

import math
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from kaminari.config import LogLevel, ServerSettings
from kaminari.openai_api.http_protocol import HttpProtocol
from kaminari.openai_api.lifecycle import Lifecycle

SIGNALS = (signal.SIGINT, signal.SIGTERM)
KEEP_ALIVE_SECONDS = 30
BACKLOG = 1024
_AFTER_GRACE_SECONDS = 4.0


def listen(settings: ServerSettings) -> socket.socket:
    """Bind and listen, so that a port in use is known before anything is loaded. Raises `OSError`.

    Where the system can, a peer that acknowledges nothing for the send timeout loses its connection: uvicorn
    alone would keep it for ever, with what is still unsent.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(
        settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            milliseconds = int(settings.send_timeout.total_seconds() * 1000)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


class Server(uvicorn.Server):
    """Serves one application. SIGINT and SIGTERM end it in order, and end nothing else."""

    def __init__(self, app: ASGIApp, lifecycle: Lifecycle, settings: ServerSettings) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                loop="asyncio",
                http=HttpProtocol,
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=settings.log_level in (LogLevel.DEBUG, LogLevel.INFO),
                server_header=False,
                proxy_headers=False,
                backlog=BACKLOG,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=math.ceil(lifecycle.grace + _AFTER_GRACE_SECONDS),
            )
        )
        self._lifecycle = lifecycle

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._lifecycle.begin_shutdown()
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A second SIGINT ends the grace. uvicorn's own would leave out the end of the application, and with
        it what knows of busy workers."""
        if self.should_exit and sig == signal.SIGINT:
            self._lifecycle.hurry()
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn's own raises the signal anew once it has stopped, which would be a death, not an exit."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
