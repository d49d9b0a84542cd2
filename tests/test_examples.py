"""Every example runs as it stands, against a server on the demo model, and prints the right things."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SHARED = {"client.py", "pictures.py"}
WITH_CLIENTS = {"langchain_receipt.py"}  # run by `scripts/test --clients`
EXPECTED = {
    "chat.py": ["a red circle", "red"],
    "concurrency.py": ["blue square: a blue square", "16 answers in"],
    "logprobs.py": ["TOTAL 12.34", "'<|im_end|>' 1.0"],
    "picture_from_file.py": ["FRESH MART", "Coffee 3.40", "TOTAL 10.85"],
    "python_engine.py": ["What is the total? 5.75", "CITY CAFE"],
    "receipt_json.py": ['{"total": "10.85", "date": "2026-03-14"}', "10.85 on 2026-03-14"],
    "receipt_total.py": ["10.89", "Pizza 7.66"],
    "several_pictures.py": ["first: a blue circle, second: a yellow square"],
    "streaming.py": ["TOTAL 12.34", "prompt tokens"],
    "tools.py": ["get_weather(", "answer:"],
}


def test_every_example_is_run() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} - SHARED - WITH_CLIENTS == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_runs(name: str, demo_url: str) -> None:
    printed = run([sys.executable, str(EXAMPLES / name)], demo_url)
    for words in EXPECTED[name]:
        assert words in printed


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_curl_example_runs(demo_url: str) -> None:
    printed = run(["bash", str(EXAMPLES / "curl.sh")], demo_url)
    assert '"content":"10.85"' in printed
    assert '"id":"kaminari-demo"' in printed
    assert printed.endswith("data: [DONE]\n\n")


def run(command: list[str], url: str) -> str:
    """What a command prints; it must end with 0."""
    environment = {**os.environ, "OPENAI_BASE_URL": url}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
