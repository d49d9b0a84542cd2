"""`kaminari serve` as a process of its own: how it ends while something is busy, and how its start fails."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.openai_api.harness import CHAT, HI
from tests.patience import PATIENCE

Q_PROJ = "model.language_model.layers.1.self_attn.q_proj.weight"

# The server with an engine whose requests do not end by themselves: in a worker, or in the engine's thread.
BUSY = """
import sys, time
import kaminari.cli.serve as command
from tests.openai_api.fake_engine import FakeEngine, endless

def prepare():
    print("asked", flush=True)
    if "decoding" in sys.argv:
        time.sleep(600)


engine = FakeEngine(endless, pause=0.05)
engine.prepare_hook = prepare
if "closing" in sys.argv:
    command.CLOSING_SECONDS = 0.2
    engine.close = lambda: time.sleep(600)
command.load_engine = lambda *_: engine
grace = "60s" if "long" in sys.argv else "300ms"
sys.exit(command.run(["--port", "0", "--grace", grace, "--log-level", "warning", "--pictures-workers", "2"]))
"""


@contextmanager
def process(*command: str) -> Iterator[subprocess.Popen[str]]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KAMINARI_")}
    started = subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        yield started
    finally:
        if started.poll() is None:
            started.kill()
        started.communicate()


@contextmanager
def busy(*how: str) -> Iterator[tuple[subprocess.Popen[str], Callable[..., socket.socket]]]:
    """A server that is ready, and what sends it a chat request and returns the connection."""
    with process("-c", BUSY, *how) as served:
        assert served.stdout is not None
        address = served.stdout.readline().split(" is ready at http://")[1].split("/")[0]
        host, port = address.split(":")

        def ask(**fields: object) -> socket.socket:
            body = json.dumps({"messages": HI, **fields}).encode()
            connection = socket.create_connection((host, int(port)), timeout=PATIENCE)
            head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)
            assert served.stdout is not None
            while "asked" not in (line := served.stdout.readline()):
                assert line, "the server has ended"
            return connection

        yield served, ask


def rest(connection: socket.socket) -> str:
    """What the server still says before it closes."""
    got = b""
    while piece := connection.recv(65536):
        got += piece
    return got.decode()


def ended(served: subprocess.Popen[str], seconds: float = 2 * PATIENCE) -> float:
    """How long the process lives on, after a check that it ends in order and says nothing."""
    began = time.monotonic()
    _, errors = served.communicate(timeout=seconds)
    assert served.returncode == 0
    assert errors == ""
    return time.monotonic() - began


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_that_cannot_be_stopped_does_not_hold_the_exit(number: signal.Signals) -> None:
    with busy("decoding") as (served, ask), ask() as whole, ask(stream=True) as stream:
        served.send_signal(number)
        for connection in (whole, stream):
            said = rest(connection)
            assert said.startswith("HTTP/1.1 503 ")
            assert '"code":"shutting_down"' in said
        assert ended(served) < PATIENCE


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_runs_is_told_of_the_end(number: signal.Signals) -> None:
    with busy("running") as (served, ask), ask() as whole, ask(stream=True) as stream:
        assert stream.recv(10).startswith(b"HTTP/1.1")
        served.send_signal(number)
        said = rest(whole)
        assert said.startswith("HTTP/1.1 503 ")
        text = rest(stream).replace("\r\n", "\n")
        assert text.index('"code":"shutting_down"') < text.index("data: [DONE]")
        ended(served)


@pytest.mark.parametrize("how", ["decoding", "running"])
def test_a_second_interrupt_ends_the_grace_and_all_of_it_in_order(how: str) -> None:
    with busy(how, "long") as (served, ask), ask() as whole, ask(stream=True):
        for _ in range(3):
            served.send_signal(signal.SIGINT)
            time.sleep(0.05)
        assert '"code":"shutting_down"' in rest(whole)
        assert ended(served) < PATIENCE


def test_a_second_sigterm_changes_nothing() -> None:
    with busy("running") as (served, ask), ask() as whole:
        for _ in range(2):
            served.send_signal(signal.SIGTERM)
        assert '"code":"shutting_down"' in rest(whole)
        ended(served)


def test_an_engine_that_does_not_stop_does_not_hold_the_exit() -> None:
    with busy("closing") as (served, ask), ask():
        served.send_signal(signal.SIGTERM)
        _, errors = served.communicate(timeout=PATIENCE)
        assert served.returncode == 0
        (line,) = errors.splitlines()
        assert "the engine did not stop within 0.2 s" in line


def no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def wrong_dtype(folder: Path) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    save_file({**tensors, Q_PROJ: tensors[Q_PROJ].to(torch.int8)}, path)


def wrong_shape(folder: Path) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    save_file({**tensors, Q_PROJ: tensors[Q_PROJ][:-1].contiguous()}, path)


def truncated(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def unknown_architecture(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_type": "gpt_nobody"}))


def no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


FAULTS: dict[Callable[[Path], None], str] = {
    no_weights: "no model.safetensors",
    wrong_dtype: "is I8; supported: F32, F16, BF16",
    wrong_shape: Q_PROJ,
    truncated: "truncated or corrupt",
    pickled: "pickled weights",
    unknown_architecture: "gpt_nobody",
    no_config: "config.json",
}


# One process for all, since importing torch is the slow part of each.
STARTS = """
import json, sys
from kaminari.cli.main import main

for folder in json.loads(sys.argv[1]):
    print(main(["serve", folder, "--port", "0", "--threads", "1"]), flush=True)
    print("--", file=sys.stderr, flush=True)
"""


def test_every_wrong_checkpoint_is_one_report_and_exit_code_1(tiny_checkpoint: Path, tmp_path: Path) -> None:
    folders = []
    for spoil in FAULTS:
        folders.append(str(shutil.copytree(tiny_checkpoint, tmp_path / spoil.__name__)))
        spoil(tmp_path / spoil.__name__)
    with process("-c", STARTS, json.dumps(folders)) as served:
        output, errors = served.communicate(timeout=100)
    assert output.split() == ["1"] * len(FAULTS)
    for report, says in zip(errors.removesuffix("--\n").split("--\n"), FAULTS.values(), strict=True):
        (line,) = report.splitlines()
        assert line.startswith("kaminari: ")
        assert says in line


def test_a_port_in_use_is_one_report_and_exit_code_1() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with process("-m", "kaminari", "serve", "--port", str(port)) as served:
            output, errors = served.communicate(timeout=30)
    assert (served.returncode, output) == (1, "")
    (line,) = errors.splitlines()
    assert f"port {port}: Address already in use" in line
