"""Remote pictures: every hop is checked, the checked address is dialled, each failure is a bounded 400."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kaminari.config import MediaSettings
from kaminari.engine.errors import QueueFull, RequestError
from kaminari.openai_api.body import Bodies
from kaminari.openai_api.remote_address import is_private, is_public, system_resolver
from kaminari.openai_api.remote_media import RemoteMedia
from tests.cases.loading import FILES, case
from tests.openai_api.harness import until
from tests.openai_api.picture_host import (
    Behaviour,
    drips,
    endless,
    picture_host,
    redirects,
    room,
    sends,
    silent,
)
from tests.patience import patience

PICTURE = (FILES / "digit_1.png").read_bytes()
NAME = "pictures.test"
Resolve = Callable[[str, int], Awaitable[list[str]]]


def resolver(*answers: list[str]) -> Resolver:
    """Give one answer after the other, the last for ever; more look-ups than answers show in `lookups`."""
    return Resolver(list(answers))


class Resolver:
    def __init__(self, answers: list[list[str]]) -> None:
        self.answers = answers
        self.lookups: list[str] = []

    async def __call__(self, host: str, port: int) -> list[str]:
        self.lookups.append(host)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def remote(resolve: Resolve | None = None, *, total: int = 10_000_000, **media: Any) -> RemoteMedia:
    settings = MediaSettings(
        **{"allowed_hosts": [NAME], "allow_private": True, "timeout": "10s", "max_size": "1MB", **media}
    )
    return RemoteMedia(settings, max_total=total, max_requests=2, resolve=resolve or resolver(["127.0.0.1"]))


async def got(media: RemoteMedia, url: str) -> bytes | str:
    """The bytes, or the message of the refusal, which repeats nothing of the address."""
    with patience():
        (found,) = (await media.fetch([url], room())).values()
    if isinstance(found, bytes):
        return found
    assert NAME not in found.message
    assert "127." not in found.message
    return found.message


async def test_a_picture_is_fetched_under_its_hosts_name() -> None:
    async with picture_host(sends(PICTURE)) as host:
        assert await got(remote(), f"http://{NAME.upper()}.:{host.port}/a%20b.png?q=1#f") == PICTURE
        (head,) = host.seen
    lines = head.lower().splitlines()
    assert lines[0] == "get /a%20b.png?q=1 http/1.1"
    assert f"host: {NAME}.:{host.port}" in lines
    assert not [line for line in lines if line.startswith(("cookie", "authorization"))]


async def test_a_host_that_is_not_allowed_is_not_even_looked_up() -> None:
    resolve = resolver(["127.0.0.1"])
    async with picture_host(sends(PICTURE)) as host:
        for name in ("other.test", f"x.{NAME}", f"{NAME}.x", "127.0.0.1", "localhost", "[::1]"):
            said = await got(remote(resolve), f"http://{name}:{host.port}/")
            assert "not one that this server fetches from" in str(said)
        for url in (f"http://{NAME}@127.0.0.1:{host.port}/", f"http://u:p@{NAME}:{host.port}/"):
            assert "no user" in str(await got(remote(resolve), url))
        assert (host.connections, resolve.lookups) == (0, [])


SPELLINGS = [
    "127.0.0.1",
    "127.1",
    "2130706433",
    "0x7f000001",
    "0x7f.1",
    "0177.0.0.1",
    "0",
    "0.0.0.0",
    "localhost",
    "::1",
    "::ffff:127.0.0.1",
    "::ffff:7f00:1",
    "::127.0.0.1",
]


@pytest.mark.parametrize("name", SPELLINGS)
async def test_no_spelling_of_loopback_is_dialled(name: str) -> None:
    """Even where the operator allows the host by that very spelling, its address is not a public one."""
    async with picture_host(sends(PICTURE), "0.0.0.0") as host:
        media = remote(system_resolver, allowed_hosts=[name], allow_private=False)
        shown = f"[{name}]" if ":" in name else name
        (found,) = (await media.fetch([f"http://{shown}:{host.port}/"], room())).values()
        assert isinstance(found, RequestError)
        assert host.connections == 0


@pytest.mark.parametrize(
    "url",
    [
        case("srv-ssrf").input["request"]["messages"][0]["content"][0]["image_url"]["url"],
        *case("srv-ssrf").input["also"],
    ],
)
async def test_srv_ssrf_no_packet_leaves(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def dialled(*_: Any, **__: Any) -> Any:
        pytest.fail("a connection was opened")

    monkeypatch.setattr("httpx.AsyncHTTPTransport.handle_async_request", dialled)
    host = url.split("/")[2].rpartition(":")[0] if url.endswith(":22/") else url.split("/")[2]
    for hosts in ([NAME], [host]):
        media = remote(system_resolver, allowed_hosts=hosts, allow_private=False)
        (found,) = (await media.fetch([url], room())).values()
        assert isinstance(found, RequestError)


@pytest.mark.parametrize(
    "texts", [["127.0.0.1"], ["8.8.8.8", "127.0.0.1"], ["::1"], ["169.254.169.254"], ["fe80::1%1"], []]
)
async def test_a_name_that_points_inside_is_refused_whatever_else_it_points_to(texts: list[str]) -> None:
    async with picture_host(sends(PICTURE)) as host:
        said = await got(remote(resolver(texts), allow_private=False), f"http://{NAME}:{host.port}/")
        assert "the picture's host" in str(said)
        assert host.connections == 0


async def test_srv_ssrf_redirect_to_another_host() -> None:
    """Case srv-ssrf-redirect."""
    async with picture_host(sends(PICTURE)) as inner:
        targets = [
            f"http://127.0.0.1:{inner.port}/secret.png",
            f"//127.0.0.1:{inner.port}/",
            f"http://localhost:{inner.port}/",
            f"http://2130706433:{inner.port}/",
            f"http://{NAME}@127.0.0.1:{inner.port}/",
            "file:///etc/hostname",
            "data:image/png;base64,AAAA",
            "gopher://x/",
            "http://",
            "http://[",
        ]
        for target in targets:
            async with picture_host(redirects(target)) as outer:
                said = await got(remote(), f"http://{NAME}:{outer.port}/")
                assert isinstance(said, str)
                assert 1 <= outer.connections <= 4
        assert inner.connections == 0


async def test_a_name_that_changes_between_check_and_dial_reaches_the_checked_address() -> None:
    async with (
        picture_host(sends(PICTURE), "127.0.0.1") as checked,
        picture_host(sends(b"inner"), "127.0.0.2", checked.port) as inner,
    ):
        resolve = resolver(["127.0.0.1"], ["127.0.0.2"])
        assert await got(remote(resolve), f"http://{NAME}:{checked.port}/") == PICTURE
        assert resolve.lookups == [NAME]
        assert inner.connections == 0


async def test_each_hop_is_resolved_and_checked_anew() -> None:
    async with picture_host(redirects("/again")) as host:
        resolve = resolver(["127.0.0.1"], ["169.254.169.254"])
        said = await got(remote(resolve), f"http://{NAME}:{host.port}/")
        assert "does not fetch from" in str(said)
        assert (host.connections, len(resolve.lookups)) == (1, 2)


@pytest.mark.parametrize(("hops", "reached"), [(0, True), (3, True), (4, False), (100, False)])
async def test_at_most_three_redirects(hops: int, reached: bool) -> None:
    async def behave(writer: asyncio.StreamWriter, path: str) -> None:
        left = int(path.strip("/"))
        answer = redirects(f"/{left - 1}") if left else sends(PICTURE)
        await answer(writer, path)

    async with picture_host(behave) as host:
        found = await got(remote(), f"http://{NAME}:{host.port}/{hops}")
        assert (found == PICTURE) is reached
        assert host.connections <= 4
        if not reached:
            assert "more than 3 times" in str(found)


async def _closes(writer: asyncio.StreamWriter, path: str) -> None:
    writer.close()


async def _garbage(writer: asyncio.StreamWriter, path: str) -> None:
    writer.write(b"\x00\xff not http\r\n\r\n")
    await writer.drain()


async def _endless_header(writer: asyncio.StreamWriter, path: str) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"x-more: " + b"y" * 1000 + b"\r\n")
        await writer.drain()


@pytest.mark.parametrize(
    ("behave", "says"),
    [
        (drips(0.02), "within 0.5 s"),
        (silent, "within 0.5 s"),
        (endless, "larger"),
        (_endless_header, "failed"),
        (sends(PICTURE, length=len(PICTURE) + 1), "failed"),
        (sends(PICTURE, length=10**9), "larger"),
        (sends(PICTURE, length=10**19), "larger"),
        (sends(PICTURE, length=10**40), "failed"),
        (sends(b""), "empty"),
        (sends(PICTURE, "content-encoding: gzip"), "compressed"),
        (sends(b"no", status="404 Not Found"), "status 404"),
        (sends(b"no", status="500 Oh"), "status 500"),
        (sends(b"", status="302 Found"), "status 302"),
        (sends(b"", status="304 Not Modified"), "status 304"),
        (_closes, "failed"),
        (_garbage, "failed"),
    ],
)
async def test_every_way_to_fail_is_a_reason_in_bounded_time(behave: Behaviour, says: str) -> None:
    media = remote(timeout="0.5s") if says == "within 0.5 s" else remote()
    async with picture_host(behave) as host:
        assert says in str(await got(media, f"http://{NAME}:{host.port}/"))


async def test_a_length_that_is_too_short_cuts_the_body_and_no_more() -> None:
    async with picture_host(sends(PICTURE, length=10)) as host:
        assert await got(remote(), f"http://{NAME}:{host.port}/") == PICTURE[:10]


async def test_a_host_that_does_not_listen_or_resolve() -> None:
    async with picture_host(silent) as host:
        port = host.port
    assert "failed" in str(await got(remote(), f"http://{NAME}:{port}/"))
    assert "cannot be found" in str(await got(remote(resolver([])), f"http://{NAME}:{port}/"))

    async def fails(host: str, port: int) -> list[str]:
        raise OSError("no such name")

    assert "cannot be found" in str(await got(remote(fails), f"http://{NAME}:{port}/"))

    async def hangs(host: str, port: int) -> list[str]:
        await asyncio.sleep(60)
        return []

    hurried = remote(hangs, timeout="0.5s")
    assert "within 0.5 s" in str(await got(hurried, f"http://{NAME}:{port}/"))


async def test_the_next_address_is_tried_where_one_takes_no_connection() -> None:
    async with picture_host(sends(PICTURE), "127.0.0.1") as host:
        media = remote(resolver(["127.0.0.3", "127.0.0.1"]))
        assert await got(media, f"http://{NAME}:{host.port}/") == PICTURE


async def test_tls_asks_for_the_name_and_not_for_the_address() -> None:
    hellos: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hellos.append(await reader.read(4096))
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        assert "failed" in str(await got(remote(), f"https://{NAME}:{port}/"))
    (hello,) = hellos
    assert NAME.encode() in hello


@pytest.mark.parametrize(
    "url",
    [
        "http://",
        "http:///x",
        "http://[::1",
        f"http://{NAME}:99999/",
        f"http://{NAME}/\x00",
        "http://a b/",
        f"http://{NAME}/" + "x" * 9000,
    ],
)
async def test_addresses_that_cannot_be_read(url: str) -> None:
    assert isinstance(await got(remote(), url), str)


async def test_bounds_of_one_request() -> None:
    async with picture_host(sends(PICTURE)) as host:
        urls = [f"http://{NAME}:{host.port}/{place}" for place in range(6)]
        found = await remote(total=3 * len(PICTURE)).fetch([*urls, *urls], room())
        assert list(found) == urls
        assert host.connections == 6
        assert sum(isinstance(one, bytes) for one in found.values()) == 3
        assert {one.message for one in found.values() if isinstance(one, RequestError)} == {
            "the pictures of this request are larger together than this server fetches"
        }


async def test_what_all_requests_fetch_is_bounded_in_memory() -> None:
    bodies = Bodies(5 * len(PICTURE))
    async with picture_host(sends(PICTURE)) as host:
        urls = [f"http://{NAME}:{host.port}/{place}" for place in range(3)]
        media = remote(timeout="5s")
        with bodies.place() as first:
            assert len(await media.fetch(urls, first)) == 3
            assert first.taken == 3 * len(PICTURE)
            with bodies.place() as second, pytest.raises(QueueFull):
                await media.fetch(urls, second)
        with bodies.place() as third:
            assert len(await media.fetch(urls, third)) == 3


async def test_requests_that_fetch_are_bounded() -> None:
    async with picture_host(silent) as host:
        media = remote()
        url = f"http://{NAME}:{host.port}/"
        running = [asyncio.create_task(media.fetch([f"{url}{i}"], room())) for i in range(2)]
        await until(lambda: host.connections == 2)
        with pytest.raises(QueueFull):
            await media.fetch([url], room())
        running[0].cancel()
        await asyncio.wait(running[:1])
        async with picture_host(sends(PICTURE)) as other:
            assert await got(media, f"http://{NAME}:{other.port}/") == PICTURE
        running[1].cancel()
        await asyncio.wait(running)


@pytest.mark.parametrize(
    ("text", "public", "private"),
    [
        ("8.8.8.8", True, False),
        ("2606:4700::1111", True, False),
        ("::ffff:8.8.8.8", True, False),
        ("127.0.0.1", False, True),
        ("127.255.255.254", False, True),
        ("10.1.2.3", False, True),
        ("172.16.0.1", False, True),
        ("192.168.1.1", False, True),
        ("::1", False, True),
        ("fd00::1", False, True),
        ("::ffff:10.0.0.1", False, True),
        ("0.0.0.0", False, False),
        ("::", False, False),
        ("169.254.169.254", False, False),
        ("::ffff:169.254.169.254", False, False),
        ("fe80::1", False, False),
        ("fe80::1%eth0", False, False),
        ("fec0::1", False, False),
        ("100.64.0.1", False, False),
        ("224.0.0.1", False, False),
        ("239.1.1.1", False, False),
        ("ff02::1", False, False),
        ("255.255.255.255", False, False),
        ("240.0.0.1", False, False),
        ("64:ff9b::7f00:1", False, False),
        ("2002:7f00:1::", False, False),
        ("2001::1", False, False),
        ("::127.0.0.1", False, False),
    ],
)
def test_addresses(text: str, public: bool, private: bool) -> None:
    address = ipaddress.ip_address(text)
    assert is_public(address) is public
    if not public:
        assert is_private(address) is private
