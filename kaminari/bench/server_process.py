"""A server in a process of its own: started, waited for until it is ready, stopped whatever happens."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import httpx

from kaminari.bench.llama_cpp import PeerError
from kaminari.config import Settings
from kaminari.config.fields import setting_fields
from kaminari.config.settings import ENV_PREFIX
from kaminari.config.units import spell

START_SECONDS = 600.0
STOP_SECONDS = 15.0
POLL_SECONDS = 0.01
SHOWN = 200
SERVED_GROUPS = ("model", "engine", "pictures")


@dataclass(frozen=True, slots=True)
class RunningServer:
    """url:    with `/v1`
    ready:  seconds from its start until `/health` was well
    began:  when it was started, on the performance counter
    """

    url: str
    ready: float
    began: float


def own_line(port: int) -> list[str]:
    return [sys.executable, "-m", "kaminari", "serve", "--port", str(port), "--log-level", "warning"]


def own_environment(settings: Settings) -> dict[str, str]:
    """The environment of a server with the same model, engine and picture settings."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)}
    for field in setting_fields():
        if field.path[0] not in SERVED_GROUPS:
            continue
        value: object = settings
        for part in field.path:
            value = getattr(value, part)
        if value is not None and value != field.default:
            environment[field.variable] = spell(value)
    return environment


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def running(
    name: str, line: Sequence[str], port: int, environment: Mapping[str, str]
) -> Iterator[RunningServer]:
    """Run a server for a while. Raises `PeerError` where it does not become ready."""
    with tempfile.TemporaryFile() as log:
        began = time.perf_counter()
        process = subprocess.Popen(
            line, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment, start_new_session=True
        )
        try:
            _wait_until_ready(process, port)
            yield RunningServer(f"http://127.0.0.1:{port}/v1", time.perf_counter() - began, began)
        except _NotReady as error:
            log.seek(0)
            lines = log.read().decode(errors="replace").strip().splitlines() or ["no message"]
            raise PeerError(f"{name} {error}: {lines[-1][:SHOWN]}") from error
        finally:
            _stop(process)


class _NotReady(Exception):
    pass


def _wait_until_ready(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=5.0) as client:
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise _NotReady(f"ended with code {process.returncode}")
            try:
                if client.get("/health").status_code == httpx.codes.OK:
                    return
            except httpx.TransportError:
                pass
            time.sleep(POLL_SECONDS)
    raise _NotReady(f"was not ready within {START_SECONDS:g} s")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
