"""Where a model comes from: the embedded demo, a folder, or a hub id. Parsed from one string, nothing opened.

The only look at the disk is whether a bare name is there, so that `models/mine` means the folder that
exists and not a hub id.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator
from pydantic_settings import NoDecode

from kaminari.config.units import Expects

DEMO_NAME = "kaminari-demo"

_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
# the hub allows neither "--" nor ".." in a name, nor ".git" at its end
_REPO = rf"(?![^@\s]*(?:--|\.\.))(?P<repo>{_PART}/{_PART}(?<!\.git))"
_HUB_ID = re.compile(rf"{_REPO}(?:@(?P<revision>[A-Za-z0-9._/-]{{1,255}}))?")


@dataclass(frozen=True, slots=True)
class Demo:
    """The small checkpoint inside the package."""

    @property
    def name(self) -> str:
        return DEMO_NAME

    def __str__(self) -> str:
        return "demo"


@dataclass(frozen=True, slots=True)
class Folder:
    """A checkpoint folder, which may not exist: whoever loads it says so."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.resolve().name or "model"

    def __str__(self) -> str:
        """Spelled so that it reads back as a folder, whether it exists or not."""
        text = str(self.path)
        return text if text.startswith((".", "/")) else f"./{text}"


@dataclass(frozen=True, slots=True)
class Hub:
    """A Hugging Face hub repository, such as `Qwen/Qwen3-VL-2B-Instruct`, at a revision or at its head."""

    repo: str
    revision: str | None = None

    @property
    def name(self) -> str:
        return self.repo

    def __str__(self) -> str:
        return self.repo if self.revision is None else f"{self.repo}@{self.revision}"


def parse_source(text: str) -> Demo | Folder | Hub:
    """Read "demo", a path, or "org/name" with an optional "@revision". Raises `ValueError`."""
    text = text.strip()
    if text == "demo":
        return Demo()
    if text.startswith((".", "/", "~")) or path_exists(text):
        return Folder(expand_path(text))
    if match := _HUB_ID.fullmatch(text):
        return Hub(match["repo"], match["revision"])
    raise ValueError('neither "demo", nor a folder that exists, nor a hub id of the form org/name')


def path_exists(text: str) -> bool:
    """Whether anything is at a path that may not even be one."""
    try:
        return bool(text) and Path(text).exists()
    except (OSError, ValueError):
        return False


def expand_path(text: str) -> Path:
    """Expand ~. Raises `ValueError`."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise ValueError("the home folder that ~ stands for is unknown") from error


def _parse(value: Any) -> Any:
    if isinstance(value, Path):
        return Folder(value.expanduser())
    return parse_source(value) if isinstance(value, str) else value


ModelSource = Annotated[
    Demo | Folder | Hub,
    BeforeValidator(_parse),
    NoDecode,
    Expects('"demo", a folder, or a hub id', "Qwen/Qwen3-VL-2B-Instruct"),
]
