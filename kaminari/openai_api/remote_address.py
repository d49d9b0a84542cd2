"""Which network addresses a picture may be fetched from. Resolves names; opens no connection."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable

from kaminari.engine.errors import RequestError

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolver = Callable[[str, int], Awaitable[list[str]]]

_NO_ADDRESS = "the picture's host cannot be found"
_NOT_ALLOWED = "the picture's host lies at an address that this server does not fetch from"


async def system_resolver(host: str, port: int) -> list[str]:
    """The addresses of a host as the system knows them, in its order. Raises `OSError`."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def is_public(address: IPAddress) -> bool:
    """Whether an address is one of the open Internet; what embeds an IPv4 address is judged by that too."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return is_public(address.ipv4_mapped)
        if _is_special(address):
            return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def is_private(address: IPAddress) -> bool:
    """Whether an address is one of a home or a machine: private or loopback, but not link-local, where
    clouds keep their credentials."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return is_private(address.ipv4_mapped)
        if _is_special(address):
            return False
    odd = address.is_link_local or address.is_multicast or address.is_unspecified
    return not odd and (address.is_loopback or (address.is_private and not address.is_reserved))


def _is_special(address: ipaddress.IPv6Address) -> bool:
    """Whether an address is of one link or site, or leads through a tunnel to an IPv4 address."""
    tunnel = address.sixtofour is not None or address.teredo is not None
    return tunnel or address.scope_id is not None or address.is_site_local


async def checked_addresses(
    host: str, port: int, *, allow_private: bool, resolve: Resolver
) -> list[IPAddress]:
    """Resolve a host once and return its addresses, every one of which may be dialled.

    One address that may not be dialled refuses the host: a name that points both ways is not to be trusted.
    Raises `RequestError`.
    """
    try:
        texts = await resolve(host, port)
    except (OSError, UnicodeError):
        raise RequestError(_NO_ADDRESS) from None
    if not texts:
        raise RequestError(_NO_ADDRESS)
    addresses = [ipaddress.ip_address(text) for text in texts]
    for address in addresses:
        if not is_public(address) and not (allow_private and is_private(address)):
            raise RequestError(_NOT_ALLOWED)
    return addresses
