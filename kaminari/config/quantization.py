"""Whether a model runs from a pack, and where that lies. Parsed from one string, nothing opened."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator
from pydantic_settings import NoDecode

from kaminari.config.folders import cache_folder
from kaminari.config.source import Folder, Hub, ModelSource, expand_path, path_exists
from kaminari.config.units import Expects


class PackFormat(StrEnum):
    INT8 = "int8"
    INT4 = "int4"


@dataclass(frozen=True, slots=True)
class NoQuantization:
    """The checkpoint's own weights."""

    def __str__(self) -> str:
        return "none"


@dataclass(frozen=True, slots=True)
class StandardPack:
    """The model's pack in the place where `kaminari quantize` puts it unless told otherwise."""

    format: PackFormat

    def __str__(self) -> str:
        return self.format.value


@dataclass(frozen=True, slots=True)
class PackFolder:
    """A pack's folder, which may not exist: whoever opens it says so."""

    path: Path

    def __str__(self) -> str:
        return str(Folder(self.path))


def standard_place(source: ModelSource, pack: PackFormat) -> Path:
    """The folder of a model's standard pack, in kaminari's cache folder."""
    name = str(source) if isinstance(source, Hub) else source.name
    return cache_folder() / "packs" / name.replace("/", "--") / pack.value


def parse_quantization(text: str) -> NoQuantization | StandardPack | PackFolder:
    """Read "none", "int8", "int4" or a folder. Raises `ValueError`."""
    text = text.strip()
    if text == "none":
        return NoQuantization()
    if text in tuple(PackFormat):
        return StandardPack(PackFormat(text))
    if text.startswith((".", "/", "~")) or path_exists(text):
        return PackFolder(expand_path(text))
    raise ValueError('neither "none", "int8" or "int4", nor the folder of a pack')


def _parse(value: Any) -> Any:
    if isinstance(value, Path):
        return PackFolder(value.expanduser())
    return parse_quantization(value) if isinstance(value, str) else value


Quantization = Annotated[
    NoQuantization | StandardPack | PackFolder,
    BeforeValidator(_parse),
    NoDecode,
    Expects('"none", "int8", "int4", or the folder of a pack', "int4"),
]
