"""From the address of a picture part to the bytes it holds: data URLs with base64, and nothing else.

Opens no file and no socket, and never echoes what an address holds. The media type that a data URL claims
is ignored: `picture_decoding` looks at the bytes.
"""

from __future__ import annotations

import binascii
import re
from urllib.parse import unquote_to_bytes

from kaminari.engine.errors import RequestError

SUPPORTED = "send the picture as a data URL: data:image/png;base64,..."
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,15}):")
_BLANKS = b" \t\r\n"


def data_url_bytes(url: str) -> bytes:
    """Return the bytes of a base64 data URL. Raises `RequestError` for any other address.

    Accepted beside the plain form: any media type or none, parameters, any case, blanks around the address
    and within the payload (wrapped lines), percent escapes, missing padding. The payload itself is strict.
    """
    url = url.strip()
    if not url:
        raise RequestError(f"the picture's address is empty; {SUPPORTED}")
    scheme = _SCHEME.match(url)
    if scheme is None:
        raise RequestError(f"the picture's address has no scheme; {SUPPORTED}")
    name = scheme[1].lower()
    if name != "data":
        raise RequestError(f"pictures at {name}: addresses are not supported; {SUPPORTED}")
    header, comma, payload = url[scheme.end() :].partition(",")
    if not comma:
        raise RequestError(f"the picture's data URL has no comma before its data; {SUPPORTED}")
    if not header.rstrip().lower().endswith(";base64"):
        raise RequestError(f"the picture's data URL is not marked as base64; {SUPPORTED}")
    return _strict_base64(payload)


def _strict_base64(payload: str) -> bytes:
    if not payload.isascii():
        raise RequestError("the picture's data URL holds characters that are not base64")
    data = unquote_to_bytes(payload) if "%" in payload else payload.encode("ascii")
    data = data.translate(None, _BLANKS)
    if not data:
        raise RequestError("the picture's data URL holds no data")
    if b"=" not in data[-2:]:
        data += b"=" * (-len(data) % 4)
    try:
        return binascii.a2b_base64(data, strict_mode=True)
    except binascii.Error as error:
        raise RequestError(
            "the picture's data URL does not hold valid base64: it is cut short or has characters that do "
            "not belong there"
        ) from error
