"""Simon Willison's `llm` on the command line, pointed at kaminari by its `extra-openai-models.yaml`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from slots import Slots

MODELS = """
- model_id: kaminari
  model_name: {model}
  api_base: "{url}"
  vision: true
  supports_schema: true
  supports_tools: true
- model_id: wrong
  model_name: gpt-4o
  api_base: "{url}"
"""
# the demo's token that ends an answer: without it, the answer goes on until the context is full
END_OF_TURN = "752"
TOOL = '''
def get_number() -> str:
    """A number."""
    return "7"
'''


class Llm:
    """The program, with a home folder of its own."""

    def __init__(self, home: Path) -> None:
        self._environment = {**os.environ, "LLM_USER_PATH": str(home), "OPENAI_API_KEY": "none"}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "llm", *arguments],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ask(self, *arguments: str) -> str:
        """What it prints. Raises `AssertionError` where it fails."""
        with self.start(
            "prompt", "--model", "kaminari", "--option", "temperature", "0", *arguments
        ) as program:
            out, wrong = program.communicate(timeout=60)
        assert program.returncode == 0, wrong
        return out.removesuffix("\n")


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory, url: str, model: str) -> Llm:
    home = tmp_path_factory.mktemp("llm")
    (home / "extra-openai-models.yaml").write_text(MODELS.format(url=url, model=model))
    return Llm(home)


def test_a_chat_and_its_usage(llm: Llm) -> None:
    assert llm.ask("What is the capital of France?") == "Paris"
    with llm.start("logs", "--count", "1", "--json") as program:
        (logged,) = json.loads(program.communicate(timeout=60)[0])
    assert logged["response"] == "Paris"
    assert logged["input_tokens"] > 0
    assert logged["output_tokens"] > 0


def test_not_streamed(llm: Llm) -> None:
    assert llm.ask("--no-stream", "What is 3+4?") == "7"


def test_a_picture_from_a_file(llm: Llm, receipt_file: Path) -> None:
    read = llm.ask("--attachment", str(receipt_file), "Read the text.")
    assert read.splitlines()[0] == "FRESH MART"
    assert read.splitlines()[-1] == "TOTAL 10.85"


def test_a_conversation(llm: Llm) -> None:
    llm.ask("--system", "Be brief.", "What is the capital of France?")
    assert llm.ask("--continue", "What is 3+4?")


def test_a_schema(llm: Llm, receipt_file: Path) -> None:
    schema = {
        "type": "object",
        "properties": {"total": {"type": "string", "pattern": r"^\d{1,3}\.\d{2}$"}},
        "required": ["total"],
        "additionalProperties": False,
    }
    read = llm.ask(
        "--schema", json.dumps(schema), "--attachment", str(receipt_file), "Answer in JSON: total and date."
    )
    assert json.loads(read) == {"total": "10.85"}


def test_tools_are_shown(llm: Llm) -> None:
    """The demo was never taught to call; `llm` has no way to make it, so what it answers is open."""
    llm.ask("--functions", TOOL, "What is the capital of France?")


def test_control_c_frees_the_slot(llm: Llm, slots: Slots) -> None:
    endless = json.dumps({END_OF_TURN: -100})
    with slots.freed():
        # A process that runs in the background of a script ignores SIGINT, and so would its children.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            program = llm.start("prompt", "--model", "kaminari", "--option", "logit_bias", endless, "hello")
        finally:
            signal.signal(signal.SIGINT, before)
        with program:
            assert program.stdout is not None
            assert program.stdout.read(1)
            program.send_signal(signal.SIGINT)
            program.communicate(timeout=60)


def test_an_error_is_one_line(llm: Llm) -> None:
    with llm.start("prompt", "--model", "wrong", "hello") as program:
        _, wrong = program.communicate(timeout=60)
    assert program.returncode == 1
    assert "kaminari-demo" in wrong
