"""Which picture format some bytes are, by their signature, and how large the picture claims to be.

Reads the first bytes only and decodes nothing. A label that came with the bytes (a media type, a file
name) plays no part.
"""

from __future__ import annotations

import re
from enum import StrEnum

HEAD = 1024


class PictureFormat(StrEnum):
    """The formats that are decoded."""

    JPEG = "JPEG"
    PNG = "PNG"
    WEBP = "WebP"
    GIF = "GIF"
    BMP = "BMP"
    TIFF = "TIFF"


ACCEPTED = ", ".join(PictureFormat)

_SIGNATURES = (
    (PictureFormat.JPEG, re.compile(rb"\xff\xd8\xff")),
    (PictureFormat.PNG, re.compile(rb"\x89PNG\r\n\x1a\n")),
    (PictureFormat.WEBP, re.compile(rb"RIFF....WEBP", re.DOTALL)),
    (PictureFormat.GIF, re.compile(rb"GIF8[79]a")),
    (PictureFormat.BMP, re.compile(rb"BM")),
    (PictureFormat.TIFF, re.compile(rb"II[\x2a\x2b]\x00|MM\x00[\x2a\x2b]")),
)

# Named in the refusal, so that a person learns what they sent.
_REFUSED = (
    ("AVIF", re.compile(rb"....ftyp(?:avif|avis)", re.DOTALL)),
    ("HEIC", re.compile(rb"....ftyp(?:hei[cfmsx]|hev[cmsx]|mif1|msf1)", re.DOTALL)),
    (
        "a video",
        re.compile(rb"....ftyp|RIFF....AVI |\x1a\x45\xdf\xa3|FLV\x01|\x00\x00\x01[\xb3\xba]", re.DOTALL),
    ),
    ("PDF", re.compile(rb"\s*%PDF-")),
    ("JPEG XL", re.compile(rb"\xff\x0a|\x00\x00\x00\x0cJXL ")),
    ("JPEG 2000", re.compile(rb"\xff\x4f\xff\x51|\x00\x00\x00\x0cjP  ")),
    ("ICO", re.compile(rb"\x00\x00[\x01\x02]\x00")),
    ("PSD", re.compile(rb"8BPS")),
    ("SVG", re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml|<!--|<!DOCTYPE svg|<svg)(?s:.*?)<svg|\s*<svg", re.I)),
    ("HTML", re.compile(rb"(?:\xef\xbb\xbf)?\s*<(?:!doctype html|html|head|body)", re.IGNORECASE)),
    ("XML", re.compile(rb"(?:\xef\xbb\xbf)?\s*<\?xml")),
    ("a ZIP archive", re.compile(rb"PK\x03\x04")),
    ("gzip", re.compile(rb"\x1f\x8b")),
)


def find_format(data: bytes) -> PictureFormat | None:
    """Return the format that the bytes have, or None."""
    return next((name for name, signature in _SIGNATURES if signature.match(data)), None)


def describe_other(data: bytes) -> str:
    """Say what bytes that `find_format` does not know look like, such as "PDF"."""
    head = data[:HEAD]
    return next((name for name, signature in _REFUSED if signature.match(head)), "an unknown format")
