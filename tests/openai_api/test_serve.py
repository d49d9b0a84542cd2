"""`kaminari serve`, in this process with a fake engine and as a process of its own with the demo model."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest
from rich.console import Console

import kaminari.cli.serve
from kaminari.cli.errors import CommandError
from kaminari.cli.serve import base_url, ready_text, serve
from kaminari.config import MediaSettings, ServerSettings, Settings
from kaminari.openai_api.server import listen
from tests.openai_api.fake_engine import INFO, FakeEngine
from tests.openai_api.harness import CHAT, HI, events_of
from tests.patience import PATIENCE

URL = "http://127.0.0.1:8000/v1"


def test_the_ready_line_holds_every_fact() -> None:
    text = ready_text(INFO, URL)
    first = text.splitlines()[0]
    for fact in (URL, INFO.model, INFO.device, INFO.dtype, f"{INFO.slots} slots", f"{INFO.context} tokens"):
        assert fact in first
    assert f"curl {URL}/chat/completions" in text
    assert "demo" not in text


def test_the_ready_line_names_the_kernels_of_a_cpu() -> None:
    assert ", kernels native avx2, " in ready_text(replace(INFO, kernels="native avx2"), URL)
    assert "kernels" not in ready_text(INFO, URL)


def test_the_demo_says_what_it_is_and_what_to_serve_instead() -> None:
    text = ready_text(replace(INFO, demo=True), URL)
    assert "demo" in text
    assert "small rendered pictures" in text
    assert "kaminari serve Qwen/Qwen3-VL-2B-Instruct" in text


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::1", "[::1]"), ("::", "[::1]")],
)
def test_the_url_is_one_that_a_client_here_can_use(host: str, expected: str) -> None:
    try:
        listener = listen(ServerSettings(host=host, port=0))
    except OSError:
        pytest.skip("no IPv6 here")
    with listener:
        assert base_url(listener) == f"http://{expected}:{listener.getsockname()[1]}/v1"


@pytest.mark.parametrize(("host", "warned"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_a_port_open_to_others_is_warned_of(
    host: str, warned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with listen(ServerSettings(host=host, port=0)) as listener:
        kaminari.cli.serve._warn_of_strangers(listener, Console(stderr=True))
    assert ("no API key" in capsys.readouterr().err) is warned


def test_a_media_folder_that_is_none_stops_the_start() -> None:
    with pytest.raises(CommandError, match="media folder nowhere/at/all is not a folder"):
        serve(Settings(media=MediaSettings(folder="nowhere/at/all"), server=ServerSettings(port=0)))


@pytest.mark.parametrize(("keys", "warned"), [([], True), (["k"], False)])
def test_a_key_silences_the_warning(
    keys: list[str], warned: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any) -> Any:
        raise CommandError("enough")

    monkeypatch.setattr(kaminari.cli.serve, "load_engine", fail)
    monkeypatch.setattr("sse_starlette.sse.AppStatus.should_exit", False)
    with pytest.raises(CommandError, match="enough"):
        serve(Settings(server=ServerSettings(host="0.0.0.0", port=0, log_level="warning", api_keys=keys)))
    assert ("no API key" in capsys.readouterr().err) is warned


def test_a_port_in_use_is_one_line_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kaminari.cli.serve, "load_engine", lambda *_: pytest.fail("it was loaded"))
    with listen(ServerSettings(port=0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CommandError, match=rf"port {port}: Address already in use; choose another"):
            serve(Settings(server=ServerSettings(port=port)))


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (CommandError("no such model folder: x"), "no such model folder: x"),
        (RuntimeError("first\nsecond"), "loading failed: RuntimeError: first"),
        (MemoryError(), "loading failed: MemoryError: no details"),
    ],
)
def test_a_load_that_fails_stops_the_server_with_one_line(
    failure: Exception, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise failure

    monkeypatch.setattr(kaminari.cli.serve, "load_engine", fail)
    with pytest.raises(CommandError) as error:
        serve(Settings(server=ServerSettings(port=0, log_level="warning")))
    assert str(error.value) == message


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order(number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine()
    before = signal.getsignal(number)

    def stop(*_: Any) -> str:
        while signal.getsignal(number) is before:
            time.sleep(0.01)
        os.kill(os.getpid(), number)
        return "ready"

    monkeypatch.setattr(kaminari.cli.serve, "load_engine", lambda *_: engine)
    monkeypatch.setattr(kaminari.cli.serve, "ready_text", stop)
    monkeypatch.setattr("sse_starlette.sse.AppStatus.should_exit", False)
    assert serve(Settings(server=ServerSettings(port=0, log_level="warning"))) == 0
    assert engine.alive is False
    assert signal.getsignal(number) is before


@contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "kaminari", "serve", *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KAMINARI_")}
    started = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        yield started
    finally:
        if started.poll() is None:
            started.kill()
        started.communicate()


def test_the_demo_is_served_and_a_stream_is_told_of_the_end() -> None:
    with process("--port", "0", "--threads", "1", "--grace", "100ms", "--log-level", "warning") as served:
        assert served.stdout is not None
        ready = served.stdout.readline()
        assert "kaminari-demo" in ready
        url = ready.split(" is ready at ")[1].split(": ")[0]
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
            answer = client.chat.completions.create(
                model="kaminari-demo",
                messages=[{"role": "user", "content": "What is the capital of France?"}],
                temperature=0,
            )
            assert answer.choices[0].message.content == "Paris"
        body = {"messages": HI, "stream": True, "ignore_eos": True, "return_token_ids": True}
        with httpx.stream("POST", url.removesuffix("/v1") + CHAT, json=body, timeout=PATIENCE) as response:
            lines = response.iter_lines()
            assert next(lines).startswith("data: ")
            served.send_signal(signal.SIGTERM)
            last = events_of("\n".join(lines))[-1]
        assert last.get("error", {}).get("code") == "shutting_down"
        _, errors = served.communicate(timeout=PATIENCE)
        assert served.returncode == 0
        assert "Traceback" not in errors


def test_a_signal_while_it_loads_ends_it_too() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with process("--port", str(port)) as served:
        deadline = time.monotonic() + PATIENCE
        while True:
            assert time.monotonic() < deadline
            try:
                response = httpx.get(f"http://127.0.0.1:{port}/health", timeout=PATIENCE)
            except httpx.ConnectError:
                time.sleep(0.01)
                continue
            break
        assert response.json() == {"status": "loading"}
        served.send_signal(signal.SIGTERM)
        _, errors = served.communicate(timeout=PATIENCE)
        assert served.returncode == 0
        assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("arguments", "piece"),
    [(["/nowhere/at/all"], "no such model folder"), (["--memory-limit", "1MiB"], "not enough memory")],
)
def test_a_wrong_start_is_one_line_and_exit_code_1(arguments: list[str], piece: str) -> None:
    with process(*arguments, "--port", "0") as served:
        output, errors = served.communicate(timeout=60)
        assert served.returncode == 1
        assert output == ""
        (line,) = errors.splitlines()
        assert piece in line
