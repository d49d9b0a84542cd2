"""Picture files of every kind become upright RGB pictures on white, or a refusal that says why."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile, PngImagePlugin

from kaminari.engine.errors import RequestError
from kaminari.engine.picture_decoding import decode_picture
from kaminari.engine.picture_format import ACCEPTED
from tests.cases import loading
from tests.patience import processor_time

MAX_PIXELS = 80_000_000
FACTS = {fact.name: fact for fact in loading.file_facts()}
# The case that each file was made for, so that a failure names it.
CASE_OF = {name: case.id for case in loading.cases("image") for name in case.input.get("files", [])}


def names(expect: str) -> list[Any]:
    chosen = [name for name, fact in FACTS.items() if fact.expect == expect]
    return [pytest.param(name, id=f"{CASE_OF.get(name, 'manifest')}:{name}") for name in chosen]


def encoded(image: Image.Image, format_: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format_, **options)
    return buffer.getvalue()


def refusal(source: bytes | Image.Image, max_pixels: int = MAX_PIXELS) -> str:
    with pytest.raises(RequestError) as error:
        decode_picture(source, max_pixels)
    return error.value.message


def assert_as_described(image: Image.Image, fact: loading.FileFact) -> None:
    assert image.mode == "RGB"
    assert fact.size is None or image.size == fact.size
    for x, y, colour, tolerance in fact.probes:
        pixel = image.getpixel((x, y))
        assert isinstance(pixel, tuple)
        assert max(abs(a - b) for a, b in zip(pixel, colour, strict=True)) <= tolerance, (x, y, pixel)


@pytest.mark.parametrize("name", names("ok"))
def test_good_files_decode_to_their_size_and_probes(name: str) -> None:
    assert_as_described(decode_picture(loading.file_bytes(name), MAX_PIXELS), FACTS[name])


@pytest.mark.parametrize("name", names("reject"))
def test_bad_files_are_refused_quickly(name: str) -> None:
    data = loading.file_bytes(name)
    with processor_time(0.2):
        message = refusal(data)
    assert "0x" not in message
    assert message.startswith("the ")


@pytest.mark.parametrize("name", names("ok-or-reject"))
def test_doubtful_files_are_right_or_refused(name: str) -> None:
    try:
        image = decode_picture(loading.file_bytes(name), MAX_PIXELS)
    except RequestError:
        return
    assert_as_described(image, FACTS[name])


@pytest.mark.parametrize("name", ["float32.tif", "bomb_ztxt.png"])
def test_what_is_doubtful_and_costly_is_refused(name: str) -> None:
    assert refusal(loading.file_bytes(name))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("empty.png", "empty"),
        ("pdf_page.png", "PDF"),
        ("login_page.jpg", "HTML"),
        ("noise.jpg", "unknown format"),
        ("cut_tail.jpg", "ends early"),
        ("cut_half.png", "ends early"),
        ("crc_wrong.png", "corrupt"),
        ("bomb_12000x12000_1bit.png", "144,000,000 pixels"),
        ("float32.tif", "floating-point"),
        ("bomb_ztxt.png", "too large"),
    ],
)
def test_a_refusal_says_what_is_wrong(name: str, words: str) -> None:
    assert words in refusal(loading.file_bytes(name))


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg"/>', "SVG"),
        (b"<svg/>", "SVG"),
        (b"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00", "HEIC"),
        (b"\x00\x00\x00\x1cftypavif\x00\x00\x00\x00", "AVIF"),
        (b"\x00\x00\x00\x18ftypmp42\x00\x00\x00\x00", "a video"),
        (b"\x1a\x45\xdf\xa3\x01\x00", "a video"),
        (b"%PDF-1.7\n", "PDF"),
        (b"<!DOCTYPE html><html>", "HTML"),
        (b"\xff\x0a\x00", "JPEG XL"),
        (b"PK\x03\x04", "a ZIP archive"),
        (b"hello", "an unknown format"),
        (b"\x00", "an unknown format"),
        (b"", "empty"),
    ],
)
def test_other_formats_are_named_with_the_accepted_ones(data: bytes, name: str) -> None:
    message = refusal(data)
    assert name in message
    assert ACCEPTED in message


@pytest.mark.parametrize("name", [name for name in FACTS if name.startswith("bomb")])
def test_img_bomb_costs_no_memory(name: str) -> None:
    data = loading.file_bytes(name)
    process = psutil.Process()
    before = process.memory_info().rss
    refusal(data)
    assert process.memory_info().rss - before < 20 * 2**20


def test_img_bomb_the_limit_is_ours_and_exact() -> None:
    data = encoded(Image.new("L", (50, 40)), "PNG")
    assert decode_picture(data, 2000).size == (50, 40)
    assert "50 x 40" in refusal(data, 1999)
    assert "50 x 40" in refusal(Image.new("RGB", (50, 40)), 1999)


def test_img_big_honest_decodes_in_time() -> None:
    with processor_time(5):
        image = decode_picture(loading.file_bytes("big_9000x6000_1bit.png"), MAX_PIXELS)
    assert image.size == (9000, 6000)


def test_img_animated_only_the_first_frame_is_decoded() -> None:
    data = loading.file_bytes("gif_1500_frames.gif")
    decode_picture(data, MAX_PIXELS)
    with processor_time(0.05):
        decode_picture(data, MAX_PIXELS)


def test_img_16bit_grey_keeps_its_levels() -> None:
    for name in ("gray16_ramp.png", "gray16_ramp.tif"):
        levels = np.unique(np.asarray(decode_picture(loading.file_bytes(name), MAX_PIXELS)))
        assert len(levels) >= 200


def test_img_exif_all_eight_orientations_are_alike() -> None:
    pictures = [
        np.asarray(decode_picture(loading.file_bytes(f"exif_{n}.jpg"), MAX_PIXELS), np.int16)
        for n in range(1, 9)
    ]
    for picture in pictures[1:]:
        assert picture.shape == pictures[0].shape
        assert np.abs(picture - pictures[0]).mean() < 3


CORNER = Image.new("RGB", (40, 24), (0, 0, 255))
CORNER.paste((255, 0, 0), (0, 0, 10, 10))
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


@pytest.mark.parametrize("orientation", TURNS)
@pytest.mark.parametrize(
    ("format_", "options"),
    [("PNG", {}), ("WEBP", {"lossless": True}), ("TIFF", {}), ("TIFF", {"compression": "tiff_lzw"})],
    ids=["png", "webp", "tiff", "tiff-lzw"],
)
def test_orientation_is_applied_once_in_every_format(
    orientation: int, format_: str, options: dict[str, Any]
) -> None:
    stored = CORNER.transpose(TURNS[orientation])
    exif = Image.Exif()
    exif[0x0112] = orientation
    upright = decode_picture(encoded(stored, format_, exif=exif, **options), MAX_PIXELS)
    assert np.array_equal(np.asarray(upright), np.asarray(CORNER))


@pytest.mark.parametrize("orientation", [0, 9, 77])
def test_an_orientation_outside_the_standard_changes_nothing(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    upright = decode_picture(encoded(CORNER, "PNG", exif=exif), MAX_PIXELS)
    assert np.array_equal(np.asarray(upright), np.asarray(CORNER))


def test_broken_metadata_does_not_spoil_whole_pixels() -> None:
    data = encoded(CORNER, "PNG", exif=b"Exif\x00\x00MM\x00*\xff\xff\xff\xff")
    assert np.array_equal(np.asarray(decode_picture(data, MAX_PIXELS)), np.asarray(CORNER))


def transparent_png(mode: str, colour: Any, clear: Any, *, bits: int | None = None) -> bytes:
    """One dark pixel that is declared transparent beside one that is not."""
    image = Image.new(mode, (2, 1), colour)
    image.putpixel((0, 0), clear)
    return encoded(image, "PNG", transparency=clear, **({} if bits is None else {"bits": bits}))


@pytest.mark.parametrize(
    "data",
    [
        transparent_png("L", 200, 7),
        transparent_png("RGB", (200, 200, 200), (7, 8, 9)),
        transparent_png("I;16", 51400, 77),
        transparent_png("1", 1, 0),
    ],
    ids=["grey", "rgb", "grey16", "one-bit"],
)
def test_img_alpha_black_a_transparent_colour_is_white(data: bytes) -> None:
    image = decode_picture(data, MAX_PIXELS)
    assert image.getpixel((0, 0)) == (255, 255, 255)
    assert image.getpixel((1, 0)) in [(200, 200, 200), (255, 255, 255)]


@pytest.mark.parametrize("depth", [2, 4])
def test_a_transparent_grey_of_few_bits_is_white(depth: int) -> None:
    data = _packed_grey_png(depth, [1, 2], transparent=1)
    image = decode_picture(data, MAX_PIXELS)
    assert image.getpixel((0, 0)) == (255, 255, 255)
    assert image.getpixel((1, 0)) == (2 * 255 // (2**depth - 1),) * 3


def _packed_grey_png(depth: int, samples: list[int], *, transparent: int) -> bytes:
    """A one-row grey PNG of `depth` bits; Pillow itself writes none below 8 bits but 1."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    bits = "".join(format(sample, f"0{depth}b") for sample in samples).ljust(8, "0")
    return b"".join(
        [
            b"\x89PNG\r\n\x1a\n",
            chunk(b"IHDR", struct.pack(">IIBBBBB", len(samples), 1, depth, 0, 0, 0, 0)),
            chunk(b"tRNS", struct.pack(">H", transparent)),
            chunk(b"IDAT", zlib.compress(b"\x00" + bytes([int(bits, 2)]))),
            chunk(b"IEND", b""),
        ]
    )


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA", "RGBa", "La"])
def test_every_alpha_mode_is_composited_on_white(mode: str) -> None:
    source = Image.new("RGBA", (4, 4), (0, 0, 0, 0))
    source.putpixel((1, 1), (0, 0, 0, 255))
    source.putpixel((2, 2), (0, 0, 0, 128))
    image = decode_picture({"PA": source.convert("P").convert("PA")}.get(mode) or _convert(source, mode), 100)
    assert image.getpixel((1, 1)) == (0, 0, 0)
    if mode != "PA":
        assert image.getpixel((0, 0)) == (255, 255, 255)
        assert image.getpixel((2, 2)) == pytest.approx((127, 127, 127), abs=1)


