"""The examples that need a client's environment run as they stand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_langchain_example(url: str) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "langchain_receipt.py")],
        env={**os.environ, "OPENAI_BASE_URL": url},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for words in ("FRESH MART", "TOTAL 10.85", "total='10.85' date='2026-03-14'"):
        assert words in done.stdout
