"""A look at a server's slots from outside: what runs, and that leaving a stream frees its slot at once."""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

# far less than the 2,000 tokens of an answer that nobody stops take
SOON = 1.0


class Slots:
    """How many requests run, and how many choices came to an end by themselves, as `/metrics` says."""

    def __init__(self, url: str) -> None:
        self._url = url.removesuffix("/v1") + "/metrics"

    def figures(self) -> tuple[int, int]:
        """Return running and finished."""
        with urllib.request.urlopen(self._url, timeout=10) as response:
            text = response.read().decode()
        running = re.findall(r"^kaminari_requests_(?:running|waiting) (\S+)", text, re.MULTILINE)
        finished = re.findall(r"^kaminari_choices_finished_total\{.*\} (\S+)", text, re.MULTILINE)
        return int(sum(map(float, running))), int(sum(map(float, finished)))

    @contextmanager
    def freed(self) -> Iterator[None]:
        """What runs inside leaves a stream: its slot is free at once, and its answer never came to an end."""
        _, finished_before = self.figures()
        yield
        self.wait_until_free()
        assert self.figures()[1] == finished_before, "the answer ended by itself, so that nothing was shown"

    def wait_until_free(self) -> None:
        """Raises `AssertionError` if a request still runs after `SOON`."""
        deadline = time.monotonic() + SOON
        while self.figures()[0]:
            assert time.monotonic() < deadline, "the slot was not freed"
            time.sleep(0.01)
