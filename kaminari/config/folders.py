"""Where kaminari may keep files of its own on this machine."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

CODE_CACHE = "TORCHINDUCTOR_CACHE_DIR"


def cache_folder() -> Path:
    """The folder for what can be made anew at any time; not made here.

    `XDG_CACHE_HOME` where it is an absolute path, as the XDG Base Directory Specification has it, else the
    system's own place.
    """
    if sys.platform == "win32":
        return (
            Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "kaminari" / "cache"
        )
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if named.is_absolute():
        return named / "kaminari"
    caches = Path("Library", "Caches") if sys.platform == "darwin" else Path(".cache")
    return Path.home() / caches / "kaminari"


class FolderError(Exception):
    """Why a folder will not do; the message is one line."""


def owned(folder: Path) -> Path:
    """Make the folder, and raise `FolderError` unless it is this user's and nobody else can write there."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        raise FolderError(f"no cache folder {folder}: {error.strerror}") from error
    if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise FolderError(f"the cache folder {folder} is open to other users")
    return folder


def claim_code_cache() -> None:
    """Name a folder of kaminari's own to torch's compiler, unless the environment names one (`CODE_CACHE`).

    Raises `FolderError`.
    """
    if CODE_CACHE not in os.environ:
        os.environ[CODE_CACHE] = str(owned(cache_folder() / "compiled"))
