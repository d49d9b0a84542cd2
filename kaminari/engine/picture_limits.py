"""What a picture file claims of itself, read before Pillow sees it: guards against files that cost too much.

Pillow's own guards are process-wide settings, which nothing here changes. It reads the size of most formats
without decoding; what is read here is what it would find out too late or never.
"""

from __future__ import annotations

import re
import struct

from kaminari.engine.picture_format import PictureFormat

MAX_SCANS = 100
MAX_MARKERS = 5_000
MAX_SEGMENTS = 100_000
MAX_STRAY_BYTES = 10_000
MAX_RUN_LENGTH_BMP = 1_000_000
"""Bytes: Pillow decodes the runs of a BMP in Python, a third of a second for so many."""
# a whole run of 0xFF, and the marker that it leads to, if it leads to one: matches at every run, so that
# the search goes over each byte once and other threads may run in between
_RUN = re.compile(rb"(\xff++)([\x01-\xcf\xd8-\xfe])?")
_EOI, _SOS, _STANDALONE = 0xD9, 0xDA, {0x01, 0xD8}
# the compression of a BMP: 8 and 4 bits of a pixel in runs
_RUN_LENGTH = (b"\x01\0\0\0", b"\x02\0\0\0")
_STRIP_OFFSETS, _TILE_WIDTH, _TILE_LENGTH, _TILE_OFFSETS = 273, 322, 323, 324


def excess(format_: PictureFormat, data: bytes, max_pixels: int) -> str | None:
    """Say what is too much in this file, or None. Malformed headers are left for the decoder to refuse."""
    if format_ is PictureFormat.WEBP:
        width, height = _webp_canvas(data)
        if width * height > max_pixels:
            return too_many_pixels(width, height, max_pixels)
    elif format_ is PictureFormat.JPEG:
        scans, markers, stray = _jpeg_layout(data)
        if scans > MAX_SCANS:
            return f"it has more than {MAX_SCANS} scans"
        if markers > MAX_MARKERS:
            return f"it has more than {MAX_MARKERS:,} segments"
        if stray > MAX_STRAY_BYTES:
            return f"it has more than {MAX_STRAY_BYTES:,} bytes between its segments"
    elif format_ is PictureFormat.TIFF:
        segments, tile_pixels = _tiff_layout(data)
        if segments > MAX_SEGMENTS:
            return f"it has more than {MAX_SEGMENTS:,} strips or tiles"
        if tile_pixels > max_pixels:
            return f"its tiles have {tile_pixels:,} pixels; at most {max_pixels:,} are accepted"
    elif format_ is PictureFormat.BMP and len(data) > MAX_RUN_LENGTH_BMP and data[30:34] in _RUN_LENGTH:
        return f"it is run-length coded and larger than {MAX_RUN_LENGTH_BMP:,} bytes"
    return None


def too_many_pixels(width: int, height: int, max_pixels: int) -> str:
    return f"it has {width * height:,} pixels ({width} x {height}); at most {max_pixels:,} are accepted"


def _webp_canvas(data: bytes) -> tuple[int, int]:
    """(width, height): the decoder allocates two canvases as soon as it is made."""
    kind, body = data[12:16], data[20:30]
    if len(body) < 10:
        return 0, 0
    if kind == b"VP8X":
        return int.from_bytes(body[4:7], "little") + 1, int.from_bytes(body[7:10], "little") + 1
    if kind == b"VP8L":
        bits = int.from_bytes(body[1:5], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", body, 6)
        return width & 0x3FFF, height & 0x3FFF
    return 0, 0


def _jpeg_layout(data: bytes) -> tuple[int, int, int]:
    """(scans, segments, stray bytes) of the first picture in the file; counting ends at a bound.

    A scan may be a few bytes and costs a walk over every block. Pillow joins the metadata of all segments one
    by one, and steps over fill bytes, and over what is no marker before the first scan, byte by byte.
    """
    scans, markers, stray, position = 0, 0, 0, 2
    while markers <= MAX_MARKERS and stray <= MAX_STRAY_BYTES:
        run = _RUN.search(data, position)
        if run is None:
            break
        position = run.end()
        stray += len(run[1]) - 1
        if run[2] is None:
            stray += not scans
            continue
        code = run[2][0]
        if code == _EOI:
            break
        markers += 1
        scans += code == _SOS
        if code not in _STANDALONE:
            position += int.from_bytes(data[position : position + 2], "big")
    return scans, markers, stray


def _tiff_layout(data: bytes) -> tuple[int, int]:
    """(strips or tiles, pixels of a tile) of the first page: Pillow makes an object of each segment."""
    order = "<" if data[:2] == b"II" else ">"
    big = 43 in data[2:4]
    count_format, entry_format = (f"{order}Q", f"{order}HHQQ") if big else (f"{order}H", f"{order}HHII")
    try:
        (start,) = struct.unpack_from(f"{order}Q" if big else f"{order}I", data, 8 if big else 4)
        (entries,) = struct.unpack_from(count_format, data, start)
        start += struct.calcsize(count_format)
        size = struct.calcsize(entry_format)
        block = data[start : start + min(entries, 65_536) * size]
        found = {
            tag: (kind, count, value)
            for tag, kind, count, value in struct.iter_unpack(
                entry_format, block[: len(block) // size * size]
            )
        }
    except struct.error:
        return 0, 0
    segments = max(found.get(tag, (0, 0, 0))[1] for tag in (_STRIP_OFFSETS, _TILE_OFFSETS))
    width, length = (_inline(found.get(tag), order, big) for tag in (_TILE_WIDTH, _TILE_LENGTH))
    return segments, width * length


def _inline(entry: tuple[int, int, int] | None, order: str, big: bool) -> int:
    """The value of an entry of type SHORT, LONG or LONG8, which stands left-aligned in its field."""
    if entry is None:
        return 0
    kind, _, value = entry
    field = struct.pack(f"{order}Q" if big else f"{order}I", value)
    width = {3: 2, 4: 4, 16: 8}.get(kind, 0)
    return int.from_bytes(field[:width], "little" if order == "<" else "big")
