"""Every example runs as it stands, against a server on the demo model, and prints the right things."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SHARED = {"client.py", "pictures.py"}
EXPECTED = {
    "chat.py": ["a red circle", "red"],
    "concurrency.py": ["blue square: a blue square", "16 answers in"],
    "picture_from_file.py": ["FRESH MART", "Coffee 3.40", "TOTAL 10.85"],
    "python_engine.py": ["What is the total? 5.75", "CITY CAFE"],
    "receipt_total.py": ["10.89", "Pizza 7.66"],
    "several_pictures.py": ["first: a blue circle, second: a yellow square"],
    "streaming.py": ["TOTAL 12.34", "prompt tokens"],
}


def test_every_example_is_run() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} - SHARED == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_runs(name: str, demo_url: str) -> None:
    environment = {**os.environ, "OPENAI_BASE_URL": demo_url}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for words in EXPECTED[name]:
        assert words in done.stdout
