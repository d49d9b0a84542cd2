"""A training's log: a line of JSON for its arguments, and one for every few steps.

    {"begin": 0, "arguments": {...}}
    {"step": 19, "rate": 0.0006, "seconds": 1.1, "line": {"loss": 0.05, "right": 0.98, ...}, ...}

A step's figures are means over the steps since the line before. After an interrupt, steps that are done again
are logged again; the later line counts.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LOG = "log.jsonl"
EVERY = 20

Figures = Mapping[str, Mapping[str, float]]


class TrainingLog:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._clear()

    def begin(self, step: int, arguments: Mapping[str, str]) -> None:
        """Start the log anew, of a run that begins at a step."""
        self._file.write_text(json.dumps({"begin": step, "arguments": arguments}) + "\n", encoding="utf-8")

    def first_step(self) -> int:
        """The step that the run began at. Raises `OSError` without a log."""
        with self._file.open(encoding="utf-8") as lines:
            return int(json.loads(lines.readline())["begin"])

    def add(self, step: int, rate: float, seconds: float, figures: Figures) -> None:
        self._seconds.append(seconds)
        for kind, named in figures.items():
            for name, value in named.items():
                self._values[kind][name].append(value)
        if (step + 1) % EVERY == 0:
            means = {
                kind: {name: round(_mean(values), 4) for name, values in named.items()}
                for kind, named in self._values.items()
            }
            line = {"step": step, "rate": float(f"{rate:.3g}"), "seconds": round(_mean(self._seconds), 3)}
            with self._file.open("a", encoding="utf-8") as log:
                log.write(json.dumps(line | means) + "\n")
            self._clear()

    def _clear(self) -> None:
        self._seconds: list[float] = []
        self._values: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))


def read_log(file: Path) -> list[dict[str, Any]]:
    """The steps' lines in order, without what was done again. Raises `OSError`, `ValueError`."""
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    steps = {line["step"]: line for line in lines if "step" in line}
    return [steps[step] for step in sorted(steps)]


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
