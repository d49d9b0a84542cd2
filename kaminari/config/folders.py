"""Where kaminari may keep files of its own on this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path


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
