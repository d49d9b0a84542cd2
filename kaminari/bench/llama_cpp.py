"""The peer llama.cpp: the programs of a build, run on the same model as GGUF with the same threads.

Each program is a process of its own that loads the model anew; what it takes for that is in no figure.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

BATCHED = "llama-batched-bench"
PROGRAMS = ("llama-bench", BATCHED, "llama-server")
# it prints from a thread of its own, whose last lines are lost now and then when a short run ends
TRIES = 4
PLACES = (".", "bin", "build/bin")
ON_CPU = ("-ngl", "0")
SECONDS = 1800.0
SHOWN = 200


class PeerError(Exception):
    """A peer that cannot take part; the message is one line."""


class LlamaCpp:
    """One build and one model file. Raises `PeerError` where either is not there."""

    def __init__(self, folder: Path, gguf: Path | None, threads: int, *, on_cpu: bool) -> None:
        self._programs = find_programs(folder)
        if gguf is None:
            raise PeerError("llama.cpp needs the same model as a GGUF file: name it with --gguf FILE")
        if not gguf.is_file():
            raise PeerError(f"no such GGUF file: {gguf}")
        self._model = gguf
        self._line = ("-m", str(gguf), "-t", str(threads), *(ON_CPU if on_cpu else ()))

    @cached_property
    def weight_bytes(self) -> int:
        """Bytes of the model's weights, as llama.cpp counts them."""
        return int(self._bench(("-p", "1", "-n", "0", "-r", "1"))[0]["model_size"])

    def prefill(self, tokens: int, rounds: int) -> list[float]:
        """Seconds of each of `rounds` prompts."""
        found = self._bench(("-p", str(tokens), "-n", "0", "-r", str(rounds)))
        return [nanoseconds / 1e9 for nanoseconds in found[0]["samples_ns"]]

    def decode(self, prompt: int, steps: int, rows: int) -> float:
        """The mean seconds of a step, over `steps` steps of `rows` rows behind a prompt that they share."""
        line = (
            *("-c", str(rows * (prompt + steps)), "-npp", str(prompt), "-ntg", str(steps), "-pps"),
            *("-npl", str(rows), "--output-format", "jsonl"),
        )
        ran: list[int] = []
        for _ in range(TRIES):
            found = [json.loads(text) for text in self._run(BATCHED, line) if text.startswith("{")]
            ran = [int(each["pl"]) for each in found]
            if ran == [rows]:
                return float(found[0]["t_tg"]) / steps
        raise PeerError(f"{BATCHED} left out the batch of {rows}: it ran {ran}")

    def server_line(self, port: int, slots: int, context: int) -> list[str]:
        """The command line of its server with `slots` slots of `context` tokens."""
        return [
            *(str(self._programs["llama-server"]), *self._line, "--host", "127.0.0.1"),
            *("--port", str(port), "-np", str(slots), "-c", str(slots * context), "--no-webui"),
        ]

    def _bench(self, line: Sequence[str]) -> list[Mapping[str, Any]]:
        text = "\n".join(self._run("llama-bench", (*line, "-o", "json")))
        try:
            found: list[Mapping[str, Any]] = json.loads(text[text.index("[") :])
        except ValueError as error:
            raise PeerError("llama-bench printed no result") from error
        return found

    def _run(self, program: str, line: Sequence[str]) -> list[str]:
        """The lines that a program prints. Raises `PeerError` where it fails."""
        command = [str(self._programs[program]), *self._line, *line]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise PeerError(f"{program} did not run: {type(error).__name__}") from error
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise PeerError(f"{program} failed with code {done.returncode}: {last[:SHOWN]}")
        return done.stdout.splitlines()


def find_programs(folder: Path) -> dict[str, Path]:
    """The programs of a build by name. Raises `PeerError` with those that are missing."""
    if not folder.is_dir():
        raise PeerError(f"no such folder: {folder}; --against llama.cpp=DIR names a build of llama.cpp")
    found = {
        name: path
        for name in PROGRAMS
        if (
            path := next(
                (folder / place / name for place in PLACES if (folder / place / name).is_file()), None
            )
        )
    }
    if missing := [name for name in PROGRAMS if name not in found]:
        raise PeerError(f"{folder} holds no {', '.join(missing)}; build them (see docs/benchmarks.md)")
    return found
