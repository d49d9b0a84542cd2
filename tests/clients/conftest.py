"""What the tests of real clients share: the server's address, pictures, a tool.

Runs in the environments of the clients, where kaminari is not installed: it knows the server by HTTP alone.
"""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

import pytest
from pictures import data_url, shape
from slots import Slots

EXAMPLES = Path(__file__).parents[2] / "examples"


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
