"""Types with their units: sizes in bytes, durations, ports, counts. What cannot be meant does not construct.

Every type carries an `Expects`, the words that `--help` and the start-up report use for it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ByteSize, Field, SecretStr, StringConstraints
from pydantic_settings import NoDecode

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_VISIBLE = re.compile(r"[\x21-\x7e]{1,1024}")
_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^/?#@\s,*]+", re.IGNORECASE)
_HOST_NAME = re.compile(r"\[?[a-z0-9:_]([a-z0-9._:-]*[a-z0-9_])?\]?", re.IGNORECASE)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Expects:
    """What a value must look like, in words that follow "expected", and one value that is right."""

    text: str
    example: str


def parse_duration(value: Any) -> Any:
    """Turn "500ms", "10s", "2m", "1h" or a bare number of seconds into a timedelta; pass the rest on."""
    if isinstance(value, str) and (match := _DURATION.fullmatch(value.strip())):
        number, unit = match.groups()
        return timedelta(seconds=float(number) * _SECONDS[(unit or "s").lower()])
    return value


def format_duration(value: timedelta) -> str:
    """Spell a duration the way that `parse_duration` reads it, in the largest unit that stays whole."""
    seconds = value.total_seconds()
    for unit in ("h", "m", "s"):
        if seconds and seconds % _SECONDS[unit] == 0:
            return f"{seconds / _SECONDS[unit]:.0f}{unit}"
    return f"{seconds:.6f}".rstrip("0").rstrip(".") + "s"


def format_size(value: int) -> str:
    """Spell a size so that it reads back exactly, in the largest binary unit that divides it."""
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if value and value % (1 << power) == 0:
            return f"{value >> power}{unit}"
    return f"{value}B"


def spell(value: Any) -> str:
    """A setting's value as text that a flag or a variable takes back."""
    if isinstance(value, tuple):
        return json.dumps(list(value), ensure_ascii=False)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, timedelta):
        return format_duration(value)
    return format_size(value) if isinstance(value, ByteSize) else str(value)


def _not_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("a truth value is not a number")
    return value


def _none(value: Any) -> Any:
    return None if isinstance(value, str) and value.strip().lower() == "none" else value


def parse_list(value: Any) -> Any:
    """Read a JSON list from the text of a variable or a flag; pass the rest on. Raises `ValueError`."""
    if not isinstance(value, str):
        return value
    try:
        decoded = json.loads(value)
    except (ValueError, RecursionError):
        decoded = None
    if not isinstance(decoded, list):
        raise ValueError("not a JSON list")
    return decoded


def _folder(value: Any) -> Any:
    if isinstance(value, str) and not value.strip():
        raise ValueError("an empty name is no folder")
    return _none(value)


def _api_key(key: SecretStr) -> SecretStr:
    if not _VISIBLE.fullmatch(key.get_secret_value()):
        raise ValueError("a key must be 1 to 1024 visible ASCII characters, as a header can carry them")
    return key


def _origin(text: str) -> str:
    origin = text.strip()
    if not _ORIGIN.fullmatch(origin):
        raise ValueError('an origin is "*" or scheme://host[:port], without a path')
    return origin


def _remote_host(text: str) -> str:
    host = text.strip().lower().rstrip(".")
    if not _HOST_NAME.fullmatch(host):
        raise ValueError("a host is a name or an address alone: no scheme, port, path or wildcard")
    return host.strip("[]")


Whole = Annotated[int, BeforeValidator(_not_bool)]
Duration = Annotated[
    timedelta,
    Field(gt=timedelta(0), le=timedelta(days=30)),
    BeforeValidator(parse_duration),
    BeforeValidator(_not_bool),
    Expects("a duration above zero such as 500ms, 10s, 2m or 1h", "10s"),
]
PositiveBytes = Annotated[ByteSize, Field(ge=1), BeforeValidator(_not_bool)]
Bytes = Annotated[PositiveBytes, Expects("a size in bytes such as 64MiB, 800MB or 5GiB", "64MiB")]
OptionalBytes = Annotated[
    PositiveBytes | None,
    BeforeValidator(_none),
    Expects('a size in bytes such as 800MB or 5GiB, or "none"', "5GiB"),
]
Port = Annotated[Whole, Field(ge=0, le=65535), Expects("a port from 0 (any free one) to 65535", "8000")]
Count = Annotated[Whole, Field(ge=1), Expects("a whole number of at least 1", "8")]
Name = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=1, max_length=256), Expects("a name", "my-model")
]
Host = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9._:%-]+$", max_length=253),
    Expects("a host name or an address to listen on", "127.0.0.1"),
]
Switch = Annotated[bool, Expects("true or false", "true")]
OptionalFolder = Annotated[Path | None, BeforeValidator(_folder), Expects('a folder, or "none"', "media")]
Names = Annotated[
    tuple[Name, ...], BeforeValidator(parse_list), NoDecode, Expects("a JSON list of names", '["gpt-4o"]')
]
ApiKeys = Annotated[
    tuple[Annotated[SecretStr, AfterValidator(_api_key)], ...],
    BeforeValidator(parse_list),
    NoDecode,
    Expects("a JSON list of keys, each of visible ASCII characters", '["a-long-random-key"]'),
]
Origins = Annotated[
    tuple[Annotated[str, AfterValidator(_origin)], ...],
    BeforeValidator(parse_list),
    NoDecode,
    Expects('a JSON list of origins such as http://localhost:3000, or ["*"]', '["http://localhost:3000"]'),
]
RemoteHosts = Annotated[
    tuple[Annotated[str, AfterValidator(_remote_host)], ...],
    BeforeValidator(parse_list),
    NoDecode,
    Expects("a JSON list of host names, without scheme, port or wildcard", '["images.example.org"]'),
]
AutoCount = Annotated[
    Literal["auto"] | Annotated[Whole, Field(ge=1)],
    Expects('"auto" or a whole number of at least 1', "auto"),
]
AutoDepth = Annotated[
    Literal["auto"] | Annotated[Whole, Field(ge=1, le=2)],
    Expects('"auto", 1 or 2', "auto"),
]
AutoSlots = Annotated[
    Literal["auto"] | Annotated[Whole, Field(ge=1, le=256)],
    Expects('"auto" or a whole number from 1 to 256', "auto"),
]
AutoContext = Annotated[
    Literal["auto"] | Annotated[Whole, Field(ge=16)],
    Expects('"auto" or a whole number of tokens, at least 16', "8192"),
]
