"""The start-up suite: seconds from the command until a server is ready, and until it has answered.

A first start finds neither checkpoint nor pack in the system's cache of files and no compiled code; a second
start finds what the first one left. The peer `transformers` is a process that loads the model and makes one
token.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx

from kaminari.bench.decoders import HF
from kaminari.bench.limits import file_rate, forget_file
from kaminari.bench.llama_cpp import PeerError
from kaminari.bench.options import Options
from kaminari.bench.recorder import Recorder
from kaminari.bench.result import OURS, Limits
from kaminari.bench.server_process import free_port, own_environment, own_line, running
from kaminari.config import Settings
from kaminari.engine.loading import ModelPlan

STARTS = ("first", "second")
READY, ANSWERED = "ready", "first answer"
CODE_CACHE = "TORCHINDUCTOR_CACHE_DIR"
QUESTION = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, "temperature": 0}
SECONDS = 600.0


def run(settings: Settings, plan: ModelPlan, options: Options, recorder: Recorder) -> Limits:
    """Measure, and return the limits that floors followed from."""
    names = [OURS, *([HF] if options.hf else [])]
    recorder.expect(options.rounds * len(names) * len(STARTS))
    folders = [plan.folder, *([] if plan.pack is None else [plan.pack.folder])]
    files = [file for folder in folders for file in sorted(folder.glob("*.safetensors"))]
    recorder.starting("how fast the checkpoint can be read")
    limits = _limits(files, recorder)
    for _ in range(options.rounds):
        for name in names:
            with tempfile.TemporaryDirectory() as code:
                for start in STARTS:
                    if start == "first":
                        for file in files:
                            forget_file(file)
                    recorder.starting(f"{name}: {start} start")
                    line = _own(settings, code) if name == OURS else _theirs(plan, settings, code)
                    reading = _first_floor if start == "first" else _second_floor
                    floor = partial(reading, plan.capacity.weight_bytes)
                    for until, seconds in line:
                        case = {"start": start, "until": until}
                        recorder.row(name, case, floor=floor).samples.append(seconds)
                    recorder.done(f"{name}: {start} start")
    return limits


def _limits(files: list[Path], recorder: Recorder) -> Limits:
    largest = max(files, key=lambda file: file.stat().st_size)
    if not forget_file(largest):
        recorder.note("this system keeps files in its cache: a first start is no colder than a second")
    cold = file_rate(largest)
    return Limits(file_rate=cold, cached_file_rate=max(file_rate(largest) for _ in range(3)))


def _first_floor(weight_bytes: int, limits: Limits) -> float | None:
    return weight_bytes / limits.file_rate if limits.file_rate else None


def _second_floor(weight_bytes: int, limits: Limits) -> float | None:
    return weight_bytes / limits.cached_file_rate if limits.cached_file_rate else None


def _own(settings: Settings, code: str) -> Iterator[tuple[str, float]]:
    port = free_port()
    environment = {**own_environment(settings), CODE_CACHE: code}
    with running(OURS, own_line(port), port, environment) as server:
        yield READY, server.ready
        answer = httpx.post(f"{server.url}/chat/completions", json=QUESTION, timeout=SECONDS, trust_env=False)
        answer.raise_for_status()
        yield ANSWERED, time.perf_counter() - server.began


def _theirs(plan: ModelPlan, settings: Settings, code: str) -> Iterator[tuple[str, float]]:
    dtype = str(plan.dtypes.decoder).removeprefix("torch.")
    line = [sys.executable, "-m", "kaminari.bench.hf_start", str(plan.folder), plan.device.type, dtype]
    began = time.perf_counter()
    process = subprocess.Popen(
        line,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, CODE_CACHE: code},
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        for until in (READY, ANSWERED):
            if not process.stdout.readline():
                raise PeerError("transformers did not start: its process ended")
            yield until, time.perf_counter() - began
    finally:
        process.terminate()
        process.wait()