def _convert(source: Image.Image, mode: str) -> Image.Image:
    return (
        source
        if mode == "RGBA"
        else source.convert("LA").convert(mode)
        if "L" in mode
        else source.convert(mode)
    )


def test_a_palette_with_graded_alpha_is_composited() -> None:
    image = Image.new("P", (3, 1))
    image.putpalette([0, 0, 0, 0, 0, 0, 0, 0, 0])
    for x in range(3):
        image.putpixel((x, 0), x)
    decoded = decode_picture(encoded(image, "PNG", transparency=bytes([0, 128, 255])), 100)
    assert [decoded.getpixel((x, 0)) for x in range(3)] == [(255,) * 3, (127,) * 3, (0,) * 3]


def test_a_negative_sixteen_bit_scan_is_turned_positive() -> None:
    samples = np.linspace(0, 65535, 64, dtype=np.uint16).reshape(1, 64)
    data = encoded(Image.fromarray(samples), "TIFF", tiffinfo={262: 0})
    row = np.asarray(decode_picture(data, MAX_PIXELS))[0, :, 0]
    assert (row[0], row[-1]) == (255, 0)


@pytest.mark.parametrize("mode", ["I", "F"])
def test_samples_of_unknown_range_are_refused(mode: str) -> None:
    assert "samples" in refusal(Image.new(mode, (4, 4)))
    assert "samples" in refusal(encoded(Image.new(mode, (4, 4)), "TIFF"))


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "CMYK", "YCbCr", "HSV", "RGBX", "I;16", "I;16B"])
def test_decoded_images_of_every_mode_are_taken(mode: str) -> None:
    assert decode_picture(Image.new(mode, (5, 3)), 100).mode == "RGB"


