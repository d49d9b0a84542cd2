"""A picture host that misbehaves as it is told, on a local port; it counts the connections that it sees."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from kaminari.openai_api.body import Bodies, Place

Behaviour = Callable[[asyncio.StreamWriter, str], Awaitable[None]]


def room(total: int = 10**9) -> Place:
    """Memory that pictures may take, in bytes."""
    return Place(Bodies(total))


@dataclass
class PictureHost:
    """port:  where it listens;  seen:  the head of each request;  connections:  how many came"""

    port: int = 0
    connections: int = 0
    seen: list[str] = field(default_factory=list)


@asynccontextmanager
async def picture_host(
    behave: Behaviour, address: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None
) -> AsyncIterator[PictureHost]:
    """Answer each connection by `behave(writer, path)` and then close it; `tls` makes it an https host."""
    host = PictureHost()
    tasks: set[asyncio.Task[None]] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host.connections += 1
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            host.seen.append(head)
            await behave(writer, head.split(" ")[1])
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            tasks.discard(task)
            writer.transport.abort() if writer.transport.is_closing() else writer.close()

    server = await asyncio.start_server(answer, address, port, ssl=tls)
    host.port = server.sockets[0].getsockname()[1]
    try:
        yield host
    finally:
        server.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.sleep(0)
        await server.wait_closed()


def sends(body: bytes, *headers: str, status: str = "200 OK", length: int | None = None) -> Behaviour:
    """A whole answer; `length` is what it claims (None: what is true)."""

    async def behave(writer: asyncio.StreamWriter, path: str) -> None:
        lines = [f"HTTP/1.1 {status}", f"content-length: {len(body) if length is None else length}", *headers]
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        await writer.drain()

    return behave


def redirects(to: str) -> Behaviour:
    return sends(b"", f"location: {to}", status="302 Found")


def drips(pause: float) -> Behaviour:
    """A header at once, then a byte every `pause` seconds, for ever."""

    async def behave(writer: asyncio.StreamWriter, path: str) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(pause)

    return behave


async def endless(writer: asyncio.StreamWriter, path: str) -> None:
    """A body without an end, as fast as it is read."""
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"10000\r\n" + bytes(65536) + b"\r\n")
        await writer.drain()


async def silent(writer: asyncio.StreamWriter, path: str) -> None:
    """Accept and never answer."""
    await asyncio.sleep(60)
