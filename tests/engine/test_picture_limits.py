"""Small files that would cost much are refused by what their headers say."""

from __future__ import annotations

import io
import struct

import psutil
import pytest
from PIL import Image

from kaminari.engine.errors import RequestError
from kaminari.engine.picture_decoding import decode_picture
from kaminari.engine.picture_limits import MAX_SCANS, MAX_SEGMENTS
from tests.patience import processor_time

MAX_PIXELS = 1_000_000


def encoded(image: Image.Image, format_: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format_, **options)
    return buffer.getvalue()


def refusal(data: bytes) -> str:
    process = psutil.Process()
    before = process.memory_info().rss
    with processor_time(0.2), pytest.raises(RequestError) as error:
        decode_picture(data, MAX_PIXELS)
    assert process.memory_info().rss - before < 20 * 2**20
    return error.value.message


def riff(*chunks: tuple[bytes, bytes]) -> bytes:
    body = b"".join(kind + struct.pack("<I", len(data)) + data for kind, data in chunks)
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body


@pytest.mark.parametrize(
    "data",
    [
        riff((b"VP8X", bytes(4) + (16382).to_bytes(3, "little") * 2)),
        riff((b"VP8L", b"\x2f" + (16382 | 16382 << 14).to_bytes(4, "little") + bytes(5))),
        riff((b"VP8 ", bytes(3) + b"\x9d\x01\x2a" + struct.pack("<HH", 16383, 16383))),
    ],
    ids=["extended", "lossless", "lossy"],
)
def test_a_webp_canvas_is_judged_before_its_decoder_exists(data: bytes) -> None:
    assert "16383 x 16383" in refusal(data)


@pytest.mark.parametrize("lossless", [True, False])
@pytest.mark.parametrize("alpha", [True, False])
def test_an_honest_webp_passes_at_its_exact_size(lossless: bool, alpha: bool) -> None:
    data = encoded(Image.new("RGBA" if alpha else "RGB", (30, 20)), "WEBP", lossless=lossless)
    assert decode_picture(data, 600).size == (30, 20)
    with pytest.raises(RequestError, match="30 x 20"):
        decode_picture(data, 599)


def test_a_jpeg_of_very_many_scans_is_refused() -> None:
    data = encoded(Image.new("RGB", (64, 64)), "JPEG", progressive=True)
    scan = data.rindex(b"\xff\xda")
    assert decode_picture(data, MAX_PIXELS).size == (64, 64)
    assert "scans" in refusal(data[:scan] + data[scan:-2] * MAX_SCANS + data[-2:])


def test_scans_behind_the_picture_do_not_count() -> None:
    data = encoded(Image.new("RGB", (64, 64)), "JPEG") + b"\xff\xda\x00\x08" * 1000
    assert decode_picture(data, MAX_PIXELS).size == (64, 64)


def tiff(entries: list[tuple[int, int, int, int]], *, order: str = "<", big: bool = False) -> bytes:
    mark = b"II" if order == "<" else b"MM"
    head = struct.pack(f"{order}HHHQ", 43, 8, 0, 16) if big else struct.pack(f"{order}HI", 42, 8)
    layout, count = (f"{order}HHQQ", f"{order}Q") if big else (f"{order}HHII", f"{order}H")
    return mark + head + struct.pack(count, len(entries)) + b"".join(struct.pack(layout, *e) for e in entries)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize("tag", [273, 324])
def test_a_tiff_of_very_many_segments_is_refused(order: str, big: bool, tag: int) -> None:
    data = tiff([(256, 4, 1, 100), (257, 4, 1, 100), (tag, 4, MAX_SEGMENTS + 1, 0)], order=order, big=big)
    assert "strips or tiles" in refusal(data)


def test_a_tiff_of_huge_tiles_is_refused() -> None:
    assert "tiles have" in refusal(tiff([(256, 4, 1, 10), (322, 4, 1, 60_000), (323, 4, 1, 60_000)]))


@pytest.mark.parametrize("cut", range(0, 60, 3))
def test_a_header_that_ends_early_is_left_to_the_decoder(cut: int) -> None:
    for format_ in ("WEBP", "TIFF", "JPEG"):
        data = encoded(Image.effect_noise((32, 32), 90).convert("RGB"), format_)[: 12 + cut]
        with pytest.raises(RequestError):
            decode_picture(data, MAX_PIXELS)


@pytest.mark.parametrize(("bits", "compression"), [(8, 1), (4, 2)])
def test_a_run_length_bmp_is_bounded_in_bytes(bits: int, compression: int) -> None:
    palette = bytes(4 * 2**bits)
    start = 54 + len(palette)
    header = b"BM" + struct.pack("<IHHI", 0, 0, 0, start)
    header += struct.pack("<IiiHHIIiiII", 40, 8, 8, 1, bits, compression, 0, 0, 0, 0, 0)
    small = header + palette + b"\x08\x01\0\0" * 8 + b"\0\1"
    assert decode_picture(small, MAX_PIXELS).size == (8, 8)
    assert "run-length" in refusal(header + palette + b"\0\0" * 600_000)
