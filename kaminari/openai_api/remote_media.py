"""Fetches the pictures that a request names by http(s) address, from hosts that the settings allow.

Each hop of a redirect is checked anew; a host is resolved once per hop, and the address that was checked is
the one that is dialled. Everything is bounded: hops, bytes, seconds, requests at once. Uses no proxy, sends
no cookies, and never repeats an address or what a host said.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable, Mapping
from functools import cached_property

import httpx

from kaminari import __version__
from kaminari.config import MediaSettings
from kaminari.engine.errors import QueueFull, RequestError
from kaminari.openai_api.body import Place
from kaminari.openai_api.remote_address import IPAddress, Resolver, checked_addresses, system_resolver

MAX_REDIRECTS = 3
MAX_URL_LENGTH = 8192
CONCURRENT = 4

_REDIRECTS = (301, 302, 303, 307, 308)
_PORTS = {"http": 80, "https": 443}
_HEADERS = {"user-agent": f"kaminari/{__version__}", "accept": "image/*", "accept-encoding": "identity"}
_TOO_LARGE = "the picture is larger than this server fetches"

Fetched = Mapping[str, bytes | RequestError]


class RemoteMedia:
    """Fetches for one application."""

    def __init__(
        self,
        settings: MediaSettings,
        *,
        max_total: int,
        max_requests: int,
        resolve: Resolver = system_resolver,
    ) -> None:
        """`max_total`: bytes of all pictures of one request; `max_requests`: that may fetch at once."""
        self._hosts = frozenset(settings.allowed_hosts)
        self._allow_private = settings.allow_private
        self._timeout = settings.timeout.total_seconds()
        self._max_size = int(settings.max_size)
        self._max_total = max_total
        self._max_requests = max_requests
        self._resolve = resolve
        self._requests = 0

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return httpx.create_ssl_context(trust_env=False)

    async def fetch(self, urls: Iterable[str], place: Place) -> Fetched:
        """The bytes behind each address, or why they cannot be had; `place` is their room in memory.

        Raises `QueueFull` where too many fetch already, or the memory is taken.
        """
        if self._requests >= self._max_requests:
            raise QueueFull(f"{self._max_requests} requests are fetching pictures already")
        self._requests += 1
        try:
            budget = _Budget(self._max_total, place)
            deadline = asyncio.get_running_loop().time() + self._timeout
            turns = asyncio.Semaphore(CONCURRENT)

            async def one(url: str) -> bytes | RequestError | QueueFull:
                try:
                    async with asyncio.timeout_at(deadline), turns:
                        return await self._follow(url, budget)
                except TimeoutError:
                    return RequestError(f"the picture did not arrive within {self._timeout:g} s")
                except (RequestError, QueueFull) as error:
                    return error

            distinct = list(dict.fromkeys(urls))
            fetched: dict[str, bytes | RequestError] = {}
            for url, found in zip(distinct, await asyncio.gather(*map(one, distinct)), strict=True):
                if isinstance(found, QueueFull):
                    raise found
                fetched[url] = found
            return fetched
        finally:
            self._requests -= 1

    async def _follow(self, url: str, budget: _Budget) -> bytes:
        """Fetch an address through its redirects."""
        location = _parse(url)
        for _ in range(MAX_REDIRECTS + 1):
            found = await self._hop(location, budget)
            if isinstance(found, bytes):
                return found
            location = found
        raise RequestError(f"the picture's address redirects more than {MAX_REDIRECTS} times")

    async def _hop(self, url: httpx.URL, budget: _Budget) -> bytes | httpx.URL:
        """One request: the body, or where a redirect leads."""
        host = url.raw_host.decode("ascii").strip("[]").rstrip(".").lower()
        if host not in self._hosts:
            raise RequestError("the picture's host is not one that this server fetches from")
        port = url.port or _PORTS[url.scheme]
        addresses = await checked_addresses(
            host, port, allow_private=self._allow_private, resolve=self._resolve
        )
        transport = httpx.AsyncHTTPTransport(
            verify=self._tls, trust_env=False, limits=httpx.Limits(max_keepalive_connections=0)
        )
        async with transport:
            try:
                response = await self._dial(transport, url, host, addresses)
                try:
                    if response.status_code in _REDIRECTS and "location" in response.headers:
                        return _parse(response.headers["location"], base=url)
                    return await self._read(response, budget)
                finally:
                    await response.aclose()
            except (httpx.HTTPError, httpx.StreamError, ssl.SSLError, OSError):
                raise RequestError("the picture's host failed to send it") from None

    async def _dial(
        self, transport: httpx.AsyncHTTPTransport, url: httpx.URL, host: str, addresses: list[IPAddress]
    ) -> httpx.Response:
        """Send the request to the first address that takes a connection; the name stays in Host and TLS."""
        timeout = dict.fromkeys(("connect", "read", "write", "pool"), self._timeout)
        headers = {**_HEADERS, "host": url.netloc.decode("ascii")}
        for place, address in enumerate(addresses):
            request = httpx.Request(
                "GET",
                url.copy_with(host=str(address), fragment=None),
                headers=headers,
                extensions={"timeout": timeout, "sni_hostname": host},
            )
            try:
                return await transport.handle_async_request(request)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                if place == len(addresses) - 1:
                    raise
        raise AssertionError("a checked host has an address")

    async def _read(self, response: httpx.Response, budget: _Budget) -> bytes:
        if response.status_code != 200:
            raise RequestError(f"the picture's host answered with status {response.status_code}")
        if response.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            raise RequestError("the picture's host sent it compressed, which was not asked for")
        declared = response.headers.get("content-length", "")
        if declared.isdecimal() and (len(declared) > 18 or int(declared) > self._max_size):
            raise RequestError(_TOO_LARGE)
        body = bytearray()
        async for chunk in response.aiter_raw():
            budget.take(len(chunk))
            body += chunk
            if len(body) > self._max_size:
                raise RequestError(_TOO_LARGE)
        if not body:
            raise RequestError("the picture's host sent an empty body")
        return bytes(body)


class _Budget:
    """Bytes that the pictures of one request may still take, and their room among all bodies."""

    def __init__(self, total: int, place: Place) -> None:
        self._left = total
        self._place = place

    def take(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise RequestError("the pictures of this request are larger together than this server fetches")
        self._place.take(count)


def _parse(url: str, base: httpx.URL | None = None) -> httpx.URL:
    """An absolute http(s) address with a host and no user. Raises `RequestError`."""
    try:
        if len(url) > MAX_URL_LENGTH:
            raise httpx.InvalidURL("too long")
        parsed = httpx.URL(url.strip()) if base is None else base.join(url.strip())
        host = parsed.raw_host.decode("ascii")
    except (httpx.InvalidURL, ValueError):
        raise RequestError("the picture's address is not a valid URL") from None
    if parsed.scheme not in _PORTS:
        raise RequestError("the picture's address leads to a scheme other than http and https")
    if parsed.port is not None and not 0 < parsed.port < 65536:
        raise RequestError("the picture's address has a port out of range")
    if not host or parsed.userinfo:
        raise RequestError("the picture's address must name a host, and no user")
    return parsed
