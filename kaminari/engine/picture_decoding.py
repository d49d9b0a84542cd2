"""From an encoded picture to an upright RGB image, or to a refusal that says why.

Called from worker threads with bytes that nobody has vetted: the format is sniffed from an allow-list, the
size is judged from the header before anything is decoded, only the first frame is decoded, and whatever a
codec raises becomes a `RequestError`. Changes none of Pillow's global settings and never resizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any

from PIL import (
    BmpImagePlugin,
    GifImagePlugin,
    JpegImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)
from PIL.ExifTags import Base as ExifTag
from PIL.Image import DecompressionBombError, Image, Transpose

from kaminari.engine.errors import RequestError
from kaminari.engine.picture_colour import ColourError, to_rgb
from kaminari.engine.picture_format import ACCEPTED, PictureFormat, describe_other, find_format
from kaminari.engine.picture_limits import excess, too_many_pixels

# Pillow's own classes rather than `Image.open`: no other codec can be reached, an MPO is the JPEG that it
# begins with, and Pillow's process-wide size limits play no part.
_READERS: Mapping[PictureFormat, Callable[[BytesIO], Image]] = {
    PictureFormat.JPEG: JpegImagePlugin.JpegImageFile,
    PictureFormat.PNG: PngImagePlugin.PngImageFile,
    PictureFormat.WEBP: WebPImagePlugin.WebPImageFile,
    PictureFormat.GIF: GifImagePlugin.GifImageFile,
    PictureFormat.BMP: BmpImagePlugin.BmpImageFile,
    PictureFormat.TIFF: TiffImagePlugin.TiffImageFile,
}

_UPRIGHT = {
    2: Transpose.FLIP_LEFT_RIGHT,
    3: Transpose.ROTATE_180,
    4: Transpose.FLIP_TOP_BOTTOM,
    5: Transpose.TRANSPOSE,
    6: Transpose.ROTATE_270,
    7: Transpose.TRANSVERSE,
    8: Transpose.ROTATE_90,
}
_BITS_PER_SAMPLE, _PHOTOMETRIC = 258, 262
_PNG_DEPTH = 24  # offset of the bit depth in the header chunk, which comes first


def decode_picture(source: bytes | Image, max_pixels: int) -> Image:
    """Return the picture upright, in RGB. Raises `RequestError` (without a field).

    An image that is already a Pillow image goes through the same checks and conversions.
    """
    if isinstance(source, Image):
        return _guarded("the picture", lambda: _upright_rgb(source, {}, max_pixels))
    format_ = find_format(source)
    if format_ is None:
        what = f"is {describe_other(source)}" if source else "is empty"
        raise RequestError(f"the picture's data {what}; accepted formats: {ACCEPTED}")
    return _guarded(f"the {format_} picture", lambda: _decode(format_, source, max_pixels))


class _Refusal(Exception):
    """A picture that is not decoded; the message says what it is or has."""


def _decode(format_: PictureFormat, data: bytes, max_pixels: int) -> Image:
    if (too_much := excess(format_, data, max_pixels)) is not None:
        raise _Refusal(too_much)
    image = _READERS[format_](BytesIO(data))
    depth = data[_PNG_DEPTH] if format_ is PictureFormat.PNG else 8
    return _upright_rgb(image, _sample_meaning(image, depth), max_pixels)


def _upright_rgb(image: Image, meaning: Mapping[str, Any], max_pixels: int) -> Image:
    width, height = image.size
    if width * height > max_pixels:
        raise _Refusal(too_many_pixels(width, height, max_pixels))
    if width * height == 0:
        raise _Refusal("it has no pixels")
    image.load()
    turn = _UPRIGHT.get(_orientation(image))
    image = to_rgb(image, **meaning)
    return image if turn is None else image.transpose(turn)


def _sample_meaning(image: Image, depth: int) -> dict[str, Any]:
    """What the file says of its samples and Pillow's mode does not (see `to_rgb`)."""
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        bits = image.tag_v2.get(_BITS_PER_SAMPLE, (16,))[0]
        return {"sample_max": 2**bits - 1, "white_is_zero": image.tag_v2.get(_PHOTOMETRIC) == 0}
    # A transparent colour is given in the file's own depth; Pillow scales the pixels and not the colour.
    transparent = image.info.get("transparency")
    if image.mode == "L" and depth < 8 and isinstance(transparent, int):
        image.info["transparency"] = transparent * 255 // (2**depth - 1)
    elif image.mode == "RGB" and depth == 16 and isinstance(transparent, tuple):
        image.info["transparency"] = tuple(sample >> 8 for sample in transparent)
    return {}


def _orientation(image: Image) -> int:
    """The EXIF (or XMP) orientation, 1 where there is none that can be read."""
    try:
        orientation = image.getexif().get(ExifTag.Orientation, 1)
    except Exception:
        return 1  # the pixels are whole; a broken metadata block says nothing about them
    return orientation if isinstance(orientation, int) else 1


def _guarded(what: str, decode: Callable[[], Image]) -> Image:
    """Run a decoder. Whatever it raises is the picture's fault: codecs raise every kind of exception."""
    try:
        return decode()
    except (_Refusal, ColourError) as error:
        raise RequestError(f"{what} is not accepted: {error}") from error
    except Exception as error:
        raise RequestError(f"{what} cannot be decoded: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """Why a codec gave up. Its own words are not passed on: they may hold data or addresses in memory."""
    words = str(error).lower()
    if isinstance(error, MemoryError):
        return "it needs more memory than there is"
    if isinstance(error, DecompressionBombError):
        return "it has too many pixels"
    if "too large" in words:
        return "a chunk of its metadata is too large"
    if isinstance(error, EOFError) or "truncated" in words or "not enough" in words:
        return "its data ends early"
    return "its data is corrupt"
