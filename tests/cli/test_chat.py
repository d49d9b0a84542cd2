"""`kaminari chat`: one question, a conversation with pictures, and what can go wrong with either."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

RECEIPT = Path(__file__).parents[2] / "examples" / "receipt.png"


def chat(*arguments: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kaminari", "chat", "--dtype", "float32", *arguments]
    return subprocess.run(command, input=typed, capture_output=True, text=True, check=False)


def test_one_question_about_a_picture() -> None:
    done = chat("--image", str(RECEIPT), "--ask", "What is the total?")
    assert (done.returncode, done.stdout) == (0, "10.85\n"), done.stderr


def test_a_conversation_adds_pictures_and_remembers_them() -> None:
    lines = [
        "/help",
        f"/image {RECEIPT}",
        "What is the total?",
        "What is the date?",
        "/clear",
        "/nope",
        "Hello",
    ]
    done = chat(typed="\n".join(lines))
    assert done.returncode == 0, done.stderr
    for words in (
        "/image FILE",
        "10.85",
        "2026-03-14",
        "no such command: /nope",
        "Hello! How can I help you?",
    ):
        assert words in done.stdout + done.stderr, words


@pytest.mark.parametrize(
    ("arguments", "words", "code"),
    [
        (("--image", "missing.png", "--ask", "What?"), "cannot read the picture missing.png", 1),
        (("--ask", "Hi", "--temperature", "9"), "temperature must be between 0 and 2", 2),
        (("./no-such-folder", "--ask", "Hi"), "no such model folder", 1),
        (("--image", __file__, "--ask", "What?"), "unknown format; accepted formats", 1),
    ],
)
def test_what_goes_wrong_is_one_clear_line(arguments: tuple[str, ...], words: str, code: int) -> None:
    done = chat(*arguments)
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert not done.stdout
