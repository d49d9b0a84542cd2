"""What the tests of real clients share: the server's address, pictures, and a look at its slots.

Runs in the environments of the clients, where kaminari is not installed: it knows the server by HTTP alone.
"""

from __future__ import annotations

import base64
import os
import re
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pictures import data_url, shape

EXAMPLES = Path(__file__).parents[2] / "examples"

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
        deadline = time.monotonic() + SOON
        while (figures := self.figures())[0]:
            assert time.monotonic() < deadline, "the slot was not freed"
            time.sleep(0.02)
        assert figures[1] == finished_before, "the answer ended by itself, so that nothing was shown"


@pytest.fixture(scope="session")
def url() -> str:
    """The base URL of a `kaminari serve` of the demo model."""
    return os.environ["OPENAI_BASE_URL"]


@pytest.fixture(scope="session")
def slots(url: str) -> Slots:
    return Slots(url)


@pytest.fixture(scope="session")
def model() -> str:
    return "kaminari-demo"


@pytest.fixture(scope="session")
def circle() -> str:
    """A red circle as a data URL."""
    return data_url(shape("circle", (220, 30, 30)))


@pytest.fixture(scope="session")
def receipt_file() -> Path:
    """The receipt of the README."""
    return EXAMPLES / "receipt.png"


@pytest.fixture(scope="session")
def receipt_url(receipt_file: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(receipt_file.read_bytes()).decode()


@pytest.fixture(scope="session")
def weather() -> dict[str, Any]:
    """A tool whose arguments are few, so that even the demo model cannot lose its way in them."""
    return {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
