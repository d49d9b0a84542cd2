"""`file:` addresses: pictures inside one folder of the settings, and no other file of the machine.

Links and `..` are resolved before the check. What lies outside and what is not there are refused in the same
words, so that nothing is learned of the disk.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from urllib.parse import unquote_to_bytes, urlsplit

from kaminari.engine.errors import RequestError

_NOT_HERE = "the file: address names no picture inside the media folder of this server"


class MediaFolder:
    """Reads files of at most `max_size` bytes below `folder`. Blocking: call it from a worker thread."""

    def __init__(self, folder: Path, max_size: int) -> None:
        self._folder = folder.resolve()
        self._max_size = max_size

    def read(self, url: str) -> bytes:
        """The bytes of `file:///absolute/path`. Raises `RequestError`."""
        try:
            parts = urlsplit(url)
            if parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
                raise RequestError(_NOT_HERE)
            named = Path(os.fsdecode(unquote_to_bytes(parts.path)))
            path = named.resolve(strict=True)
            if not named.is_absolute() or not path.is_relative_to(self._folder):
                raise RequestError(_NOT_HERE)
            return self._bytes(path)
        except (OSError, ValueError, RuntimeError):
            raise RequestError(_NOT_HERE) from None

    def _bytes(self, path: Path) -> bytes:
        # not blocking, since opening a pipe waits for its writer; no link may have come since the check
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
        with open(os.open(path, flags), "rb") as file:  # noqa: PTH123
            facts = os.fstat(file.fileno())
            if not stat.S_ISREG(facts.st_mode):
                raise RequestError(_NOT_HERE)
            data = file.read(self._max_size + 1)
        if len(data) > self._max_size:
            raise RequestError("the picture is larger than this server reads")
        if not data:
            raise RequestError("the picture's file is empty")
        return data