def test_a_lazy_image_with_broken_data_is_refused() -> None:
    image = Image.open(io.BytesIO(loading.file_bytes("cut_half.jpg")))
    assert "ends early" in refusal(image)


def test_the_label_plays_no_part() -> None:
    mislabelled = decode_picture(loading.file_bytes("really_png.jpg"), MAX_PIXELS)
    assert mislabelled.size == (240, 160)


def global_state() -> tuple[object, ...]:
    return Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES, PngImagePlugin.MAX_TEXT_CHUNK


def test_pillows_global_state_is_left_alone() -> None:
    before = global_state()
    decode_picture(loading.file_bytes("receipt.png"), MAX_PIXELS)
    for name in ("bomb_20000x20000_1bit.png", "cut_half.png", "bomb_ztxt.png"):
        refusal(loading.file_bytes(name))
    assert global_state() == before


def test_a_codec_without_memory_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(self: Image.Image) -> None:
        raise MemoryError

    data = encoded(CORNER, "PNG")
    monkeypatch.setattr(PngImagePlugin.PngImageFile, "load", load)
    assert "memory" in refusal(data)


SEEDS = [
    name
    for name, fact in FACTS.items()
    if fact.expect == "ok" and len(loading.file_bytes(name)) < 6000 and fact.size != (16, 16)
]


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")  # Pillow remarks on odd metadata, which is the point
@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(SEEDS),
    st.lists(st.tuples(st.integers(0, 5999), st.integers(0, 255)), max_size=6),
    st.integers(0, 6000),
)
def test_hostile_bytes_decode_or_are_refused(name: str, changes: list[tuple[int, int]], cut: int) -> None:
    data = bytearray(loading.file_bytes(name))
    for place, value in changes:
        data[place % len(data)] = value
    if cut < len(data):
        del data[cut:]
    try:
        image = decode_picture(bytes(data), 1_000_000)
    except RequestError:
        return
    assert image.mode == "RGB"


@pytest.mark.parametrize("tail", [b"\0", b"\xff\xd9", b""])
@pytest.mark.parametrize("stray", [b"\xff", b"\xff\0", b"\xff\xff\0"])
def test_countless_stray_bytes_take_no_time(stray: bytes, tail: bytes) -> None:
    data = b"\xff\xd8" + stray * 10_000_000 + tail
    with processor_time(2):
        refusal(data)


def test_a_jpeg_of_countless_segments_is_refused_from_its_markers() -> None:
    whole = encoded(Image.new("RGB", (16, 16), "red"), "JPEG")
    segment = b"\xff\xe1\x00\x09Exif\0\0x"
    with processor_time(2):
        assert "segments" in refusal(whole[:2] + segment * 800_000 + whole[2:])
    assert decode_picture(whole[:2] + segment * 300 + whole[2:], MAX_PIXELS).size == (16, 16)
